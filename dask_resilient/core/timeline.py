"""How each device stood over time: stretches of one phase and one health, bounded in number."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

GONE = "gone"
"""The phase of a device that has no worker, and is not out of service."""

KEPT = 100
"""Stretches that are kept of one device at most, the newest."""

DEVICES = 2_000
"""Devices that are kept at most; of more, those that have been gone for longest are forgotten."""


@dataclass(frozen=True, slots=True)
class Standing:
    """How a device stands at one moment.

    Attributes
    ----------
    phase
        Of `core.actions.Phase`, or `GONE`.
    health
        Of `core.health.Health`; the worst of its workers'.
    why
        The rule with its first line of evidence; takes no part in comparisons, since evidence counts on.
    """

    device: str
    host: str
    phase: str
    health: str
    rule: str = ""
    why: str = field(default="", compare=False)


@dataclass(slots=True)
class _Track:
    since: deque[tuple[float, Standing]] = field(default_factory=lambda: deque(maxlen=KEPT))


class Timeline:
    """The stretches of all devices."""

    def __init__(self) -> None:
        self._tracks: dict[str, _Track] = {}

    def sample(self, now: float, standings: Iterable[Standing]) -> None:
        """Take in how all devices stand now; those that are not named have gone."""
        missing = dict(self._tracks)
        for standing in standings:
            missing.pop(standing.device, None)
            self._add(now, standing)
        for device, track in missing.items():
            last = track.since[-1][1]
            self._add(now, Standing(device, last.host, GONE, "unknown"))
        self._forget()

    def _add(self, now: float, standing: Standing) -> None:
        track = self._tracks.get(standing.device)
        if track is None:
            track = self._tracks[standing.device] = _Track()
        if not track.since or track.since[-1][1] != standing:
            track.since.append((now, standing))

    def _forget(self) -> None:
        if len(self._tracks) <= DEVICES:
            return
        ended = {name: t.since[-1][0] for name, t in self._tracks.items() if t.since[-1][1].phase == GONE}
        for name in sorted(ended, key=lambda name: ended[name])[: len(self._tracks) - DEVICES]:
            del self._tracks[name]

    def rows(self, since: float = float("-inf")) -> Iterator[dict[str, Any]]:
        """Give a row a stretch that had not ended at `since` (UNIX s), by device, the oldest first.

        Keys of a row are ``device, host, start, end`` (UNIX s; None where it has not ended), ``phase, health, rule``
        and ``why``.
        """
        for track in self._tracks.values():
            known = list(track.since)
            ends: list[float | None] = [*(start for start, _ in known[1:]), None]
            for (start, s), end in zip(known, ends, strict=True):
                if end is None or end > since:
                    yield {**asdict(s), "start": start, "end": end}
