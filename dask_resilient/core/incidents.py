"""The book of incidents: what was lost, and what was reloaded or recomputed until the graph was whole again.

An incident opens when a worker is lost. Keys that have to come back because of it are its open keys: the lost ones that
are still wanted, and then every released ancestor that has to run again for one of them. It closes with the last one.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any

KEYS_SHOWN = 1_000
"""Keys that a row names at most."""

KEPT = 1_000
"""Incidents that are remembered at most, the newest."""

CAUSES = (
    ("handle-worker-cleanup", "connection lost: the process was killed, crashed, or closed or restarted on request"),
    ("worker-send-comm-fail", "connection lost while sending to it"),
    ("send-all-comm-fail", "connection lost while sending to it"),
    ("check-worker-ttl", "no heartbeat within worker-ttl"),
    ("retire-workers", "retired"),
    ("worker-close", "closed by itself"),
    ("close-worker", "closed on request"),
    ("nanny-close", "closed by its nanny"),
    ("scheduler-remove-worker", "removed on request"),
    ("resilience-evict", "evicted, since its device is out of service"),
    ("resilience-restart", "its process was replaced, since it had failed"),
    ("restart", "restarted on request"),
)
"""Beginnings of the stimulus ids with which Dask removes a worker, in distributed/scheduler.py and worker.py."""


def cause(stimulus_id: str, expected: bool) -> str:
    """Say in words why a worker was removed."""
    for beginning, words in CAUSES:
        if beginning in stimulus_id:
            return words
    return "removed on request" if expected else f"removed ({stimulus_id})"


@dataclass(slots=True)
class Incident:
    """One row of the report, while it is still counting."""

    id: int
    kind: str
    time: float
    """UNIX seconds."""
    worker: str
    device: str
    cause: str
    lost: int
    nbytes: int
    keys: list[Any]
    reloaded: int = 0
    recomputed: int = 0
    reload_seconds: float = 0.0
    """Of the loads, one after the other; as the next two, seconds of tasks."""
    recompute_seconds: float = 0.0
    saved_seconds: float = 0.0
    """Estimate of what the reloaded results would have cost to compute."""
    counted: set[Hashable] = field(default_factory=set)
    """Keys whose cost is in that estimate."""
    seconds: float | None = None
    """Until whole again; None while it is not."""
    seeds: set[Hashable] = field(default_factory=set)
    """Lost keys that nobody has asked for yet."""
    open: set[Hashable] = field(default_factory=set)
    interrupted: set[Hashable] = field(default_factory=set)
    """Keys that were running or waiting on the worker: they run anew, but nothing of them is recomputed."""
    settled: bool = False
    """Whether Dask has worked off the loss: until then the lost keys have not been asked for yet."""

    def to_dict(self, shown: int = KEYS_SHOWN) -> dict[str, Any]:
        """Give the row, plain types only; keys become text here, since at the loss every millisecond counts."""
        names = (
            *("id", "kind", "time", "worker", "device", "cause"),
            *("lost", "reloaded", "recomputed", "nbytes", "seconds"),
            *("reload_seconds", "recompute_seconds", "saved_seconds"),
        )
        return {**{name: getattr(self, name) for name in names}, "keys": sorted(map(str, self.keys[:shown]))}


class Book:
    """All incidents of one run, oldest first."""

    def __init__(self) -> None:
        self.incidents: list[Incident] = []
        self.counting: list[Incident] = []
        self._next = 1

    def lost(
        self,
        now: float,
        worker: str,
        device: str,
        why: str,
        sizes: dict[Hashable, int],
        interrupted: Iterable[Hashable] = (),
    ) -> Incident:
        """Open an incident for a lost worker.

        Parameters
        ----------
        sizes
            The lost keys with their sizes in bytes.
        interrupted
            Keys that were assigned to the worker.
        """
        incident = Incident(
            id=self._next,
            kind="loss",
            time=now,
            worker=worker,
            device=device,
            cause=why,
            lost=len(sizes),
            nbytes=sum(sizes.values()),
            keys=list(itertools.islice(sizes, KEYS_SHOWN)),
            seeds=set(sizes),
            interrupted=set(interrupted),
        )
        self._next += 1
        self.incidents.append(incident)
        del self.incidents[:-KEPT]
        self.counting.append(incident)
        return incident

    def wanted(self, key: Hashable, dependents: Iterable[Hashable]) -> None:
        """Take in that a key has to come back, so that those of its dependents can.

        It counts once: for the loss that took it, else for the oldest that needs it.
        """
        if any(key in incident.open for incident in self.counting):
            return
        dependents = list(dependents)
        for incident in self.counting:
            if key in incident.seeds:
                incident.seeds.discard(key)
                incident.open.add(key)
                return
        for incident in self.counting:
            if key not in incident.interrupted and any(d in incident.open for d in dependents):
                incident.open.add(key)
                return

    def waiting(self, key: Hashable) -> Incident | None:
        """Give the incident that waits for a key, None if none does."""
        return next((incident for incident in self.counting if key in incident.open), None)

    def back(self, key: Hashable, reloaded: bool, now: float) -> list[Incident]:
        """Take in that a key is in memory again; give the incidents that closed."""
        for incident in self.counting:
            if key in incident.open:
                incident.open.discard(key)
                incident.reloaded += reloaded
                incident.recomputed += not reloaded
        return self.close(now)

    def sent_back(self, key: Hashable) -> bool:
        """Take in that a key is not on its way any more; say whether something waited for it.

        It may be asked for again at once, so nothing closes here. (Where every worker was lost, lineage is asked for,
        and given up when a worker joins that can load what it was for: nothing would ever say that it is back.)
        """
        for incident in self.counting:
            if key in incident.open:
                incident.open.discard(key)
                incident.seeds.add(key)
                return True
        return False

    def dropped(self, key: Hashable, now: float) -> list[Incident]:
        """Take in that nobody wants a key any more, or that it erred; give the incidents that closed."""
        for incident in self.counting:
            incident.open.discard(key)
            incident.seeds.discard(key)
        return self.close(now)

    def settle(self, now: float) -> list[Incident]:
        """Take in that every loss so far has been worked off: what nobody asked for by now is not waited for."""
        for incident in self.counting:
            incident.settled = True
        return self.close(now)

    def forget(self, now: float) -> list[Incident]:
        """Close everything: the tasks are gone (`client.restart`)."""
        for incident in self.counting:
            incident.open.clear()
            incident.settled = True
        return self.close(now)

    def close(self, now: float) -> list[Incident]:
        """Close the incidents that wait for nothing more, and give them."""
        closed = [incident for incident in self.counting if incident.settled and not incident.open]
        for incident in closed:
            incident.seconds = now - incident.time
            incident.seeds, incident.interrupted, incident.counted = set(), set(), set()
        if closed:
            self.counting = [incident for incident in self.counting if incident.seconds is None]
        return closed
