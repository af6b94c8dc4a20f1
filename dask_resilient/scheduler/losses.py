"""Losses as they happen: an incident opens before Dask works a loss off, and closes when the graph is whole again."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from time import time
from typing import TYPE_CHECKING, Any

from dask_resilient.core.incidents import Book, Incident, cause
from dask_resilient.core.totals import seconds_without
from dask_resilient.scheduler.lineage import Resident

if TYPE_CHECKING:
    from dask_resilient.scheduler.watch import Watch

EVENT_KEYS = 20
"""Keys that an event names; the rows of `incidents()` name more."""


class Losses:
    """The incidents of one run, with what each of them cost.

    Parameters
    ----------
    watch
        Of the same scheduler.
    """

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self.book = Book()
        self.losing = ""
        """The worker whose loss is being worked off just now."""

    def lost(self, msg: Mapping[str, Any]) -> None:
        """Open an incident, before Dask works off the loss of a worker."""
        watch, address = self._watch, msg["worker"]
        self.losing = address
        member = watch.members.get(address)
        lost = msg["lost-computed-tasks"]
        scattered = msg["lost-scattered-tasks"]
        if not lost and not scattered and msg["expected"]:
            return
        tasks = watch.scheduler.tasks
        sizes = {key: max(tasks[key].nbytes, 0) for key in (*lost, *scattered) if key in tasks}
        why = cause(str(msg["stimulus_id"]), bool(msg["expected"]))
        if scattered:
            why += f"; {len(scattered)} keys were scattered data, which nothing can bring back"
        running = msg["processing-tasks"]
        incident = self.book.lost(time(), address, member.device if member else "", why, sizes, running)
        for key in scattered:
            incident.seeds.discard(key)
        watch.keeper.lost(address, sizes)
        watch.event("loss", **incident.to_dict(EVENT_KEYS))

    def worked_off(self) -> None:
        """Take in that Dask has worked off every loss so far."""
        self.losing = ""
        self.closed(self.book.settle(time()))

    def back(self, key: Hashable, reloaded: bool, startstops: Iterable[Mapping[str, Any]] | None) -> None:
        """Take in that a key is in memory while incidents are open, and what that took."""
        incident = self.book.waiting(key)
        if incident is not None:
            self._count(incident, key, reloaded, _seconds(startstops))
        self.closed(self.book.back(key, reloaded, time()))

    def _count(self, incident: Incident, key: Hashable, reloaded: bool, seconds: float) -> None:
        watch = self._watch
        totals, ts = watch.chronicle.totals, watch.scheduler.tasks.get(key)
        if not reloaded:
            incident.recompute_seconds += seconds
            totals.recomputed += 1
            totals.recompute_seconds += seconds
            return
        incident.reload_seconds += seconds
        totals.reload_seconds += seconds
        if ts is not None:
            spared = seconds_without(ts, Resident(watch.ledger), incident.counted)
            incident.saved_seconds += spared
            totals.saved_seconds += spared

    def settle(self) -> None:
        """Close what waits for nothing more."""
        self.closed(self.book.close(time()))

    def closed(self, incidents: Iterable[Incident]) -> None:
        """Tell of incidents that have closed."""
        for incident in incidents:
            self._watch.event("whole-again", **incident.to_dict(EVENT_KEYS))


def _seconds(startstops: Iterable[Mapping[str, Any]] | None) -> float:
    """Give how long a task computed; Dask tells it with what the task was finished by."""
    computing = (each for each in startstops or () if each.get("action") == "compute")
    return sum(float(each["stop"]) - float(each["start"]) for each in computing)
