"""The sides on workers and nannies: handed to all that are there, and by Dask to all that come."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Any

from dask_resilient.internals.nvml import off_loop

logger = logging.getLogger("dask_resilient")

WAIT_SECONDS = 3.0
"""Longest that installing and leaving wait for the answers of workers, and of nannies. One of them may hang, or be gone
with its host; what it was sent still counts when it goes on."""


class Sides:
    """Adds and removes the sides on workers and nannies, and takes NVML off the scheduler's own event loop.

    As ``register_worker_plugin`` and its like do, but one that dies just now, or does not answer, must not leave the
    others without.

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
        self._unanswered: set[asyncio.Task[None]] = set()

    async def add(self, worker: bytes, nanny: bytes) -> None:
        """Hand out the pickled plugins of workers and nannies."""
        scheduler = self._scheduler
        self._nvml_back = off_loop(scheduler, None)
        scheduler.worker_plugins[self._name] = worker
        # Not under the lock of `register_nanny_plugin`: a nanny whose worker never comes up would hold us up.
        scheduler.nanny_plugins[self._name] = nanny
        for address in scheduler.workers:
            self.joined(address)
        await asyncio.gather(
            self._tell(list(scheduler.workers), "plugin-add", plugin=worker),
            self._tell(self._nannies, "plugin_add", plugin=nanny),
        )

    def joined(self, worker: str) -> None:
        """Remember the nanny of a worker that is there: the scheduler forgets it with the worker."""
        nanny = self._scheduler.workers[worker].nanny
        if nanny is not None:
            self._nannies.add(nanny)

    def gone(self, nanny: str) -> None:
        """Forget a nanny that was closed: nobody waits for it."""
        self._nannies.discard(nanny)

    async def remove(self) -> None:
        """Take them away again; nothing happens where that was done."""
        scheduler = self._scheduler
        for address in scheduler.workers:
            self.joined(address)  # one that joined before our hooks were there
        workers = list(scheduler.workers) if scheduler.worker_plugins.pop(self._name, None) is not None else []
        nannies = self._nannies if scheduler.nanny_plugins.pop(self._name, None) is not None else set()
        await asyncio.gather(self._tell(workers, "plugin-remove"), self._tell(nannies, "plugin_remove"))
        self._nvml_back()

    def close(self) -> None:
        """Let go of this process; nannies and workers that end let go of theirs."""
        self._nvml_back()
        for task in self._unanswered:
            task.cancel()

    async def _tell(self, addresses: Iterable[str], op: str, **fields: Any) -> None:
        """Call an operation on some servers, and wait within bounds for their answers."""
        tasks = {asyncio.ensure_future(self._call(address, op, fields)) for address in addresses}
        if not tasks:
            return
        _, late = await asyncio.wait(tasks, timeout=WAIT_SECONDS)
        self._unanswered |= late
        for task in late:
            task.add_done_callback(self._unanswered.discard)

    async def _call(self, address: str, op: str, fields: dict[str, Any]) -> None:
        try:
            await getattr(self._scheduler.rpc(address), op)(name=self._name, **fields)
        except Exception as e:
            logger.debug("dask-resilient: %s of %s: %r", op, address, e)
