"""What is installed is what is meant: version, files of the wheel, extras."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

import dask_resilient

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Build the wheel, with the back end that is installed, and open it."""
    folder = tmp_path_factory.mktemp("wheel")
    build = f"import hatchling.build; print(hatchling.build.build_wheel({str(folder)!r}))"
    subprocess.run([sys.executable, "-c", build], cwd=ROOT, check=True, capture_output=True)
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as archive:
        yield archive


def test_version_is_the_same_everywhere(wheel):
    """The wheel has the version that the package says, and the changelog knows what is not released yet."""
    (name,) = [name for name in wheel.namelist() if name.endswith("METADATA")]
    assert f"\nVersion: {dask_resilient.__version__}\n" in wheel.read(name).decode()
    assert "## [Unreleased]" in (ROOT / "CHANGELOG.md").read_text()


def test_wheel_holds_the_package_and_nothing_else(wheel):
    """Every file of the package is in the wheel, types and settings included, and no tests or examples."""
    packed = {name for name in wheel.namelist() if ".dist-info/" not in name}
    files = {str(path.relative_to(ROOT)) for path in (ROOT / "dask_resilient").rglob("*") if path.is_file()}
    assert packed == {name for name in files if "__pycache__" not in name}
    assert {"dask_resilient/py.typed", "dask_resilient/resilience.yaml"} <= packed


def test_test_extra_is_never_resolved_with_cuda():
    """No extra brings test and cuda12 or cuda13 together: what they need excludes one another."""
    for name, needs in PROJECT["optional-dependencies"].items():
        drawn = {name, *(extra for need in needs for extra in re.findall(r"dask-resilient\[([\w,]+)\]", need))}
        drawn |= {part for extra in drawn for part in extra.split(",")}
        assert not ("test" in drawn and drawn & {"cuda12", "cuda13"}), name


def test_dependencies_that_are_required_are_installed():
    """The tests run with the versions that the package asks for."""
    for need in PROJECT["dependencies"]:
        name, _, least = re.fullmatch(r"([\w-]+)(>=)([\d.]+)", need).groups()
        have = [int(part) for part in re.findall(r"\d+", metadata.version(name))]
        assert have >= [int(part) for part in least.split(".")], need
