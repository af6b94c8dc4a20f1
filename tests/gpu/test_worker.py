"""A worker on a real GPU is killed, and its milestone is reloaded: of dask-cuda where that is installed."""

from __future__ import annotations

import pytest

from tests.gpu.measure import run

pytestmark = pytest.mark.gpu


def test_killed_worker_gets_its_partitions_back(cupy):
    """All partitions come back as CuPy arrays from the store, with the right items; none is computed again."""
    run(cpu=False, ours=True)  # checks it, because what it measures would mean nothing otherwise
