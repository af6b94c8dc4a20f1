"""What a run has gained and lost so far: seconds of tasks, bytes written.

Seconds are those of tasks, one after the other, as Dask counts them; on eight GPUs eight of them pass in a second.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

from dask_resilient.core.recovery import Lineage

WINDOW = 60.0
"""Seconds over which the rate of writing is taken."""

LARGE = 1_000_000
"""Bytes from which on the time of a write tells how fast the store takes bytes; of less it tells its latency."""

SAMPLES = 600
"""Points of the history that are kept: ten minutes, one a second."""


def seconds_without(key: Hashable, lineage: Lineage, counted: set[Hashable], visits: int = 1_000) -> float:
    """Estimate the seconds of tasks that bringing a key back would have taken without its copy. Pure (no I/O).

    Parameters
    ----------
    key
        A key that was reloaded.
    lineage
        Where available means in memory: without us nothing is stored.
    counted
        Keys whose seconds were counted before, for others of the same incident; those of this one are added, since each
        would have run once.
    visits
        Tasks that are looked at, at most; what lies behind them is left out, so the estimate is too low then.
    """
    total, stack, left = 0.0, [key], visits
    while stack and left:
        current = stack.pop()
        if current in counted:
            continue
        counted.add(current)
        left -= 1
        total += lineage.seconds(current) or 0.0
        stack += [parent for parent in lineage.parents(current) if not lineage.available(parent)]
    return total


@dataclass(slots=True)
class Totals:
    """The sums of one run."""

    since: float
    """When it began; UNIX seconds."""
    reloaded: int = 0
    """Loads that brought their value, also of what earlier runs stored."""
    reload_nbytes: int = 0
    reload_seconds: float = 0.0
    """Of those after a loss."""
    recomputed: int = 0
    """Results that were computed again after a loss."""
    recompute_seconds: float = 0.0
    saved_seconds: float = 0.0
    """Estimate of what reloaded results would have cost to compute."""
    written: int = 0
    """Partitions whose receipts this run made durable."""
    written_nbytes: int = 0
    """Bytes of them in the store."""
    fastest: float = 0.0
    """Bytes a second of the fastest large write so far."""
    history: deque[tuple[float, float, float]] = field(default_factory=lambda: deque(maxlen=SAMPLES))
    """Time, bytes a second that were being written, and the goodput then."""
    _recent: deque[tuple[float, int]] = field(default_factory=deque)

    def wrote(self, nbytes: int, seconds: float, now: float) -> None:
        """Take in that a partition is durable: its bytes in the store, and how long its write took."""
        self.written += 1
        self.written_nbytes += nbytes
        if nbytes >= LARGE and seconds > 0:
            self.fastest = max(self.fastest, nbytes / seconds)
        if self._recent and now - self._recent[-1][0] < 1.0:  # so there are never more than some sixty
            self._recent[-1] = (self._recent[-1][0], self._recent[-1][1] + nbytes)
        else:
            self._recent.append((now, nbytes))
        self._forget(now)

    def rate(self, now: float) -> float:
        """Give the bytes a second that became durable within the last minute."""
        self._forget(now)
        return sum(nbytes for _, nbytes in self._recent) / max(min(WINDOW, now - self.since), 1.0)

    def _forget(self, now: float) -> None:
        while self._recent and now - self._recent[0][0] > WINDOW:
            self._recent.popleft()

    def loaded(self, nbytes: int) -> None:
        """Take in that a load brought its value."""
        self.reloaded += 1
        self.reload_nbytes += nbytes

    @property
    def lost_seconds(self) -> float:
        """Seconds of work that would not have been needed had nothing been lost."""
        return self.recompute_seconds + self.reload_seconds

    def goodput(self, compute_seconds: float) -> float | None:
        """Give the share of all work that was useful; None before there was any.

        Parameters
        ----------
        compute_seconds
            Of all tasks that have run, also those that ran again, and loads.
        """
        return None if compute_seconds <= 0 else max(0.0, 1.0 - self.lost_seconds / compute_seconds)

    def sample(self, now: float, compute_seconds: float) -> None:
        """Add a point to the history."""
        self.history.append((now, self.rate(now), 1.0 if (g := self.goodput(compute_seconds)) is None else g))

    def to_dict(self, now: float, compute_seconds: float) -> dict[str, Any]:
        """Give the row, plain types only."""
        names = (
            *("since", "reloaded", "reload_seconds", "reload_nbytes", "recomputed", "recompute_seconds"),
            *("saved_seconds", "written", "written_nbytes", "fastest"),
        )
        return {
            **{name: getattr(self, name) for name in names},
            "compute_seconds": compute_seconds,
            "useful_seconds": max(0.0, compute_seconds - self.lost_seconds),
            "lost_seconds": self.lost_seconds,
            "goodput": self.goodput(compute_seconds),
            "rate": self.rate(now),
        }
