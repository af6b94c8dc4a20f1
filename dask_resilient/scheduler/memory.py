"""What later runs know of quarantined devices: written as it is decided, read when the plugin starts."""

from __future__ import annotations

import logging
import socket
from time import time

from dask_resilient.core import remembered
from dask_resilient.core.actions import OURS, Cause, Decision, Phase
from dask_resilient.core.devices import CANARY, Device
from dask_resilient.core.messages import one_line
from dask_resilient.core.quarantine import Book
from dask_resilient.core.remembered import Remembered
from dask_resilient.scheduler.queue import StoreQueue

logger = logging.getLogger("dask_resilient")


class Memory:
    """Remembers devices in the store, or under the setting ``resilience.quarantine.path``.

    Parameters
    ----------
    run
        Id of this life of the plugin.
    queue
        The way to the store.
    path
        Where to, None for the store.
    """

    def __init__(self, run: str, queue: StoreQueue, path: str | None) -> None:
        self._run = run
        self._queue = queue
        self._path = path

    async def recall(self, book: Book) -> list[Decision]:
        """Tell the book what earlier runs have decided; gives what that means for workers that are there."""
        entries, failed = await self._queue.remembered(self._path)
        if self._path is not None and not failed:
            await self._queue.prepare(self._path)
        decided: list[Decision] = []
        for device, each in entries.items():
            state = remembered.state(each)
            if isinstance(state, Remembered) and state.out:
                cause = Cause(state.rule, state.evidence, by=state.by)
                since = min(state.since, time())  # it may come from a clock that is ahead of ours
                logger.warning(
                    "dask-resilient: device %s of %s is out of service since an earlier run: %s (%s)",
                    *(device, state.host, state.rule, one_line("; ".join(state.evidence[:3]))),
                )
                decided += book.remember(device, state.host, cause, since, state.failed, state.until_released)
        return decided

    def decided(self, decision: Decision, device: Device) -> None:
        """Write down what later runs have to know of a decision."""
        event = _event(decision)
        if not event or not remembered.is_remembered(decision.device):
            return
        entry = remembered.make_entry(
            event,
            decision.device,
            time=decision.time,
            phase=str(decision.after),
            rule=decision.cause.rule,
            evidence=decision.cause.evidence or ("no reason was given",),
            # Where no worker of it was ever seen, nobody knows its host.
            host=decision.host or socket.gethostname(),
            run=self._run,
            by=decision.cause.by,
            failed=device.failed,
            until_released=device.locked,
        )
        self._queue.remember(self._path, decision.device, entry)


def _event(decision: Decision) -> str:
    if decision.declined:
        return ""
    if decision.after is Phase.QUARANTINED and decision.before is Phase.QUARANTINED and decision.cause.by == OURS:
        return remembered.TRIED if decision.cause.rule == CANARY else ""
    if decision.after is Phase.QUARANTINED:
        return remembered.QUARANTINED
    return remembered.RELEASED if decision.before is Phase.QUARANTINED else ""
