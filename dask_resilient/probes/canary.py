"""The canary: does the device still compute right? In the worker's own process and context.

Two matrices of small integers are multiplied in float32 and compared, bit for bit, with the product of the same
integers in int32. With entries from -3 to 3 and 256 terms no partial sum exceeds 9 x 256 = 2,304, far below the 2**24
up to which float32 holds every integer, and the entries fit the 10 bits of TF32: so every order of summation, on every
unit of every device, gives the same bits. Then two patterns and the own address are written to a few MiB and read back.

A right answer says that this product was right and no more: of silent corruption some is found so, not all.
"""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Callable
from functools import lru_cache
from time import time
from typing import Any

import numpy as np

from dask_resilient.core.cuda_errors import classify
from dask_resilient.core.messages import sendable, texts
from dask_resilient.core.readings import Reading, canary, task_error

SIDE = 256
LARGEST = 3
WORDS = 2**20
"""Words of 4 bytes of the memory pattern."""

REASON = 300
"""Characters of an error that are told."""

SECONDS = 30.0
"""Longest that an answer is waited for. Source: nvrx, CudaHealthCheck."""


class Canary:
    """Tries the device, one try at a time, each in a thread of its own."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None

    def start(self, device: str, own_gpu: bool, done: Callable[[list[Reading]], None]) -> None:
        """Try the device; does nothing while a try is under way.

        Parameters
        ----------
        device
            Its name in the readings.
        own_gpu
            Whether the process has a GPU of its own; else NumPy on the host is tried.
        done
            Called with the readings, from a thread; a try that hangs is unknown after `SECONDS`, until it comes back.
        """
        if self._thread is not None and self._thread.is_alive():
            return
        one, over = threading.Lock(), threading.Event()

        def run() -> None:
            found = readings(device, own_gpu)
            with one:
                over.set()
                done(found)

        def late() -> None:
            if over.wait(SECONDS):
                return
            with one:  # so that it never follows what came back after all
                if not over.is_set():
                    done([canary(device, time(), None, reason=f"it did not come back within {SECONDS:g} s")])

        try:
            self._thread = threading.Thread(target=run, name="dask-resilient-canary", daemon=True)
            self._thread.start()
            threading.Thread(target=late, name="dask-resilient-canary-late", daemon=True).start()
        except RuntimeError as e:  # no more threads can be started
            done([canary(device, time(), None, reason=str(e))])


def readings(device: str, own_gpu: bool) -> list[Reading]:
    """Try the device, and give what came of it. Blocks; never raises."""
    try:
        if own_gpu and importlib.util.find_spec("cupy") is None:
            return [canary(device, time(), None, reason="no CuPy in this environment")]
        return [canary(device, time(), _try_gpu() if own_gpu else is_right(np))]
    except Exception as e:
        said = texts(e)
        fault = classify(said)
        found = [canary(device, time(), None, fault, sendable(said[0], REASON))]
        if fault is not None and fault.sticky:
            found.append(task_error(device, fault, time()))
        return found


def _try_gpu() -> bool:
    import cupy

    with _stream():
        return is_right(cupy)


@lru_cache(maxsize=1)
def _stream() -> Any:
    """Give a stream of its own, so that the tasks' work goes on beside it.

    Always the same: CuPy keeps the memory that was freed on a stream for that stream.
    """
    import cupy

    return cupy.cuda.Stream(non_blocking=True)


def is_right(xp: Any) -> bool:
    """Say whether products and memory are right.

    Parameters
    ----------
    xp
        NumPy, CuPy, or a module with their functions.
    """
    left, right, expected = _known()
    product = xp.asarray(left, dtype=xp.float32) @ xp.asarray(right, dtype=xp.float32)
    if not bool((product == xp.asarray(expected, dtype=xp.float32)).all()):
        return False
    memory = xp.empty(WORDS, dtype=xp.uint32)
    for pattern in (0x55555555, 0xAAAAAAAA):
        memory[:] = pattern
        if not bool((memory == xp.uint32(pattern)).all()):
            return False
    addresses = xp.arange(WORDS, dtype=xp.uint32)
    memory[:] = addresses
    return bool((memory == addresses).all())


@lru_cache(maxsize=1)
def _known() -> tuple[Any, Any, Any]:
    """Give two matrices and their product, by integers on the host."""
    random = np.random.default_rng(20261202)
    left, right = random.integers(-LARGEST, LARGEST + 1, (2, SIDE, SIDE), dtype=np.int32)
    return left, right, left @ right
