"""The detour: a wanted key that has a stored copy is loaded instead of recomputed.

Dask decides how to bring a value back at one place, the scheduler transition ``released -> waiting``. This module
shadows that row of the scheduler's transition table. A key that enters is **parked**: its dependencies hang on a
private anchor task instead, and its ``run_spec`` is a load. A key leaves when it leaves the active states; then
everything is put back, so that a second loss, or a bad copy, finds the whole lineage again.

What is loaded is decided elsewhere, by the `Host`. What the worker needs is in :mod:`dask_resilient.internals.unlink`;
the rows around entering and leaving are in :mod:`dask_resilient.internals.rows`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from time import time
from typing import Any, Protocol

from dask._task_spec import Task
from distributed.scheduler import TaskGroup, TaskPrefix, TaskState

from dask_resilient.internals.p2p import is_inner_part

logger = logging.getLogger("dask_resilient")

ACTIVE = frozenset({"waiting", "queued", "no-worker", "processing"})
"""States between wanting a key and having it."""

WAITING = frozenset({"waiting", "queued", "no-worker"})
"""States of a wanted key that no worker works at; nothing is lost when it is sent back."""

Recs = dict[Any, Any]
RecsMsgs = tuple[Recs, dict[str, list[Any]], dict[str, list[Any]]]
Row = Callable[..., RecsMsgs]


class Host(Protocol):
    """What the detour asks, and whom it tells. All methods are called on the scheduler's loop and must be quick."""

    def alive(self) -> bool:
        """Say whether the plugin is still registered."""

    def ticket(self, ts: TaskState) -> Mapping[str, Any] | None:
        """Give the argument of the load task if this key should be loaded now, else None."""

    def loaders(self, key: object) -> set[str] | None:
        """Give the addresses of the workers that can load this key; None = every worker can."""

    def expected(self) -> set[str]:
        """Give the addresses of the workers that have just joined and will report in a moment, if ever."""

    def left(self, key: object, state: str, was: str, moved: bool) -> None:
        """Hear that a key is no detour any more, in which state, out of which; `moved` = only to enter again."""


@dataclass(slots=True)
class Parked:
    """What was taken off a task while it is loaded."""

    ts: TaskState
    anchor: TaskState
    run_spec: Any
    worker_restrictions: set[str] | None
    host_restrictions: set[str] | None
    loose: bool
    ours: set[str] | None
    """The restriction that the detour itself set, to tell it from one that somebody set meanwhile."""
    retries: int
    suspicious: int
    lost: bool


