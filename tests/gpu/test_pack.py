"""What can be known about the check without a GPU: that it packs, installs offline, and runs with NumPy."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gpu import check, pack

pytestmark = pytest.mark.slow


def test_wheels_are_few_enough_to_carry(tmp_path):
    """The folder holds ours, Dask, dask-cuda and all they need but NumPy and CuPy, and is under its limit."""
    wheels = pack.pack(tmp_path / "wheels")
    names = {wheel.name.partition("-")[0] for wheel in wheels}
    assert {"dask_resilient", "dask", "distributed", "dask_cuda", "cuda_bindings", "zarr", "pytest"} <= names
    assert not {"numpy", "cupy_cuda13x"} & names
    assert all(wheel.suffix == ".whl" for wheel in wheels)
    assert sum(wheel.stat().st_size for wheel in wheels) < pack.LIMIT


def test_check_runs_without_a_gpu(tmp_path):
    """With NumPy in place of CuPy every part ends, and the table has a row for each figure."""
    figures = tmp_path / "figures.json"
    command = [sys.executable, check.__file__, "--cpu", "--json", str(figures)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = {row["what"]: row["figure"] for row in json.loads(figures.read_text())["rows"]}
    assert rows["copies"] == rows["health"] == rows["job"] == "passed"
    assert float(rows["restore 64 MiB"].replace(",", "")) > 0
    assert "the same after its worker was killed, reloaded" in rows
    assert rows.keys() <= {line.split("  ")[0] for line in done.stdout.splitlines()}


def test_part_that_fails_or_hangs_is_shown(tmp_path):
    """What it wrote is kept, and the check goes on."""
    line = json.dumps({"what": "x", "figure": "1", "unit": "s"})
    write = f"import os; open(os.environ['GPU_CHECK_ROWS'], 'a').write({line!r} + chr(10))"
    environment = dict(os.environ)
    for name, code in (("fails", f"{write}; raise SystemExit(3)"), ("hangs", f"{write}; import time; time.sleep(60)")):
        rows = check.part(name, ["-c", code], 3, environment, tmp_path)
        assert [row["figure"] for row in rows] == ["1", "FAILED"]


def test_no_wheels_is_a_clear_reason(tmp_path):
    """It says what to run, and where."""
    with pytest.raises(SystemExit, match=r"pack\.py"):
        check.install(Path(tmp_path), tmp_path / "site")


@pytest.fixture
def python(tmp_path):
    """Make an environment of Python 3.12 that has only NumPy, as a GPU host has CuPy beside it."""
    found = shutil.which("python3.12")
    if found is None or subprocess.run([found, "-V"], capture_output=True, check=False).returncode:
        pytest.skip("no Python 3.12")
    subprocess.run([found, "-m", "venv", str(tmp_path / "host")], check=True)
    python = str(tmp_path / "host" / "bin" / "python")
    subprocess.run([python, "-m", "pip", "-q", "install", "numpy>=2"], check=True)
    return python


def test_the_whole_way_on_python_3_12(tmp_path, python):
    """Packed here, installed there without an index, and run."""
    pack.pack(tmp_path / "wheels")
    command = [python, check.__file__, "--cpu", "--wheels", str(tmp_path / "wheels")]
    environment = {**os.environ, "PIP_NO_INDEX": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("passed") == 3
