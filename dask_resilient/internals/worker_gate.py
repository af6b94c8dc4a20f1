"""The worker's side of the gate: a worker that is shut starts no task, whatever it was sent.

Its state machine is paused, and its status is not: Dask's memory monitor sets a worker that is "paused" to "running"
again. The monitor may also pause the worker itself, and let it go on: that event does not reach the state machine while
the gate is shut. The scheduler's side is in :mod:`dask_resilient.internals.gate`.

When a task ends, the state machine chooses the next one before it lets anybody hear how the first ended. So who is to
shut the gate for a failure hears of it here, before the state machine does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import time
from typing import Any

from dask.typing import Key
from distributed.core import Status
from distributed.worker_state_machine import ExecuteFailureEvent, PauseEvent, StateMachineEvent, UnpauseEvent

Hear = Callable[[Sequence[ExecuteFailureEvent]], None]


class WorkerGate:
    """Keeps a worker from starting tasks and from fetching their inputs; it serves, and ends what it executes.

    While it is shut or somebody listens, the worker's `handle_stimulus` is wrapped. All calls come on the event loop.

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
        self._hear: Hear | None = None
        self.is_shut = False

    def listen(self, hear: Hear) -> None:
        """Have failures of tasks heard before the worker handles them, until `undo`.

        Parameters
        ----------
        hear
            Takes those that are about to be handled together, then, once they are, none. It may shut the gate, and
            never raises.
        """
        self._hear = hear
        self._put()

    def shut(self) -> None:
        """Start no more tasks; may be called out of a transition."""
        if self.is_shut:
            return
        self.is_shut = True
        self._put()
        self._worker.handle_stimulus(PauseEvent(stimulus_id=f"resilience-gate-{time()}"))

    def open(self) -> None:
        """Start tasks again, unless the worker has paused itself."""
        if not self.is_shut:
            return
        self.is_shut = False
        if self._hear is None:
            self._take_away()
        if self._worker.status == Status.running:
            self._worker.handle_stimulus(UnpauseEvent(stimulus_id=f"resilience-gate-{time()}"))

    def busy(self) -> list[Key]:
        """Give what is executed: while it is shut nothing is added to that."""
        return [ts.key for ts in (*self._worker.state.executing, *self._worker.state.long_running)]

    def undo(self) -> None:
        """Open, listen no more, and give the worker its own method back."""
        self._hear = None
        self.open()
        self._take_away()

    def _put(self) -> None:
        if not self._on:
            self._on = True
            self._previous = self._worker.__dict__.get("handle_stimulus")
            self._original = self._worker.handle_stimulus
            self._worker.handle_stimulus = self._handle_stimulus

    def _take_away(self) -> None:
        if self._worker.__dict__.get("handle_stimulus") != self._handle_stimulus:
            return  # somebody wrapped ours: it stays where it is, and when open does what the original does
        if self._previous is None:
            del self._worker.handle_stimulus
        else:
            self._worker.handle_stimulus = self._previous
        self._on = False

    def _handle_stimulus(self, *events: StateMachineEvent) -> None:
        hear = self._hear
        failures: tuple[ExecuteFailureEvent, ...] = ()
        for event in events:  # nearly always one, and no failure: this is on the way of every event
            if isinstance(event, ExecuteFailureEvent):
                failures += (event,)
        if hear is not None and failures:
            hear(failures)
        if self.is_shut:
            events = tuple(event for event in events if not isinstance(event, UnpauseEvent))
        try:
            self._original(*events)
        finally:
            if hear is not None and failures:
                hear(())
