"""Clusters of dask-cuda on fake GPUs: one for all tests that leave it whole."""

from __future__ import annotations

import os

import pytest

from tests.support import fakegpu
from tests.support.gpu_processes import GPUProcesses
from tests.support.pool import one_test


@pytest.fixture(scope="session")
def kept():
    """Keep one cluster, and what it needs around it."""
    kept = {}
    yield kept
    if "cluster" in kept:
        kept["cluster"].close()


@pytest.fixture
def cuda(require, fake_libraries, tmp_path_factory, kept, monkeypatch):
    """Let this process and all that it starts see two fake GPUs; the same ones for all tests."""
    for tool in ("compiler", "dask_cuda", "numba"):
        require(tool)
    if "gpus" not in kept:
        kept["gpus"] = fakegpu.Control(tmp_path_factory.mktemp("gpus") / "control")
    control = kept["gpus"]
    control.clear()
    fakegpu.load(fake_libraries)
    for name, value in control.environment(fake_libraries).items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    fakegpu.forget_nvml()
    yield control
    fakegpu.forget_nvml()


@pytest.fixture
def x(cuda, kept, tmp_path_factory, tmp_path):
    """Two workers, a GPU each, whole and empty."""
    if "cluster" in kept and kept["cluster"].worn:
        kept.pop("cluster").close()
    if "cluster" not in kept:
        kept["cluster"] = GPUProcesses(tmp_path_factory.mktemp("cluster"), cuda)
    with one_test(kept["cluster"], tmp_path) as x:
        # dask-cuda sets these in this process, and other tests would inherit them.
        yield x
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)


@pytest.fixture
def own(cuda, tmp_path_factory, tmp_path):
    """Make a cluster with options of its own, closed at the end."""
    made = []

    def make(**options):
        made.append(GPUProcesses(tmp_path_factory.mktemp("own"), cuda, **options))
        made[-1].begin(tmp_path)
        return made[-1]

    yield make
    for cluster in made:
        cluster.close()
