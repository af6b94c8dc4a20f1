"""The worker's piece of the detour: a load must not wait for dependencies of the task that it stands for.

A worker only ever adds to ``TaskState.dependencies``, and keeps a released task while a dependent of it is known there.
So a load that lands on such a worker would wait for data that is in memory nowhere: a hang without any fault. Before a
``compute-task`` message is handled, dependencies that it does not name are unlinked.

Where the function of the task itself still runs they stay linked, for it may only just have begun. The scheduler, to
which the task is a load without dependencies, may have them dropped all the same; Dask's worker takes that for a broken
state and closes. By then the function has its arguments, so they are unlinked when they are to be dropped.

One more thing happens to a task that is sent, taken back and sent again before it has looked for its inputs: Dask goes
on with it although an input was dropped meanwhile, and it ends in a KeyError. Plain Dask has that race too, but seldom
takes tasks back. Such a task is asked for again instead.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from time import time
from typing import Any

from distributed.worker_state_machine import ExecuteFailureEvent, RescheduleEvent, StateMachineEvent

logger = logging.getLogger("dask_resilient")

_RUNNING = ("executing", "long-running")


class Unlink:
    """Wraps the worker's handlers of ``compute-task`` and ``remove-replicas``, and its `execute`."""

    def __init__(self, worker: Any) -> None:
        self._worker = worker
        self._original: Callable[..., Any] | None = None
        self._remove: Callable[..., Any] | None = None
        self._execute: Callable[..., Any] | None = None
        self._before: Any = None
        """What somebody else had put over the worker's `execute`."""
        self._on = False
        self.overtaken: set[Any] = set()
        """Keys whose function still runs for an earlier run id than the worker has for them now.

        Dask writes the new run id over the old one while the old function runs, and discards its result as stale: a
        value staged by it must not pass for the new run's.
        """

    def install(self) -> None:
        """Put the wrapper over the handler."""
        self._original = self._worker.stream_handlers["compute-task"]
        self._worker.stream_handlers["compute-task"] = self._compute_task
        self._remove = self._worker.stream_handlers["remove-replicas"]
        self._worker.stream_handlers["remove-replicas"] = self._remove_replicas
        self._before = self._worker.__dict__.get("execute")
        self._execute = self._worker.execute
        self._worker.execute = self._run
        self._on = True

    def undo(self) -> None:
        """Give the worker its own handler back."""
        self._on = False
        if self._worker.stream_handlers.get("compute-task") == self._compute_task:
            self._worker.stream_handlers["compute-task"] = self._original
        if self._worker.stream_handlers.get("remove-replicas") == self._remove_replicas:
            self._worker.stream_handlers["remove-replicas"] = self._remove
        if self._worker.__dict__.get("execute") == self._run:
            if self._before is None:
                del self._worker.execute
            else:
                self._worker.execute = self._before

    def _compute_task(self, **msg: Any) -> Any:
        if self._runs(self._worker.state.tasks.get(msg["key"])):
            self.overtaken.add(msg["key"])
        else:
            self.overtaken.discard(msg["key"])
        if self._on:
            try:
                self._unlink(msg)
            except Exception:
                self._on = False
                logger.exception("dask-resilient: cannot unlink dependencies of %r; switched off here", msg.get("key"))
        assert self._original is not None
        return self._original(**msg)

    def _remove_replicas(self, **msg: Any) -> Any:
        if self._on and self.overtaken:
            try:
                self._let_go(msg["keys"])
            except Exception:
                self._on = False
                logger.exception("dask-resilient: cannot let go of %r; switched off here", msg.get("keys"))
        assert self._remove is not None
        return self._remove(**msg)

    async def _run(self, key: Any, *, stimulus_id: str) -> StateMachineEvent:
        assert self._execute is not None
        event: StateMachineEvent = await self._execute(key, stimulus_id=stimulus_id)
        if self._on and isinstance(event, ExecuteFailureEvent) and event.start is None and self._lacks(key):
            return RescheduleEvent(key=key, stimulus_id=f"resilience-unlink-{time()}")
        return event

    def _lacks(self, key: Any) -> bool:
        """Say whether an input of a task is not here, so that its function cannot have begun."""
        ts = self._worker.state.tasks.get(key)
        return ts is not None and any(dep.state != "memory" for dep in ts.dependencies)

    def _let_go(self, keys: Iterable[Any]) -> None:
        """Unlink what is to be dropped from tasks whose function runs for an earlier run."""
        tasks = self._worker.state.tasks
        for dep in (tasks[key] for key in keys if key in tasks):
            for ts in list(dep.dependents):
                if ts.key in self.overtaken and ts.state in _RUNNING and ts.key in self._worker.active_keys:
                    ts.dependencies.discard(dep)
                    dep.dependents.discard(ts)
                    dep.waiters.discard(ts)

    def _runs(self, ts: Any) -> bool:
        """Say whether a task is executed, or was until it was taken back and its function has not ended.

        Of a task that was taken back, "executing before" alone does not say so: one that is sent, taken back and sent
        again as a load, all in one batch of messages, has not looked for its inputs yet, and these may be gone with the
        batch. Dask then runs what it was sent last.
        """
        if ts is None:
            return False
        return ts.state in _RUNNING or (ts.previous in _RUNNING and ts.key in self._worker.active_keys)

    def _unlink(self, msg: dict[str, Any]) -> None:
        state = self._worker.state
        ts = state.tasks.get(msg["key"])
        if ts is None or ts.state == "memory" or self._runs(ts):
            return
        stale = [dep for dep in ts.dependencies if dep.key not in msg["who_has"]]
        for dep in stale:
            ts.dependencies.discard(dep)
            dep.dependents.discard(ts)
            dep.waiters.discard(ts)
            ts.waiting_for_data.discard(dep)
        gone = {dep: "forgotten" for dep in stale if dep.state == "released" and not dep.dependents}
        if gone:
            # released -> forgotten gives no instructions
            state._transitions(gone, stimulus_id=f"resilience-unlink-{time()}")
