"""The readings of one device as the rules see them: what holds now, what happened lately, how fast counters rise."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter

from dask_resilient.core import xid
from dask_resilient.core.faults import Class
from dask_resilient.core.limits import Limits
from dask_resilient.core.readings import Baseline, Name, Reading

MINUTE = 60.0
MINUTES = 10
"""Minutes that slow-down is counted in. Source: gpud."""

LASTING = frozenset({Name.CANARY})
"""Readings that hold until the next one, however old: a canary runs seldom."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What one rule makes of the readings."""

    cls: Class | None
    """None: the device cannot be judged for the time being."""
    evidence: str
    row: str = ""
    """Which row of a table fired, such as the number of an XID."""
    source: str = ""
    """Of that row, where it has its own."""
    readable: bool = False
    """Whether what the process holds can be read although its class says that the process is lost."""


class History:
    """What is known of one device at one time; changes nothing.

    Parameters
    ----------
    readings
        Those of the device, in any order; those of other devices of its host tell whether it is alone with a trouble.
    baseline
        Names the device, and says where its counters stood.
    limits
        The thresholds.
    now
        Seconds, of the clock that the readings carry.
    since
        When the process began that is judged: errors of CUDA before it were another's, and so were XIDs that named
        that; what the device itself reported stays.
    """

    def __init__(
        self, readings: Iterable[Reading], baseline: Baseline, limits: Limits, now: float, since: float = -math.inf
    ) -> None:
        self.baseline, self.limits, self.now, self._since = baseline, limits, now, since
        self._clocks: dict[str, list[Reading]] = {}
        self._named: dict[str, list[Reading]] = {}
        self.others: set[str] = set()
        """The other devices of the host."""
        for reading in sorted(readings, key=attrgetter("time")):
            if reading.name == Name.CLOCKS_REASONS:
                self._clocks.setdefault(reading.device, []).append(reading)
            if reading.device == baseline.device:
                self._named.setdefault(reading.name, []).append(reading)
            else:
                self.others.add(reading.device)

    @cached_property
    def present(self) -> dict[str, Reading]:
        """Give the last reading of each name, known or not, as far as it still tells of the present."""
        last = ((name, readings[-1]) for name, readings in self._named.items())
        return {n: r for n, r in last if r.kind in LASTING or self.now - r.time <= self.limits.fresh}

    @cached_property
    def _known(self) -> dict[str, list[Reading]]:
        known: dict[str, list[Reading]] = {}
        for reading in self.present.values():
            if reading.value is not None:
                known.setdefault(reading.kind, []).append(reading)
        return known

    def known(self, kind: str) -> list[Reading]:
        """Give what is known at present of a kind; of something that exists once, one or none."""
        return self._known.get(kind, [])

    def number(self, kind: str) -> float | None:
        """Give the number that is known at present of something that exists once."""
        return next((r.number for r in self.known(kind)), None)

    def flag(self, kind: str) -> bool:
        """Say whether something is known to be true at present."""
        return any(bool(r.number) for r in self.known(kind))

    def events(self, kind: str, seconds: float | None = None) -> list[Reading]:
        """Give what happened lately of a kind."""
        first = self.now - (self.limits.remember if seconds is None else seconds)
        if kind == Name.CUDA_ERROR:
            first = max(first, self._since)
        found = (r for name in self._names.get(kind, ()) for r in self._named[name])
        return [r for r in found if r.value is not None and r.time >= first]

    @cached_property
    def _names(self) -> dict[str, list[str]]:
        names: dict[str, list[str]] = {}
        for name, readings in self._named.items():
            names.setdefault(readings[0].kind, []).append(name)
        return names

    @cached_property
    def dead(self) -> list[Reading]:
        """Give the errors of CUDA that cost this process its context."""
        return [r for r in self.events(Name.CUDA_ERROR) if class_in(r).rank >= Class.KILL.rank]

    def xids(self, seconds: float | None = None) -> list[xid.XidEvent]:
        """Give the XIDs of the device.

        One that does not say whom it names is this process's own where CUDA failed in it at the same time.
        """
        found = []
        for r in self.events(Name.XID, seconds):
            if r.number is not None:
                beside = any(abs(error.time - r.time) <= xid.COALESCE for error in self.dead)
                own = True if r.own is None and beside else r.own
                own = False if r.time < self._since else own
                found.append(xid.XidEvent(r.device, int(r.number), r.time, own, r.text))
        return found

    def rise(self, name: str, seconds: float) -> tuple[float, float]:
        """Give by how much a counter rose lately, and in how many seconds; (0, 0) if it did not, or that is not known.

        Where readings are further apart than `seconds`, it is what the last two say.
        """
        readings = self._named.get(name, ())
        # Nearly always, and there are dozens of such counters.
        if readings and all(r.value == readings[0].value for r in readings):
            return 0.0, 0.0
        numbers = [(r.time, r.number) for r in readings if r.number is not None]
        if len(numbers) < 2:  # noqa: PLR2004 - a difference has two sides
            return 0.0, 0.0
        end, last = numbers[-1]
        if self.now - end > self.limits.fresh:
            return 0.0, 0.0
        start, first = next((n for n in numbers[:-1] if end - n[0] <= seconds), numbers[-2])
        return max(0.0, last - first), end - start

    def slow_minutes(self, bits: int, device: str | None = None) -> int:
        """Count the last ten minutes in which a device was slowed down at least half of the time that is known.

        A state lasts until the next reading, and at most as long as a reading tells of the present: what did not change
        is read more seldom than what did.
        """
        readings = self._clocks.get(device or self.baseline.device, [])
        if not any(int(r.number or 0) & bits for r in readings):
            return 0  # nearly always
        known, slow = [0.0] * MINUTES, [0.0] * MINUTES
        for r, until in zip(readings, [*(r.time for r in readings[1:]), self.now], strict=False):
            if (value := r.number) is None:
                continue
            end = min(until, r.time + self.limits.fresh, self.now)
            for minute in range(MINUTES):
                last = self.now - minute * MINUTE
                seconds = max(0.0, min(end, last) - max(r.time, last - MINUTE))
                known[minute] += seconds
                slow[minute] += seconds if int(value) & bits else 0.0
        return sum(k > 0 and 2 * s >= k for k, s in zip(known, slow, strict=True))


def class_in(reading: Reading) -> Class:
    """Give the class that a reading carries; OBSERVE if it is none."""
    return Class(reading.value) if isinstance(reading.value, str) and reading.value in set(Class) else Class.OBSERVE
