"""Lays together what a GPU host without a network needs beside Python 3.12, NumPy and CuPy: wheels in one folder.

Run: ``python tests/gpu/pack.py [FOLDER]``. The folder (default ``build/gpu``) then goes with the checkout to the host,
where ``python tests/gpu/check.py --wheels FOLDER`` does the rest. What is in it comes from pip's package index.
"""
# ruff: noqa: T201  (its output is for people)

from __future__ import annotations

import argparse
import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent

WANTED = [
    "crc32c>=2.7",
    "cuda-bindings==13.*",
    "dask==2026.7.1",
    "dask-cuda==26.10.*",
    "distributed==2026.7.1",
    "hypothesis>=6.100",
    "pytest>=9",
    "pytest-timeout>=2.3",
    "rich>=13",
    "zarr>=3.1.6",
]
"""With all that they need; Dask in the version that dask-cuda asks for."""

LEFT_OUT = ("numpy-", "pillow-")
"""NumPy is where CuPy is; Pillow serves a function of Bokeh that nobody calls here."""

PLATFORMS = [f"manylinux_2_{minor}_x86_64" for minor in (28, 27, 24, 17)] + [
    "manylinux2014_x86_64",
    "manylinux1_x86_64",
]

LIMIT = 60 * 2**20
"""Bytes that may have to be carried."""


def pack(folder: Path) -> list[Path]:
    """Fill the folder, anew, and give its wheels."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    python = sys.executable if importlib.util.find_spec("pip") else "python3"  # environments may come without pip
    pip = [python, "-m", "pip", "--disable-pip-version-check", "-q"]
    platforms = [f"--platform={platform}" for platform in PLATFORMS]
    target = ["--only-binary=:all:", "--python-version=3.12", "--implementation=cp", *platforms]
    subprocess.run([*pip, "download", *target, "-d", str(folder), *WANTED], check=True)
    subprocess.run([*pip, "wheel", "--no-deps", "-w", str(folder), str(ROOT)], check=True)
    for wheel in folder.iterdir():
        if wheel.name.startswith(LEFT_OUT):
            wheel.unlink()
    return sorted(folder.iterdir())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "build" / "gpu")
    folder = parser.parse_args().folder
    wheels = pack(folder)
    nbytes = sum(wheel.stat().st_size for wheel in wheels)
    print(f"{len(wheels)} wheels, {nbytes / 2**20:.1f} MiB in {folder}")
    if nbytes > LIMIT:
        sys.exit(f"more than the {LIMIT / 2**20:.0f} MiB that can be carried: leave something out")


if __name__ == "__main__":
    main()
