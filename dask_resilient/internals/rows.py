"""The rows of the scheduler's transition table that the detour shadows, and their undo.

``Scheduler._TRANSITIONS_TABLE`` is a class attribute; an instance attribute over it covers one scheduler only. Rows are
wrapped, never replaced: with no stored copy each of them is the original function. Rows and not the plugin hook
``transition``, because only rows can change recommendations, and because they survive the plugin being unregistered
while a load is under way.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from dask_resilient.internals.detour import ACTIVE, Detour, Recs, RecsMsgs, Row

logger = logging.getLogger("dask_resilient")


class Rows:
    """Installs a `Detour` into a scheduler.

    Parameters
    ----------
    detour
        What is asked and told.
    on_surprise
        Called once with the exception if our part of a row fails: the detour is then off for good.
    """

    def __init__(self, detour: Detour, on_surprise: Callable[[BaseException], None]) -> None:
        self.detour = detour
        self._on_surprise = on_surprise
        self._original: dict[tuple[str, str], Row] = {}
        self._table: dict[tuple[str, str], Row] = {}
        self._previous: Any = None
        self._generate: Any = None

    # -- install and undo --------------------------------------------------------------------------------------------

    def install(self) -> None:
        """Put the wrapped rows over the scheduler's own."""
        scheduler = self.detour.scheduler
        self._previous = scheduler.__dict__.get("_TRANSITIONS_TABLE")
        self._original = dict(scheduler._TRANSITIONS_TABLE)
        table = dict(self._original)
        for (start, finish), func in self._original.items():
            if start in ACTIVE and finish in ("released", "memory", "erred"):
                table[start, finish] = self._leaving(start, finish, func)
        table["released", "waiting"] = self._released_waiting
        table["memory", "released"] = self._memory_released
        table["memory", "erred"] = self._memory_erred
        table["released", "erred"] = self._released_erred
        self._table = scheduler._TRANSITIONS_TABLE = table
        self._generate = scheduler._generate_taskstates
        scheduler._generate_taskstates = self._generate_taskstates

    def undo(self) -> None:
        """Take every key off the detour and give the scheduler its own table back."""
        scheduler = self.detour.scheduler
        self.detour.release_all()
        if scheduler.__dict__.get("_TRANSITIONS_TABLE") is not self._table:
            return  # somebody wrapped ours: off and without parked keys, it does what the original does
        if self._previous is None:
            del scheduler._TRANSITIONS_TABLE
        else:
            scheduler._TRANSITIONS_TABLE = self._previous
        if scheduler.__dict__.get("_generate_taskstates") == self._generate_taskstates:
            del scheduler._generate_taskstates

    def _surprise(self, e: BaseException) -> None:
        if self.detour.on:
            self.detour.on = False
            self._on_surprise(e)

    # -- entering ----------------------------------------------------------------------------------------------------

    def _ticket(self, ts: Any) -> Any:
        try:
            return self.detour.ticket(ts)
        except Exception as e:
            self._surprise(e)
            return None

    def _released_waiting(self, scheduler: Any, key: Any, stimulus_id: str, **kwargs: Any) -> RecsMsgs:
        ts = scheduler.tasks[key]
        given_up: Recs = {}
        ticket = self._ticket(ts)
        if ticket is not None:
            try:
                given_up = self.detour.enter(ts, ticket)
            except Exception as e:
                self._surprise(e)
                if key in self.detour.parked:
                    self.detour.leave(key, "released")
        else:
            for dep in ts.dependencies:
                if dep.state == "erred":
                    # Reachable since a key can be loaded although a dependency erred; plain Dask asserts or hangs.
                    ts.exception_blame = dep.exception_blame
                    ts.waiters = None
                    return {key: "erred"}, {}, {}
        recs, client_msgs, worker_msgs = self._original["released", "waiting"](scheduler, key, stimulus_id, **kwargs)
        return {**given_up, **recs}, client_msgs, worker_msgs

    def _memory_released(self, scheduler: Any, key: Any, stimulus_id: str, **kwargs: Any) -> RecsMsgs:
        out = self._original["memory", "released"](scheduler, key, stimulus_id, **kwargs)
        if not self.detour.on:
            return out
        recs, ts = out[0], scheduler.tasks[key]
        if recs.get(key) == "waiting":
            # Lost, and wanted only by tasks that are sent back and will then be loaded: do not start it. (When K enters
            # is too late, the compute-task is then in the batch already.) A waiter that does not enter asks again.
            if not ts.who_wants and all(
                x.state in ("processing", "queued", "no-worker") and self._ticket(x) is not None for x in ts.waiters
            ):
                del recs[key]
        elif ts.state == "released" and (ts.who_wants or ts.waiters):
            if self._ticket(ts) is not None:
                # The lineage is broken (a dependency erred or was forgotten), but the copy is not.
                recs[key] = "waiting"
            elif key not in recs and any(dep.state == "erred" for dep in ts.dependencies):
                # Plain Dask leaves it as it is, and whoever waits for it waits for ever. Asked for again it errs.
                recs[key] = "waiting"
        return out

    def _memory_erred(self, scheduler: Any, key: Any, stimulus_id: str, **kwargs: Any) -> RecsMsgs:
        ts = scheduler.tasks[key]
        if ts.actor:
            return self._original["memory", "erred"](scheduler, key, stimulus_id, **kwargs)
        ts.exception_blame = None
        if ts.who_has:
            # update_graph sends every touched task with an erred dependency to "erred", also one that was loaded.
            return {}, {}, {}
        # Lost with its worker and about to be released, when a dependency lost with it erred, which overrode that.
        out = self._memory_released(scheduler, key, stimulus_id)
        if ts.who_wants or ts.waiters:
            out[0].setdefault(key, "waiting")  # asked for again it is loaded, or errs
        return out

    def _released_erred(self, scheduler: Any, key: Any, stimulus_id: str, **kwargs: Any) -> RecsMsgs:
        ts = scheduler.tasks[key]
        if self._ticket(ts) is None:
            return self._original["released", "erred"](scheduler, key, stimulus_id, **kwargs)
        ts.exception_blame = None
        # The waiters of a released task are not filled in, so its dependents tell; without a copy a moment ago (a pause
        # of reloading has just ended) they wait for it already.
        wanted = ts.who_wants or ts.waiters or any(x.state == "waiting" for x in ts.dependents)
        return ({key: "waiting"} if wanted else {}), {}, {}

    # -- leaving -----------------------------------------------------------------------------------------------------

    def _leaving(self, start: str, finish: str, func: Row) -> Row:
        parked = self.detour.parked
        to_released = self._original[start, "released"]

        def row(scheduler: Any, key: Any, stimulus_id: str, **kwargs: Any) -> RecsMsgs:
            ts = scheduler.tasks[key]
            if key not in parked:
                ws = ts.processing_on
                out = func(scheduler, key, stimulus_id, **kwargs)
                self._loose_ends(ts, ws, start, finish, stimulus_id, out, at_worker=kwargs.get("cause") is not None)
                return out
            if finish == "memory" and "startstops" in kwargs:
                # The time of a load is not the task's: it would spoil the prefix's duration (occupancy, stealing).
                kwargs["startstops"] = [
                    {**s, "action": "reload"} if s["action"] == "compute" else s for s in kwargs["startstops"]
                ]
            # A load that errs, or kills its worker, is a failed load and never the user's error.
            original = to_released if finish == "erred" else func
            out = original(scheduler, key, stimulus_id, **({} if finish == "erred" else kwargs))
            if ts.state not in ACTIVE:
                try:
                    self.detour.leave(key, "erred" if finish == "erred" else start)
                    if start == "processing" and finish == "released":
                        self.detour.slot_opened()
                except Exception as e:
                    self._surprise(e)
            return out

        return row

    def _loose_ends(
        self, ts: Any, ws: Any, start: str, finish: str, stimulus_id: str, out: RecsMsgs, *, at_worker: bool
    ) -> None:
        """Tie up what Dask leaves where a task that is not loaded ends otherwise than Dask alone could make it end."""
        if start == "waiting" and finish == "released" and self.detour.on:
            _take_back(ts, out[0])
        elif start == "processing" and finish == "erred" and not at_worker:
            _stop(self.detour.scheduler, ws, ts.key, stimulus_id, out[2])

    # -- resubmission ------------------------------------------------------------------------------------------------

    def _generate_taskstates(self, *args: Any, **kwargs: Any) -> Any:
        """Show parked keys with their lineage, else resubmitting them warns of "different run_spec" and deadlocks."""
        parked = list(self.detour.parked.values())
        for p in parked:
            p.ts.dependencies = set(p.anchor.dependencies)
        try:
            return self._generate(*args, **kwargs)
        finally:
            for p in parked:
                for dep in p.ts.dependencies:
                    dep.dependents.discard(p.ts)
                    dep.dependents.add(p.anchor)
                    p.anchor.dependencies.add(dep)
                p.ts.dependencies = set()


def _take_back(ts: Any, recs: Recs) -> None:
    """Take back what a task that no longer waits has asked for in the same batch, and that has not begun to wait.

    Reachable since a task may err because one of its dependencies erred long ago, found out when it asks for that one:
    Dask does not list it among the waiters of the others yet, and so would compute those for nobody.
    """
    for dep in ts.dependencies:
        if dep.state == "released" and not dep.who_wants and not any(x.state == "waiting" for x in dep.dependents):
            recs.setdefault(dep.key, "released")


def _stop(scheduler: Any, ws: Any, key: Any, stimulus_id: str, worker_msgs: dict[str, list[Any]]) -> None:
    """Tell a worker to let go of a task that errs because a dependency did, and not because the worker said so.

    Reachable since a dependency that is lost, and made of something that erred long ago, errs when it is asked for.
    Dask tells the worker nothing: it would run the task without its input, and keep it for ever.
    """
    if scheduler.workers.get(ws.address) is ws:
        message = {"op": "free-keys", "keys": [key], "stimulus_id": stimulus_id}
        worker_msgs.setdefault(ws.address, []).append(message)
