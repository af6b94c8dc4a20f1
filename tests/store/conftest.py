"""A fresh store for each test, and a way to stage arrays without the room that knows types."""

from __future__ import annotations

import shutil
import tempfile
from functools import reduce
from pathlib import Path

import crc32c
import numpy as np
import pytest

from dask_resilient.core.manifest import Place
from dask_resilient.protocols import Staged
from dask_resilient.store import open_store
from tests.support.store_life import Impatient, Judge, Life


@pytest.fixture
def store(tmp_path):
    """Give a store that was just made."""
    return open_store(tmp_path / "store", create=True, calls=Impatient())


@pytest.fixture
def place():
    """Give the place that most tests write."""
    return Place("m", "0.0", 0, "a1")


@pytest.fixture
def facts():
    """Give what only the caller of `write` knows."""
    return {"key": "k", "run": "r", "producer": {"device": "host:h/0"}, "parents": ("p",), "seconds": {"make": 1.5}}


@pytest.fixture(scope="session")
def stage():
    """Give a function that stages a C-contiguous array in chunks of `rows`, each of two buffers."""

    def stage(x, rows, data_type=None):
        chunks = []
        for start in range(0, len(x) if x.size else 0, rows):
            part = x[start : start + rows]
            padding = np.zeros((rows - len(part), *x.shape[1:]), x.dtype)
            chunks.append(tuple(memoryview(a.reshape(-1).view(np.uint8)) for a in (part, padding)))
        digests = tuple(reduce(lambda crc, buffer: crc32c.crc32c(buffer, crc), chunk, 0) for chunk in chunks)
        chunk_shape = (rows, *(max(n, 1) for n in x.shape[1:]))
        return Staged(
            "test",
            {"dtype": x.dtype.str},
            data_type or str(x.dtype),
            x.shape,
            chunk_shape,
            tuple(chunks),
            digests,
            x.nbytes,
        )

    return stage


@pytest.fixture(scope="session")
def staged(stage):
    """Give 23 x 7 numbers in three chunks, the last of them padded."""
    return stage(np.arange(161, dtype="f8").reshape(23, 7), 10)


@pytest.fixture
def room():
    """Give a directory in memory where there is enough, for thousands of small disks are made in it."""
    memory = Path("/dev/shm")
    is_roomy = memory.is_dir() and shutil.disk_usage(memory).free > 1 << 30
    with tempfile.TemporaryDirectory(dir=memory if is_roomy else None) as path:
        yield Path(path)


@pytest.fixture
def live(room):
    """Give a function that records one scenario, and a judge of it."""
    count = 0

    def live(scenario):
        nonlocal count
        count += 1
        base = room / f"life-{count}"
        base.mkdir()
        life = Life(base)
        scenario(life)
        return life, Judge(life, room / "after")

    return live
