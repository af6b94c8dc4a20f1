"""Clusters of dask-cuda on fake GPUs: one for all tests that leave it whole."""

from __future__ import annotations

import pytest

from tests.support import fakegpu
from tests.support.gpu_processes import GPUProcesses
from tests.support.pool import one_test


@pytest.fixture(scope="package")
def environment(fake_libraries, tmp_path_factory):
    """Let this process and all that it starts see two fake GPUs, as long as a cluster of these tests may be kept."""
    for tool in ("dask_cuda", "numba"):
        pytest.importorskip(tool, reason=f"could not find {tool}")
    control = fakegpu.Control(tmp_path_factory.mktemp("gpus") / "control")
    fakegpu.load(fake_libraries)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in control.environment(fake_libraries).items():
            patch.setenv(name, value)
        patch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        fakegpu.forget_nvml()
        yield control
    fakegpu.forget_nvml()


@pytest.fixture(scope="package")
def kept(environment):
    """Keep one cluster. Not for longer than they see the GPUs: Dask's monitors fail twice a second without them."""
    kept = {}
    yield kept
    if "cluster" in kept:
        kept["cluster"].close()


@pytest.fixture
def cuda(environment):
    """Two fake GPUs without a fault."""
    environment.clear()
    return environment


@pytest.fixture
def x(cuda, kept, tmp_path_factory, tmp_path):
    """Two workers, a GPU each, whole and empty."""
    if "cluster" in kept and kept["cluster"].worn:
        kept.pop("cluster").close()
    if "cluster" not in kept:
        kept["cluster"] = GPUProcesses(tmp_path_factory.mktemp("cluster"), cuda)
    with one_test(kept["cluster"], tmp_path) as x:
        yield x


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
