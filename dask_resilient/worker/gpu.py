"""The GPU of a worker: read by a probe process instead of on the event loop, and told to the scheduler."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Mapping
from typing import Any

from dask_resilient.internals.nvml import off_loop, sees_gpu
from dask_resilient.probes import device as probes

logger = logging.getLogger("dask_resilient")


class Gpu:
    """Does nothing on a worker on which Dask sees no GPU.

    Parameters
    ----------
    worker
        The `distributed.Worker`.
    send
        Sends a message to the scheduler; may be called from any thread.
    """

    def __init__(self, worker: Any, send: Callable[[Mapping[str, Any]], None]) -> None:
        self._worker = worker
        self._send = send
        self._gauge: probes.Gauge | None = None
        self._nvml_back: Callable[[], None] = lambda: None

    def start(self) -> None:
        """Start watching; whatever goes wrong leaves Dask's own ways as they were."""
        if not sees_gpu(self._worker):
            return
        try:
            self._gauge = probes.acquire(gpu=True)
            self._nvml_back = off_loop(self._worker, self._gauge)
            self._gauge.tell(lambda device: self._send({"kind": "device", **device.to_dict()}))
        except Exception:
            logger.exception("dask-resilient: the GPU of this worker cannot be watched; Dask's own ways go on")

    def stop(self) -> None:
        """Undo everything."""
        self._nvml_back()
        gauge, self._gauge = self._gauge, None
        if gauge is not None:
            probes.release()

    def device(self) -> str:
        """Give the device of this worker: its own GPU by UUID, else the worker itself."""
        return self.uuid() or f"host:{socket.gethostname()}/{self._worker.name}"

    def uuid(self) -> str | None:
        """Give the UUID of the GPU that is this worker's own, None if it has none or that is not known yet."""
        device = self._gauge.device if self._gauge is not None else None
        return device.uuid if device is not None and device.own else None
