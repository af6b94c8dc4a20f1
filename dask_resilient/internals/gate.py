"""The scheduler's side of the gate: a worker that is to get no more tasks gets none.

Dask gives tasks only to workers whose status is "running" on the scheduler, so a shut worker is "paused" there. That
leaves what it was sent before, and what is about to be stolen for it: these are taken back, except what it executes.
Which that is only the worker knows for sure, so one that goes on is asked first. And a status that the worker reports
would count, as after a pause for memory: it is remembered, and counts when the gate is opened. The worker's side is in
:mod:`dask_resilient.internals.worker_gate`.

A shut worker serves its data and ends what it executes. What is bound to it (by address, or as an output of a P2P
shuffle) waits, as for a worker that is paused for memory.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass
from time import time
from typing import Any

from dask.typing import Key
from distributed.core import Status

logger = logging.getLogger("dask_resilient")

AGAIN = 1.0
"""Seconds until it is looked again at what a shut worker has; heartbeats come twice a second with up to ten workers."""

_OP = "worker-status-change"
_OURS = ("init", "running", "paused")
"""Statuses that are ours to change; with any other the worker is leaving."""


@dataclass(slots=True)
class _Shut:
    """A worker that is shut."""

    ws: Any
    said: str
    """The status that the worker itself reported last; counts when it is opened."""
    asked: bool = False
    """Whether it is awaited what the worker says that it executes."""
    busy: frozenset[Key] = frozenset()
    """What it executes by its own word: as it starts nothing more, that stays true until each of them ends."""


class Gate:
    """Keeps workers from getting tasks.

    Wraps the scheduler's handler of ``worker-status-change`` until `undo`. All calls come on the scheduler's loop, and
    none out of a transition.

    Parameters
    ----------
    scheduler
        The `distributed.Scheduler`.
    """

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        self._shut: dict[str, _Shut] = {}
        self._original: Callable[..., None] = scheduler.stream_handlers[_OP]
        scheduler.stream_handlers[_OP] = self._status_change

    @property
    def shut_workers(self) -> set[str]:
        """Give the addresses of the workers that are shut."""
        return {address for address in self._shut if self._find(address) is not None}

    def shut(self, address: str, *, keep: Collection[Key] = (), ask: bool = False) -> list[Key]:
        """Give a worker no more tasks, and take back what it was given and does not execute.

        What it executes is known from its last heartbeat. A task that began since is taken back too: it runs twice, and
        Dask drops whatever the first run ends in, at no charge to the task. Where that matters, as the worker may well
        go on, ask it: then its tasks are taken back as soon as it has answered (`told`), and where it does not answer
        within a second, then. A task that ended since, and was sent there again, is taken back a moment later; so is
        what comes to the worker in any other way.

        Parameters
        ----------
        address
            Of the worker; nothing is done if it is unknown.
        keep
            Keys of tasks that are not taken back.
        ask
            Whether the caller asks the worker what it executes.

        Returns
        -------
        list of Key
            What was taken back.
        """
        ws = self._scheduler.workers.get(address)
        if ws is None:
            return []
        shut = self._find(address)
        if shut is None:
            shut = self._shut[address] = _Shut(ws, ws.status.name if ws.status.name in _OURS else "running")
            self._scheduler.loop.call_later(AGAIN, self._again, shut)
            shut.asked = ask
        elif not ask:
            shut.asked = False
        stimulus_id = f"resilience-gate-{time()}"
        if ws.status.name in _OURS:
            self._scheduler.handle_worker_status_change("paused", ws, stimulus_id)
        return self._take_back(shut, keep, stimulus_id)

    def told(self, address: str, busy: Collection[Key]) -> list[Key]:
        """Take back what a shut worker does not execute by its own word, now that it starts nothing any more.

        Parameters
        ----------
        address
            Of the worker; nothing is done unless it is shut.
        busy
            Keys of what it executes.

        Returns
        -------
        list of Key
            What was taken back.
        """
        shut = self._find(address)
        if shut is None:
            return []
        shut.asked, shut.busy = False, frozenset(busy)
        return self._take_back(shut, (), f"resilience-gate-{time()}")

    def open(self, address: str) -> None:
        """Give a worker tasks again, if by its own word it takes any."""
        shut = self._find(address)
        self._shut.pop(address, None)
        if shut is not None and shut.ws.status == Status.paused:
            self._scheduler.handle_worker_status_change(shut.said, shut.ws, f"resilience-gate-{time()}")

    def removed(self, address: str) -> None:
        """Forget a worker that has left."""
        self._shut.pop(address, None)

    def undo(self) -> None:
        """Open everything, and give the scheduler its own handler back."""
        for address in list(self._shut):
            self.open(address)
        if self._scheduler.stream_handlers.get(_OP) == self._status_change:
            self._scheduler.stream_handlers[_OP] = self._original
        # Else somebody wrapped ours: with nothing shut, it does what the original does.

    def _find(self, address: str) -> _Shut | None:
        shut = self._shut.get(address)
        # Another worker may have come to the same address.
        return shut if shut is not None and self._scheduler.workers.get(address) is shut.ws else None

    def _take_back(self, shut: _Shut, keep: Collection[Key], stimulus_id: str) -> list[Key]:
        held = () if shut.asked else shut.ws.processing
        stays = {*keep, *shut.busy}
        keys = [ts.key for ts in (*held, *self._coming(shut.ws)) if not _stays(ts) and ts.key not in stays]
        if keys:
            self._scheduler.transitions(dict.fromkeys(keys, "released"), stimulus_id)
        return keys

    def _again(self, shut: _Shut) -> None:
        if self._find(shut.ws.address) is not shut:
            return
        shut.asked = False
        if self._take_back(shut, (), f"resilience-gate-{time()}"):
            logger.debug("dask-resilient: took back what worker %s had although it is shut", shut.ws.address)
        self._scheduler.loop.call_later(AGAIN, self._again, shut)

    def _coming(self, ws: Any) -> list[Any]:
        """Give the tasks that are being stolen for a worker: Dask would send them, whatever its status is by then."""
        stealing = self._scheduler.extensions.get("stealing")
        return [] if stealing is None else [ts for ts, info in stealing.in_flight.items() if info["thief"] is ws]

    def _status_change(self, **msg: Any) -> None:
        try:
            if self._remembered(**msg):
                return
        except Exception:
            logger.exception("dask-resilient: a worker that is to get no tasks may get some: %r", msg)
            self._shut.pop(msg["worker"], None)
        self._original(**msg)

    def _remembered(self, *, worker: str, status: str, stimulus_id: str) -> bool:
        """Remember a status for later, unless it counts at once."""
        shut = self._find(worker)
        if shut is None or status not in _OURS:
            return False
        if shut.ws.status == Status.closing_gracefully:
            # Dask could not retire it, and gave it the status back that it had on the scheduler: maybe ours. A worker
            # that has not paused by itself never resumes by itself.
            if status == "paused" and shut.said == "running":
                self._scheduler.worker_send(worker, {"op": _OP, "status": "running", "stimulus_id": stimulus_id})
                status = "running"
            self._scheduler.handle_worker_status_change("paused", shut.ws, stimulus_id)
        shut.said = status
        return True


def _stays(ts: Any) -> bool:
    """Say whether a task stays where it is: it is executed, or is an actor that others may know already."""
    ws = ts.processing_on
    return ts in ws.executing or ts in ws.long_running or ts.actor