class Detour:
    """Parks keys that are loaded, and puts them back.

    Parameters
    ----------
    scheduler
        The `distributed.Scheduler`.
    host
        Decides and listens.
    load
        The function that the load task calls with the ticket.
    """

    def __init__(self, scheduler: Any, host: Host, load: Callable[[Mapping[str, Any]], Any]) -> None:
        self.scheduler = scheduler
        self.host = host
        self.parked: dict[Any, Parked] = {}
        self.on = True
        self._load = load
        self._moving: set[Any] = set()
        self._looking = False
        # Private group and prefix: no progress bar counts the anchors.
        self._group = TaskGroup("resilience-lineage", TaskPrefix("resilience-lineage"))

    # -- questions ---------------------------------------------------------------------------------------------------

    def ticket(self, ts: TaskState) -> Mapping[str, Any] | None:
        """Give the ticket of a key that should enter now."""
        if not self.on or ts.key in self.parked or ts.run_spec is None or ts.actor:
            return None
        ticket = self.host.ticket(ts)
        if ticket is None:
            return None  # first, since it is so for almost every key
        if not self.host.alive():
            # `unregister_scheduler_plugin` only deletes the entry and calls nothing: found out here.
            self.on = False
            return None
        if is_inner_part(ts):
            return None
        loaders = self.host.loaders(ts.key)
        return ticket if loaders is None or (loaders and self._can_run(ts, loaders)) else None

    def _can_run(self, ts: TaskState, loaders: set[str]) -> bool:
        """Say whether a load would find its resources, or would miss them where the task itself would not.

        With the only worker that has the GPU out of reach of the store, the load would wait for ever.
        """
        if not ts.resource_restrictions:
            return True
        needs = ts.resource_restrictions.items()
        having = {
            address
            for address, ws in self.scheduler.workers.items()
            if all(ws.resources.get(name, 0) >= amount for name, amount in needs)
        }
        return not having or bool(having & (loaders | self.host.expected()))

    # -- entering ----------------------------------------------------------------------------------------------------

    def enter(self, ts: TaskState, ticket: Mapping[str, Any]) -> Recs:
        """Park a released key and give the recommendations for what it no longer needs."""
        anchor = TaskState(("resilience-lineage", ts.key), ts.run_spec, "released", self._group, False)
        anchor.priority = ts.priority
        recs: Recs = {}
        for dep in ts.dependencies:
            dep.dependents.remove(ts)
            dep.dependents.add(anchor)
            anchor.dependencies.add(dep)
            self._give_up(dep, ts, recs)
        ts.dependencies.clear()
        if ts.annotations and "shuffle_original_restrictions" in ts.annotations:
            # P2P pinned this output to a worker, maybe the dead one, and would unpin it only where it can see it.
            ts.worker_restrictions = ts.annotations.pop("shuffle_original_restrictions")
        parked = Parked(
            ts=ts,
            anchor=anchor,
            run_spec=ts.run_spec,
            worker_restrictions=ts.worker_restrictions,
            host_restrictions=ts.host_restrictions,
            loose=ts.loose_restrictions,
            ours=None,
            retries=ts.retries,
            suspicious=ts.suspicious,
            lost=ts.has_lost_dependencies,
        )
        self.parked[ts.key] = parked
        # A load that fails is never the user's error and spends none of the user's retries.
        ts.retries = 0
        # Lineage that was forgotten does not matter to a load.
        ts.has_lost_dependencies = False
        ts.host_restrictions = None
        # "Other workers are allowed too" was said of the user's pin; ours keeps loads from workers that hang on them.
        ts.loose_restrictions = False
        self._restrict(parked)
        ts.run_spec = Task(ts.key, self._load, dict(ticket))
        return recs

    @staticmethod
    def _give_up(dep: TaskState, ts: TaskState, recs: Recs) -> None:
        """Stop waiting for a dependency; if nobody else needs it, let it go."""
        if dep.waiters:
            dep.waiters.discard(ts)
        if dep.waiters or dep.who_wants or dep.state in ("erred", "forgotten"):
            return
        # The waiters of a released task are not filled in yet, so its dependents tell. Where nobody waits, this
        # overrides a pending "waiting" that was for `ts` only.
        if dep.state != "released" or not any(x.state == "waiting" for x in dep.dependents):
            recs[dep.key] = "released"

    def _restrict(self, parked: Parked) -> None:
        loaders = self.host.loaders(parked.ts.key)
        parked.ours = parked.ts.worker_restrictions = None if loaders is None else set(loaders)

    # -- leaving -----------------------------------------------------------------------------------------------------

    def leave(self, key: object, was: str) -> None:
        """Put everything back on a key that has just left the active states."""
        parked = self.parked.pop(key)
        ts, anchor = parked.ts, parked.anchor
        ts.run_spec = parked.run_spec
        if ts.worker_restrictions is parked.ours:
            ts.worker_restrictions = parked.worker_restrictions
        if ts.host_restrictions is None:
            ts.host_restrictions = parked.host_restrictions
        ts.loose_restrictions = ts.loose_restrictions or parked.loose
        ts.retries = max(ts.retries, parked.retries)
        ts.suspicious = parked.suspicious
        for dep in anchor.dependencies:
            dep.dependents.discard(anchor)
            dep.dependents.add(ts)
            ts.dependencies.add(dep)
        anchor.dependencies = set()
        ts.has_lost_dependencies = ts.has_lost_dependencies or parked.lost or anchor.has_lost_dependencies
        self.host.left(key, ts.state, was, key in self._moving)

    # -- moving ------------------------------------------------------------------------------------------------------

    def poke(self, keys: Iterable[object], why: str) -> None:
        """Send keys back to ``released``, from where Dask asks again how to bring them back."""
        keys = list(keys)
        if not keys:
            return
        stimulus_id = f"resilience-{why}-{time()}"
        self._moving.update(keys)
        try:
            self.scheduler.transitions(dict.fromkeys(keys, "released"), stimulus_id)
        finally:
            self._moving.difference_update(keys)
        self.scheduler.stimulus_queue_slots_maybe_opened(stimulus_id=stimulus_id)

    def slot_opened(self) -> None:
        """Have queued tasks looked at, soon: a load that asks to be rescheduled leaves its place on a worker free.

        Dask does not look then, since a task that is rescheduled takes the place again. A load does not, if what its
        key is computed from stands in the queue; and with nothing else running nobody would ever look.
        """
        if not self._looking:
            self._looking = True
            self.scheduler.loop.add_callback(self._look)

    def _look(self) -> None:
        self._looking = False
        self.scheduler.stimulus_queue_slots_maybe_opened(stimulus_id=f"resilience-slot-{time()}")

    def reconsider(self, keys: Iterable[object], why: str) -> None:
        """Let keys that wait for their lineage be loaded, now that this can be done."""
        tasks = [ts for key in keys if (ts := self.scheduler.tasks.get(key)) is not None and ts.state in WAITING]
        self.poke([ts.key for ts in tasks if self.ticket(ts) is not None], why)

    def renew(self) -> None:
        """Restrict the loads under way to the workers that can load, as these come and go."""
        moved = []
        for key, parked in self.parked.items():
            ts = parked.ts
            loaders = self.host.loaders(key)
            if loaders and ts.state == "no-worker" and not self._can_run(ts, loaders):
                moved.append(key)
                continue
            if ts.worker_restrictions is not parked.ours or (loaders == parked.ours and loaders != set()):
                continue
            self._restrict(parked)
            # A queued load would go to any free worker, one in "no-worker" is not looked at again, and one that no
            # worker can load has to leave.
            if ts.state in ("queued", "no-worker") or (loaders == set() and ts.state == "waiting"):
                moved.append(key)
        self.poke(moved, "renew")

    def release_all(self) -> None:
        """Enter nothing more and take every key that is parked off the detour: Dask recomputes it."""
        self.on = False
        self.poke(list(self.parked), "uninstall")
        for key in list(self.parked):  # unreachable unless a transition failed: Dask's own table must go back whole
            logger.error("dask-resilient: %r did not leave its detour", key)
            self.leave(key, "released")
