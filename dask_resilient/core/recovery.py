"""Reload or recompute: which is cheaper, and when to stop trying.

A stored copy is loaded unless recomputing is clearly cheaper. "Clearly" on purpose: durations are averages of whole
task prefixes, users do not expect a saved function to run again, and a load that turned out slow costs seconds while a
wrong guess the other way costs the stage that was saved.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, replace
from typing import Protocol

from dask_resilient.core.outcome import Ending

LATENCY = 0.01
"""Seconds that opening a copy costs, before the first load was measured. Source: 2-6 ms for an open and read of a small
Zarr array on a local disk (docs/benchmarks.md), doubled for the receipt."""

BANDWIDTH = 200e6
"""Bytes per second of a load before the first one was measured; a cautious figure for a networked file system."""

SMALL = 1_000_000
"""Bytes below which a load says more about latency than about bandwidth."""

ATTEMPTS = 3
"""Loads of one key that may end badly before it is recomputed: a copy that kills its workers costs three of them."""

UNBEGUN = 0.1
"""Share of an attempt that a load counts whose worker was lost before it said that it had begun the load. Workers that
die together, with their host, each take along what was given to them in the meantime, and no copy is to blame. More
than nothing, since a copy might kill so fast that nobody hears of the beginning. The same for one that Dask gives up
without its worker having said how it ended, as it does when that hands in an earlier run's result instead."""

STREAK = 3
"""Loads that may be unreachable one after the other before reloading pauses."""


class Lineage(Protocol):
    """The graph as the decision sees it; asked lazily, since nobody freezes a million tasks."""

    def parents(self, key: Hashable) -> Iterable[Hashable]:
        """Give the keys that a key is computed from."""

    def seconds(self, key: Hashable) -> float | None:
        """Give the time that running the key takes, None if no task of its kind has run."""

    def available(self, key: Hashable) -> bool:
        """Say whether the value is in memory, or stored and can be loaded."""


@dataclass(frozen=True, slots=True)
class Costs:
    """What loads cost, from settings and from the loads of this run."""

    floor: float = 1.0
    """Seconds up to which a load is taken without asking what recomputing costs."""
    margin: float = 2.0
    """How many times cheaper recomputing must be."""
    latency: float = LATENCY
    bandwidth: float = BANDWIDTH

    def reload_seconds(self, nbytes: int) -> float:
        """Estimate the seconds that loading `nbytes` takes."""
        return self.latency + nbytes / self.bandwidth

    def observe(self, nbytes: int, seconds: float) -> Costs:
        """Take in how long one load took; what was known counts half, so that a changed store shows soon."""
        if nbytes < SMALL:
            return replace(self, latency=(self.latency + seconds) / 2)
        bandwidth = nbytes / max(seconds - self.latency, seconds / 10, 1e-6)
        return replace(self, bandwidth=(self.bandwidth + bandwidth) / 2)


def recompute_seconds(key: Hashable, lineage: Lineage, enough: float, visits: int = 1_000) -> float:
    """Estimate what recomputing a key takes, with everything it needs that is not available.

    Pure (no I/O). Counts every task once and as if they ran one after the other. Gives up, with infinity, once `enough`
    is passed, when a duration is unknown, or after `visits` tasks.
    """
    total, seen, stack = 0.0, {key}, [key]
    while stack:
        if len(seen) > visits:
            return float("inf")
        current = stack.pop()
        seconds = lineage.seconds(current)
        if seconds is None:
            return float("inf")
        total += seconds
        if total > enough:
            return float("inf")
        for parent in lineage.parents(current):
            if parent not in seen and not lineage.available(parent):
                seen.add(parent)
                stack.append(parent)
    return total


def should_reload(key: Hashable, nbytes: int, lineage: Lineage, costs: Costs) -> bool:
    """Decide whether a key with an intact copy is loaded (True) or recomputed (False). Pure (no I/O)."""
    reload = costs.reload_seconds(nbytes)
    if reload <= costs.floor:
        return True
    enough = reload / costs.margin
    return recompute_seconds(key, lineage, enough) > enough


@dataclass(frozen=True, slots=True)
class Reloading:
    """Whether loading is tried at all: it pauses while the store cannot be reached."""

    pause: float = 60.0
    """Seconds that a pause lasts."""
    unreachable: int = 0
    until: float = float("-inf")

    def after(self, ending: Ending, now: float) -> Reloading:
        """Take in how a load ended."""
        if ending is Ending.UNREACHABLE:
            streak = self.unreachable + 1
            if streak >= STREAK:
                return replace(self, unreachable=0, until=now + self.pause)
            return replace(self, unreachable=streak)
        return replace(self, unreachable=0) if self.unreachable else self

    def paused(self, now: float) -> bool:
        """Say whether no load may start now."""
        return now < self.until
