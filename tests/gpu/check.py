"""Runs the tests and the measurements that need a GPU, on a host that has only Python 3.12, NumPy and CuPy.

Run: ``python tests/gpu/check.py --wheels build/gpu [--json FILE]``, with the folder that ``pack.py`` filled; without
``--wheels`` in an environment that has everything. Takes under four minutes, prints one table, and exits 1 if a part
failed. ``--cpu`` does the parts that need no GPU, with NumPy arrays in place of CuPy's: it shows that the script works.

The wheels go into a folder of their own on ``PYTHONPATH`` and not into a virtual environment: where the Python that has
CuPy lives in one itself, a second one would not see CuPy.
"""
# ruff: noqa: T201  (its output is for people)

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent

PARTS = {
    "tests": (["-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider", "tests/gpu"], 100),
    "copies": (["-m", "tests.gpu.measure", "copies"], 45),
    "health": (["-m", "tests.gpu.measure", "health"], 20),
    "job": (["-m", "tests.gpu.measure", "job"], 75),
}
"""Arguments of Python, and the seconds that a part may take."""


def main() -> None:
    options = arguments()
    begin = time.monotonic()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as temporary:
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", "GPU_CHECK_TMP": temporary}
        if options.wheels is not None:
            environment["PYTHONPATH"] = os.pathsep.join([install(options.wheels, Path(temporary) / "site"), str(ROOT)])
        for name, (command, seconds) in PARTS.items():
            if not options.cpu:
                rows += part(name, command, seconds, environment, Path(temporary))
            elif name != "tests":
                # More time, because what tries the script may have two busy cores.
                rows += part(name, [*command, "--cpu"], 2 * seconds, environment, Path(temporary))
    rows.append(row("the whole check", f"{time.monotonic() - begin:.0f}", "s"))
    print_table(rows)
    if options.json is not None:
        options.json.write_text(json.dumps({"device": device(), "rows": rows}, indent=1))
    sys.exit(any(each["figure"] == "FAILED" for each in rows))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wheels", type=Path, help="folder that pack.py filled")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    parser.add_argument("--cpu", action="store_true", help="do what needs no GPU, with NumPy")
    return parser.parse_args()


def install(wheels: Path, site: Path) -> str:
    """Unpack the wheels; they are complete, so nothing is looked up, and nothing of the host is touched."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q", "install", "--no-index", "--no-deps"]
    found = sorted(map(str, wheels.glob("*.whl")))
    if not found:
        sys.exit(f"no wheels in {str(wheels)!r}; run tests/gpu/pack.py where there is a network")
    subprocess.run([*pip, "--no-compile", "--target", str(site), *found], check=True)
    return str(site)


def part(
    name: str, command: list[str], seconds: float, environment: dict[str, str], directory: Path
) -> list[dict[str, Any]]:
    """Run one part within its time, and give its rows: those it wrote, and how it ended."""
    file = directory / f"{name}.json"
    print(f"--- {name}", flush=True)
    try:
        done = subprocess.run(
            [sys.executable, *command],
            cwd=ROOT,
            env={**environment, "GPU_CHECK_ROWS": str(file)},
            timeout=seconds,
            check=False,
        )
        ending = "passed" if done.returncode == 0 else "FAILED"
    except subprocess.TimeoutExpired:
        print(f"not within {seconds:g} s")
        ending = "FAILED"
    written = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    return [*written, row(name, ending, "")]


def row(what: str, figure: str, unit: str) -> dict[str, Any]:
    return {"what": what, "figure": figure, "unit": unit}


def device() -> str:
    """Name the GPU as its own tool does."""
    command = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "none"


def print_table(rows: list[dict[str, Any]]) -> None:
    width = max(len(each["what"]) for each in rows)
    print(f"\non {device()}")
    for each in rows:
        print(f"{each['what']:<{width}}  {each['figure']:>8} {each['unit']}")


if __name__ == "__main__":
    main()
