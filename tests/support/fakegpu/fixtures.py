"""Fixtures of tests on fake GPUs; compiled once a run, loaded into this process only where a test asks for them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support import fakegpu


@pytest.fixture(scope="session")
def fake_libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the directory of the compiled fakes."""
    if fakegpu.real_driver():
        pytest.skip("a real NVIDIA driver is here")
    return fakegpu.build(tmp_path_factory.mktemp("fakegpu"))


@pytest.fixture
def gpus(
    require: Callable[[str], None],
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> fakegpu.Control:
    """Two fake GPUs for the processes that the test starts; this process does not see them."""
    require("compiler")
    require("pynvml")
    control = fakegpu.Control(tmp_path / "gpus")
    for name, value in control.environment(request.getfixturevalue("fake_libraries")).items():
        monkeypatch.setenv(name, value)
    return control


@pytest.fixture
def fake_cuda(gpus: fakegpu.Control, fake_libraries: Path) -> Iterator[ctypes.CDLL]:
    """Let this process see the fake GPUs too, and give the fake of the CUDA driver."""
    cuda = fakegpu.load(fake_libraries)
    fakegpu.forget_nvml()
    yield cuda
    fakegpu.forget_nvml()
