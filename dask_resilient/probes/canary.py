"""The canary: does the device still compute right? In the worker's own process and context.

Two matrices of small integers are multiplied in float32 and compared, bit for bit, with the product of the same
integers in int32. With entries from -3 to 3 and 256 terms no partial sum exceeds 9 x 256 = 2,304, far below the 2**24
up to which float32 holds every integer, and the entries fit the 10 bits of TF32: so every order of summation, on every
unit of every device, gives the same bits. Then two patterns and the own address are written to a few MiB and read back.

A right answer says that this product was right and no more: of silent corruption some is found so, not all.
"""

from __future__ import annotations

import importlib.util
import logging
import threading
from collections.abc import Callable
from functools import lru_cache
from time import time
from typing import Any

import numpy as np

from dask_resilient.core.cuda_errors import TaskFault, classify
from dask_resilient.core.messages import texts
from dask_resilient.core.readings import Reading, canary, task_error

logger = logging.getLogger("dask_resilient")

SIDE = 256
LARGEST = 3
WORDS = 2**20
"""Words of 4 bytes of the memory pattern."""

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
            Called with the readings, from a thread; a try that hangs is unknown after `SECONDS`.
        """
        if self._thread is not None and self._thread.is_alive():
            return
        over = threading.Lock()

        def tell(readings: list[Reading]) -> None:
            if over.acquire(blocking=False):
                timer.cancel()
                done(readings)

        def late() -> None:
            tell([canary(device, time(), None, reason=f"it did not come back within {SECONDS:g} s")])

        timer = threading.Timer(SECONDS, late)
        timer.daemon = True
        self._thread = threading.Thread(
            target=lambda: tell(readings(device, own_gpu)), name="dask-resilient-canary", daemon=True
        )
        timer.start()
        self._thread.start()


def readings(device: str, own_gpu: bool) -> list[Reading]:
    """Try the device, and give what came of it. Blocks; never raises."""
    if own_gpu and importlib.util.find_spec("cupy") is None:
        return [canary(device, time(), None, reason="no CuPy in this environment")]
    try:
        if own_gpu:
            import cupy

            # A stream of its own: the tasks' work goes on beside it.
            with cupy.cuda.Stream(non_blocking=True):
                right = is_right(cupy)
        else:
            right = is_right(np)
    except Exception as e:
        fault = classify(texts(e))
        return _failed(device, fault, str(e) or repr(e))
    return [canary(device, time(), right)]


def _failed(device: str, fault: TaskFault | None, reason: str) -> list[Reading]:
    found = [canary(device, time(), None, fault, reason)]
    if fault is not None and fault.sticky:
        found.append(task_error(device, fault, time()))
    return found


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
    memory[:] = xp.arange(WORDS, dtype=xp.uint32)
    return bool((memory == xp.arange(WORDS, dtype=xp.uint32)).all())


@lru_cache(maxsize=1)
def _known() -> tuple[Any, Any, Any]:
    """Give two matrices and their product, by integers on the host."""
    random = np.random.default_rng(20261202)
    left, right = random.integers(-LARGEST, LARGEST + 1, (2, SIDE, SIDE), dtype=np.int32)
    return left, right, left @ right
