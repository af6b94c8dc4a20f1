"""The sides on workers and nannies: handed to all that are there, and by Dask to all that come."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from dask_resilient.internals.nvml import off_loop

logger = logging.getLogger("dask_resilient")

NANNY_SECONDS = 2.0
"""Longest that leaving waits for a nanny, which may be gone with its host."""


class Sides:
    """Adds and removes the sides on workers and nannies, and takes NVML off the scheduler's own event loop.

    As ``register_worker_plugin`` and its like do, but a worker that dies just now must not leave the others without.

    Parameters
    ----------
    scheduler
        The `distributed.Scheduler`.
    name
        Name of the plugins.
    """

    def __init__(self, scheduler: Any, name: str) -> None:
        self._scheduler = scheduler
        self._name = name
        self._nvml_back: Callable[[], None] = lambda: None
        self._nannies: set[str] = set()

    async def add(self, worker: bytes, nanny: bytes) -> None:
        """Hand out the pickled plugins of workers and nannies."""
        scheduler = self._scheduler
        self._nvml_back = off_loop(scheduler, None)
        scheduler.worker_plugins[self._name] = worker
        await scheduler.broadcast(msg={"op": "plugin-add", "plugin": worker, "name": self._name}, on_error="return")
        # Not under the lock of `register_nanny_plugin`: a nanny whose worker never comes up would hold us up.
        scheduler.nanny_plugins[self._name] = nanny
        for address in scheduler.workers:
            self.joined(address)
        msg = {"op": "plugin_add", "plugin": nanny, "name": self._name}
        await scheduler.broadcast(msg=msg, nanny=True, on_error="return")

    def joined(self, worker: str) -> None:
        """Remember the nanny of a worker that is there."""
        nanny = self._scheduler.workers[worker].nanny
        if nanny is not None:
            self._nannies.add(nanny)

    async def remove(self) -> None:
        """Take them away again; nothing happens where that was done."""
        scheduler = self._scheduler
        if scheduler.worker_plugins.pop(self._name, None) is not None:
            await scheduler.broadcast(msg={"op": "plugin-remove", "name": self._name}, on_error="return")
        if scheduler.nanny_plugins.pop(self._name, None) is not None:
            for address in scheduler.workers:
                self.joined(address)  # one that joined before our hooks were there
            await asyncio.gather(*map(self._leave, self._nannies))
        self.close()

    def close(self) -> None:
        """Let go of this process; nannies and workers that end let go of theirs."""
        self._nvml_back()

    async def _leave(self, nanny: str) -> None:
        """Tell one nanny, also one whose worker has died and is not back yet: `broadcast` would pass it over."""
        try:
            rpc = self._scheduler.rpc(nanny)
            await asyncio.wait_for(rpc.plugin_remove(name=self._name), NANNY_SECONDS)
        except Exception as e:
            logger.debug("dask-resilient: nanny %s is gone: %r", nanny, e)
