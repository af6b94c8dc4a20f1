"""The page on dask-cuda: its script runs, on fake GPUs, and its commands are those that the tests run."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.support.fakegpu import uuid

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs/gpu.md").read_text()


def test_script_of_the_page_runs(cuda, tmp_path, monkeypatch):
    """It prints the sum, and the GPU of each worker."""
    (code,) = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    (tmp_path / "block.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    done = subprocess.run(
        [sys.executable, "block.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "ResilienceWarning" not in done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "10.0"
    assert {line.split()[1] for line in lines[1:]} == {uuid(0), uuid(1)}


def test_commands_of_the_page_are_those_that_are_tested():
    """Each option of the page's commands stands in the test of the command line."""
    (block,) = re.findall(r"^```sh\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    tested = (Path(__file__).parent / "test_cli.py").read_text()
    for word in re.findall(r"--[\w-]+|dask_resilient\.preload|DASK_RESILIENCE__STORE", block):
        assert word in tested, word
    assert "dr.connect(client)" in tested
