"""What is kept of the readings of one worker: as little as the rules need, whatever a probe sends."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from dask_resilient.core.nvml import SLOW_REASONS, SW_THERMAL
from dask_resilient.core.readings import COUNTERS, NOTHING, Name, Reading

EVENTS = frozenset({Name.XID, Name.EVENT, Name.CUDA_ERROR})
"""Readings of something that happened: each counts. All others tell of a state, which lasts until the next one."""

SERIES = COUNTERS | {Name.CLOCKS_REASONS}
"""States of which the last ten minutes count, not only the last."""

SECONDS = 600.0
"""How long a series is kept. Source: the ten minutes of `core.history`."""

NAMES = 1_000
"""Names that are kept of one worker at most: a device has some hundred, of which most are of its links."""

LENGTH = 1_200
"""Readings that are kept of one name at most: ten minutes at the shortest interval, of half a second."""

SLOWLY = 15.0
"""Seconds in which clocks that are slowed down as before are not noted again: well below what a reading tells of the
present."""

BACK = 1.0
"""Seconds by which a reading may be older than the one before; more means that a clock was set back."""


class Kept:
    """The readings of one worker.

    Parameters
    ----------
    names
        Names that are kept at most; of more, the one that was read longest ago goes.
    """

    def __init__(self, names: int = NAMES) -> None:
        self._names = names
        self._named: dict[str, deque[Reading]] = {}

    def __iter__(self) -> Iterator[Reading]:
        """Give all of them, in no particular order."""
        return (reading for readings in self._named.values() for reading in readings)

    def __contains__(self, name: str) -> bool:
        """Say whether something of that name is kept."""
        return name in self._named

    def add(self, reading: Reading) -> None:
        """Take in a reading."""
        readings = self._named.get(reading.name)
        if readings is None:
            if len(self._named) >= self._names:
                del self._named[min(self._named, key=lambda name: self._named[name][-1].time)]
            readings = self._named[reading.name] = deque(maxlen=LENGTH)
        # Else what was read before the clock was set back would be the last word until the clock is there again.
        while readings and readings[-1].time > reading.time + BACK:
            readings.pop()
        if reading.kind in EVENTS:
            readings.append(reading)
        elif reading.kind in SERIES:
            self._append(readings, reading)
        else:
            readings.clear()
            readings.append(reading)

    @staticmethod
    def _append(readings: deque[Reading], reading: Reading) -> None:
        if reading.kind == Name.CLOCKS_REASONS:
            before = readings[-1] if readings else None
            if before is not None and _slow(before) == _slow(reading) and reading.time - before.time < SLOWLY:
                return
        # Of a stretch in which a counter did not change its two ends say all.
        elif len(readings) > 1 and readings[-2].value == readings[-1].value == reading.value:
            readings.pop()
        readings.append(reading)
        while reading.time - readings[0].time > SECONDS:
            readings.popleft()

    def still(self, names: Iterable[str] | None, now: float) -> None:
        """Take in that the states of these names, None = all of them, are what they were."""
        for name in list(self._named) if names is None else names:
            readings = self._named.get(name)
            if readings and readings[-1].kind not in EVENTS:
                self.add(readings[-1].at(readings[-1].device, now))

    def of(self, name: str) -> tuple[Reading, ...]:
        """Give what is kept of a name, the oldest first."""
        return tuple(self._named.get(name, ()))

    def drop(self, name: str) -> None:
        """Forget what is kept of a name."""
        self._named.pop(name, None)

    def drop_kind(self, kind: str) -> bool:
        """Forget what is kept of all names of a kind; say whether anything was."""
        names = [name for name, readings in self._named.items() if readings[-1].kind == kind]
        for name in names:
            del self._named[name]
        return bool(names)


def _slow(reading: Reading) -> int | None:
    """Give what counts of the clocks' reasons; the others come and go with every task."""
    number = reading.number
    return None if number is None else int(number) & (SLOW_REASONS | SW_THERMAL)


_LOST = (None, None)
"""In place of what was said of a name, where nobody knows what the other side knows of it."""

_OURS = frozenset(map(str, Name))


def _says_nothing(reading: Reading) -> bool:
    """Say whether nothing follows from a state: it is not given any more, or is a third party's own and known.

    No rule reads values under names of a third party's own, so only that one is unknown is worth telling.
    """
    return reading.value == NOTHING or (reading.value is not None and reading.kind not in _OURS)


class Told:
    """What the readings are that the other side does not know yet; thread-safe only under the caller's lock.

    Parameters
    ----------
    every
        Seconds after which a state that has not changed is told of again.
    """

    def __init__(self, every: float) -> None:
        self._every = every
        self._said: dict[str, tuple[object, str | None]] = {}
        self._since: set[str] = set()
        self._last = float("-inf")

    def news(self, readings: Iterable[Reading]) -> list[Reading]:
        """Give those that the other side does not know: everything that happened, and states that changed."""
        new = []
        for reading in readings:
            if reading.kind in EVENTS:
                new.append(reading)
                continue
            if _says_nothing(reading):
                # Told once, and only where something else was told before.
                if self._forget(reading.name):
                    new.append(reading)
                continue
            # The words of a state that is known say what led to it, and change with every line of a log.
            said = (reading.value, reading.text if reading.value is None else "")
            before = self._said.pop(reading.name, None)
            self._said[reading.name] = said  # at the end: what was read longest ago comes first
            # Of a canary the time counts too: up to then what the device has made can be trusted.
            if before != said or reading.kind == Name.CANARY:
                new.append(reading)
            self._since.add(reading.name)
            while len(self._said) > NAMES:
                self._forget(next(iter(self._said)))
        return new

    def untold(self, readings: Iterable[Reading]) -> None:
        """Take in that these news were not told after all."""
        for reading in readings:
            self._forget(reading.name)
            if reading.kind not in EVENTS:
                # Not forgotten, else that it says nothing any more would be no news.
                self._said[reading.name] = _LOST

    def _forget(self, name: str) -> bool:
        self._since.discard(name)
        return self._said.pop(name, None) is not None

    def still(self, now: float) -> list[str] | bool:
        """Give the names of states that were read lately, so are as told: True for all, False while it is too early."""
        if now - self._last < self._every:
            return False
        self._last = now
        names, self._since = self._since, set()
        return True if names and len(names) == len(self._said) else sorted(names)
