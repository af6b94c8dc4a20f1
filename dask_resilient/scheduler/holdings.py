"""What would be lost with workers that leave: results that nobody else has and no copy brings back, and their price."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from time import perf_counter, time
from typing import TYPE_CHECKING, Any

from dask_resilient.core.drain import ACTOR, Held
from dask_resilient.core.recovery import ATTEMPTS, recompute_seconds
from dask_resilient.internals.gate import Gate
from dask_resilient.internals.p2p import is_inner_part
from dask_resilient.scheduler.copies import INNER_PART
from dask_resilient.scheduler.lineage import SchedulerLineage

if TYPE_CHECKING:
    from dask_resilient.scheduler.watch import Watch

STAYS = frozenset({"init", "running", "paused"})
"""Statuses of workers that do not leave, where they are not shut."""

VISITS = 100
"""Tasks that are looked at to see what one result costs."""

LOOK = 0.02
"""Seconds that looking up costs may take at a time; after that a result counts its own task."""

SCATTERED = "it was scattered: there is no task that could load it again"


class Holdings(SchedulerLineage):
    """The graph as it would be without the workers that are shut.

    Parameters
    ----------
    watch
        Of the same scheduler.
    gate
        Says which workers are shut.
    """

    def __init__(self, watch: Watch, gate: Gate) -> None:
        super().__init__(watch.ledger)
        self._watch = watch
        self._gate = gate
        self.leaving: set[str] = set()
        """Workers that are shut, as of the last look."""

    def look(self) -> None:
        """See which workers are shut now."""
        self.leaving = self._gate.shut_workers

    def stays(self, ts: Any) -> bool:
        """Say whether a worker that does not leave has a result."""
        return any(ws.status.name in STAYS and ws.address not in self.leaving for ws in ts.who_has or ())

    def durable(self, ts: Any) -> bool:
        """Say whether a result would be loaded if it were lost now."""
        watch = self._watch
        entry = watch.ledger.entries.get(ts.key)
        sound = entry is not None and entry.task is ts and entry.usable and entry.bad_loads < ATTEMPTS
        return sound and not watch.recovery_off and not watch.reloading.paused(time())

    def available(self, key: Any) -> bool:
        """Say whether a value stays in memory, or can be loaded."""
        return self.stays(key) or self.durable(key)

    def costs(self, tasks: Iterable[Any], worker: str, reasons: Mapping[Hashable, str]) -> list[Held]:
        """Give what results cost to make again, and why some cannot be saved.

        Parameters
        ----------
        worker
            That has them.
        reasons
            Why some cannot be saved, as far as it is known.
        """
        begin, unsavable = perf_counter(), self.unsavable(worker)
        held = []
        for ts in tasks:
            hurry = perf_counter() - begin > LOOK
            seconds = self.seconds(ts) if hurry else recompute_seconds(ts, self, float("inf"), VISITS)
            reason = reasons.get(ts.key, "") or unsavable or _unsavable(ts)
            cost = float("inf") if seconds is None else seconds
            held.append(Held(ts.key, max(ts.nbytes, 0), cost, reason=reason))
        return held

    def unsavable(self, worker: str) -> str:
        """Say why nothing that a worker has can be saved, empty if it can."""
        if self._watch.recovery_off:
            return f"recovery is left to Dask: {self._watch.recovery_off}"
        member = self._watch.members.get(worker)
        if member is None or not member.side:
            return "its worker has no side of ours"
        return "" if member.protected else f"its worker saves nothing: {member.reason}"


def _unsavable(ts: Any) -> str:
    if ts.actor:
        return ACTOR
    if ts.run_spec is None:
        return SCATTERED
    return INNER_PART if is_inner_part(ts) else ""
