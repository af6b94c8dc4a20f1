"""The worker's side of the gate: a worker that is shut starts no task, whatever it was sent.

Its state machine is paused, and its status is not: Dask's memory monitor sets a worker that is "paused" to "running"
again. The monitor may also pause the worker itself, and let it go on: that event does not reach the state machine while
the gate is shut. The scheduler's side is in :mod:`dask_resilient.internals.gate`.
"""

from __future__ import annotations

from collections.abc import Callable
from time import time
from typing import Any

from distributed.core import Status
from distributed.worker_state_machine import PauseEvent, StateMachineEvent, UnpauseEvent


class WorkerGate:
    """Keeps a worker from starting tasks and from fetching their inputs; it serves, and ends what it executes.

    While it is shut, the worker's `handle_stimulus` is wrapped. All calls come on the worker's event loop.

    Parameters
    ----------
    worker
        The `distributed.Worker`.
    """

    def __init__(self, worker: Any) -> None:
        self._worker = worker
        self._on = False
        """Whether ours is in the worker's chain of calls."""
        self._previous: Any = None
        self._original: Callable[..., None]
        self.is_shut = False

    def shut(self) -> None:
        """Start no more tasks; may be called out of a transition."""
        if self.is_shut:
            return
        self.is_shut = True
        if not self._on:
            self._on = True
            self._previous = self._worker.__dict__.get("handle_stimulus")
            self._original = self._worker.handle_stimulus
            self._worker.handle_stimulus = self._handle_stimulus
        self._worker.handle_stimulus(PauseEvent(stimulus_id=f"resilience-gate-{time()}"))

    def open(self) -> None:
        """Start tasks again, unless the worker has paused itself."""
        if not self.is_shut:
            return
        self.is_shut = False
        self._take_away()
        if self._worker.status == Status.running:
            self._worker.handle_stimulus(UnpauseEvent(stimulus_id=f"resilience-gate-{time()}"))

    def undo(self) -> None:
        """Open, and give the worker its own method back."""
        self.open()

    def _take_away(self) -> None:
        if self._worker.__dict__.get("handle_stimulus") != self._handle_stimulus:
            return  # somebody wrapped ours: it stays where it is, and when open does what the original does
        if self._previous is None:
            del self._worker.handle_stimulus
        else:
            self._worker.handle_stimulus = self._previous
        self._on = False

    def _handle_stimulus(self, *events: StateMachineEvent) -> None:
        if self.is_shut:
            events = tuple(event for event in events if not isinstance(event, UnpauseEvent))
        self._original(*events)
