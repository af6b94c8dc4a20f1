"""A job whose partitions are arrays on a device: ``a -> b -> milestone -> c``, counted, and held on demand."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import uuid4

import dask.array as da
import numpy as np

import dask_resilient as dr
from tests.processes.preload import pass_gate
from tests.support.calls import Calls

SIZE = 10_000
"""Elements of a partition."""


def step(block: Any, where: str, name: str, block_id: Any = None) -> Any:
    """Be one user function on one partition: it computes on the host, there being no kernels on a fake."""
    from numba import cuda

    i = block_id[0]
    Calls(f"{where}/calls").add(f"{name}-{i}")
    pass_gate(Path(where, "gates", name))
    host = np.arange(SIZE, dtype=float) if block is None else block.copy_to_host()
    return cuda.to_device(host * 2 + i + ord(name))


def source(where: str, name: str, block_id: Any = None) -> Any:
    """Be the first user function."""
    return step(None, where, name, block_id)


def expected(names: str, i: int) -> Any:
    """Give what the functions make of a partition."""
    host = np.arange(SIZE, dtype=float)
    for name in names:
        host = host * 2 + i + ord(name)
    return host


class DeviceJob:
    """The graph.

    Parameters
    ----------
    x
        The cluster.
    n
        Partitions.
    """

    def __init__(self, x: Any, n: int) -> None:
        self.x = x
        self.n = n
        self._token = uuid4().hex[:8]
        made = da.map_blocks(
            source, str(x.where), "a", chunks=((SIZE,) * n,), dtype=float, meta=np.empty(0), name=f"a-{self._token}"
        )
        self.milestone = dr.checkpoint(self.then(made, "b"), "clean")
        self.result = self.then(self.milestone, "c")

    def then(self, block: Any, name: str) -> Any:
        """Apply one more user function to each partition."""
        return block.map_blocks(
            step, str(self.x.where), name, dtype=float, meta=np.empty(0), name=f"{name}-{self._token}"
        )

    def right(self, collection: Any, names: str) -> None:
        """Check that every partition is an array on a device, with the right items."""
        found = self.x.client.compute(list(collection.to_delayed().ravel()))
        for i, part in enumerate(self.x.client.gather(found)):
            assert type(part).__name__ == "DeviceNDArray"
            np.testing.assert_array_equal(part.copy_to_host(), expected(names, i))
