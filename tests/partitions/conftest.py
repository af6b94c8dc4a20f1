"""Fixtures of the tests on device arrays: numba on fake GPUs, which ends with all pinned memory given back."""

from __future__ import annotations

import gc

import pytest

from dask_resilient.partitions import device
from dask_resilient.partitions.pinned import Pool


@pytest.fixture
def pool(monkeypatch):
    """Give the pool that staging uses, a fresh one of 4 MiB."""
    pool = Pool(4 * 2**20)
    monkeypatch.setattr(device, "POOL", pool)
    return pool


@pytest.fixture
def cuda(require, fake_cuda, pool):
    """Give `numba.cuda` on fake GPUs; afterwards no pinned memory is in use."""
    require("numba_cuda")
    from numba import cuda

    cuda.current_context()
    before = fake_cuda.fake_cuda_pinned()
    yield cuda
    pool.trim()
    if fake_cuda.fake_cuda_pinned() != before:  # seldom, and collecting takes half a second
        gc.collect()
        pool.trim()
    assert fake_cuda.fake_cuda_pinned() == before


@pytest.fixture
def calls(monkeypatch, tmp_path, fake_cuda):
    """Give a function that tells which calls of the CUDA driver were made since it was asked last."""
    path = tmp_path / "calls"
    path.touch()
    monkeypatch.setenv("FAKE_CUDA_CALLLOG", str(path))
    seen = 0

    def calls():
        nonlocal seen
        lines = path.read_text().splitlines()
        new, seen = lines[seen:], len(lines)
        return [(name, int(nbytes)) for _, name, nbytes in map(str.split, new)]

    return calls


@pytest.fixture
def used(cuda, fake_cuda):
    """Give a function that tells how many bytes of device memory are in use, garbage aside."""

    def used():
        gc.collect()
        cuda.current_context().memory_manager.deallocations.clear()
        return fake_cuda.fake_cuda_used()

    return used
