"""Pinned host memory for staging, from one bounded pool a process.

A device copies to pinned memory about twice as fast as to ordinary memory, but pinning is slow and takes memory from
everybody, so blocks are kept and used again, within a bound. Beyond the bound, and where pinning fails, ordinary memory
does the same work.

Who takes memory gets an array, and any view of it may be passed on: the block returns when the last one is gone. That
may happen in any thread, at any time, also inside the pool itself when the garbage collector runs there. So returning
does nothing but append to a deque; the next one who takes memory sorts it in.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections import deque
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dask_resilient.partitions import driver
from dask_resilient.partitions.driver import DriverError

__all__ = ["POOL", "Pool"]

LIMIT = 256 * 2**20
"""Bytes that are pinned at a time, in use or kept: four chunks of the largest size."""

SMALLEST = 64 * 2**10
"""Below this a copy takes no time worth a block."""


@dataclass(frozen=True, slots=True)
class _Block:
    address: int
    nbytes: int
    device: int
    """In whose context it was pinned; it serves all of them."""


class Pool:
    """Gives out staging memory; may be used from any thread.

    Parameters
    ----------
    limit
        Bytes that may be pinned at a time.
    """

    def __init__(self, limit: int = LIMIT) -> None:
        self.limit = limit
        self.pinned = 0
        """Bytes that are pinned now."""
        self._kept: dict[int, list[_Block]] = {}
        self._returned: deque[_Block] = deque()
        self._lock = threading.Lock()

    def take(self, nbytes: int, device: int) -> npt.NDArray[np.uint8]:
        """Give memory to copy to from a device: pinned if the pool has room for it.

        Parameters
        ----------
        nbytes
            How much.
        device
            Ordinal of a device whose context is alive.
        """
        block = self._take(nbytes, device)
        if block is None:
            return np.empty(nbytes, np.uint8)
        memory = (ctypes.c_ubyte * block.nbytes).from_address(block.address)
        # Nothing to do when the interpreter ends: the driver takes back all memory of a process.
        weakref.finalize(memory, self._returned.append, block).atexit = False
        return np.frombuffer(memoryview(memory), np.uint8, nbytes)

    def trim(self) -> None:
        """Unpin what nobody uses."""
        with self._lock:
            self._sort_in()
            self._unpin(self.limit)

    def _take(self, nbytes: int, device: int) -> _Block | None:
        size = _size_class(nbytes)
        if nbytes < SMALLEST or size > self.limit:
            return None
        with self._lock:
            self._sort_in()
            if self._kept.get(size):
                return self._kept[size].pop()
            self._unpin(self.pinned + size - self.limit)
            if self.pinned + size > self.limit:
                return None
            try:
                block = _Block(driver.pinned(device, size), size, device)
            except DriverError:
                return None
            self.pinned += size
            return block

    def _sort_in(self) -> None:
        while self._returned:
            block = self._returned.popleft()
            self._kept.setdefault(block.nbytes, []).append(block)

    def _unpin(self, nbytes: int) -> None:
        """Unpin kept blocks, the largest first, until so many bytes are free again or none is left."""
        for size in sorted(self._kept, reverse=True):
            blocks = self._kept[size]
            while blocks and nbytes > 0:
                block = blocks.pop()
                self.pinned -= size
                nbytes -= size
                try:
                    driver.free_pinned(block.device, block.address)
                except DriverError:
                    continue  # the device is gone, and its pinned memory with it


def _size_class(nbytes: int) -> int:
    """Round up to one of four sizes an octave, so that blocks fit again and at most a fifth of one is unused."""
    step = 1 << max(0, nbytes.bit_length() - 3)
    return -(-nbytes // step) * step


POOL = Pool()
"""The pool of this process."""
