"""NVML off the event loops: Dask's system monitor and worker get what a probe process read.

Dask calls NVML twice a second on the event loop of every scheduler, nanny and worker that sees a GPU. A call that hangs
stops the whole process, and on GPU 0 the scheduler; a call that fails freezes all metrics of a worker. Two modules of
Dask look NVML up under the name ``nvml``: there a stand-in is put, that answers at once, and everything else of Dask
(its GPU pages, the metrics of workers) goes on as it was. Setting ``distributed.diagnostics.nvml`` to false instead
would break dask-cuda, which asks Dask for the CUDA context.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Any, Protocol


class Source(Protocol):
    """What the stand-in asks; every method answers at once."""

    device: Any
    """With ``name`` and ``memory`` in bytes; None while unknown."""

    def real_time(self) -> dict[str, Any]:
        """Give ``utilization`` in percent and ``memory-used`` in bytes."""


class _StandIn:
    """Answers the three questions that Dask asks on event loops, and passes everything else on."""

    def __init__(self, real: Any) -> None:
        self._real = real
        self.sources: list[Source | None] = []

    def _source(self) -> Source | None:
        return next((source for source in self.sources if source is not None and source.device is not None), None)

    def device_get_count(self) -> int:
        """Say whether values can be given; a server that is started from now on asks before anything else."""
        return 0 if self._source() is None else 1

    def one_time(self) -> dict[str, Any]:
        """Give what does not change."""
        source = self._source()
        if source is None:
            raise RuntimeError("the device of this process is not known")
        return {"memory-total": source.device.memory, "name": source.device.name}

    def real_time(self) -> dict[str, Any]:
        """Give the present state; in schedulers and nannies nobody looks at it."""
        source = self._source()
        return {"utilization": None, "memory-used": math.nan} if source is None else source.real_time()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


_lock = threading.Lock()
_stand_in: list[_StandIn] = []


def sees_gpu(server: Any) -> bool:
    """Say whether Dask asks NVML in the process of a server, or would if it were not kept from that."""
    return server.monitor.gpu_name is not None or bool(_stand_in)


def off_loop(server: Any, source: Source | None) -> Callable[[], None]:
    """Let Dask ask `source` instead of NVML in this process, and give the function that undoes that.

    Several servers of one process share the stand-in; it goes with the last of them. Where Dask does not ask NVML
    anyway, nothing is done.

    Parameters
    ----------
    server
        A scheduler, worker or nanny of Dask.
    source
        What to ask; None in schedulers and nannies, whose values nobody uses.
    """
    if not sees_gpu(server):
        return lambda: None
    with _lock:
        if not _stand_in:
            _put()
        stand_in = _stand_in[0]
        stand_in.sources.append(source)
    done = False

    def undo() -> None:
        nonlocal done
        with _lock:
            if done:
                return
            done = True
            stand_in.sources.remove(source)
            if not stand_in.sources:
                _take_away()

    return undo


def _put() -> None:
    from distributed import system_monitor, worker

    _stand_in.append(_StandIn(system_monitor.nvml))
    for module in (system_monitor, worker):
        module.nvml = _stand_in[0]  # type: ignore[attr-defined]


def _take_away() -> None:
    from distributed import system_monitor, worker

    stand_in = _stand_in.pop()
    for module in (system_monitor, worker):
        if getattr(module, "nvml", None) is stand_in:
            module.nvml = stand_in._real  # type: ignore[attr-defined]
