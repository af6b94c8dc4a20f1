"""The history of one run for those who look at it: how devices stood, what was written, what was lost and gained."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from dask_resilient.core.health import Health
from dask_resilient.core.messages import one_line
from dask_resilient.core.timeline import Standing, Timeline
from dask_resilient.core.totals import Totals
from dask_resilient.scheduler.members import Member

if TYPE_CHECKING:
    from dask_resilient.scheduler.watch import Watch

WORST = (Health.UNHEALTHY, Health.DEGRADED, Health.UNKNOWN, Health.HEALTHY)

WORDS = 300
"""Characters of a reason that are kept."""


class Chronicle:
    """Takes samples once a second, and keeps the sums.

    Parameters
    ----------
    watch
        Of the same scheduler.
    """

    def __init__(self, watch: Watch, now: float) -> None:
        self._watch = watch
        self._before = self._computed()
        self.timeline = Timeline()
        self.totals = Totals(now)

    def tick(self, now: float) -> None:
        """Take a sample."""
        self.timeline.sample(now, self._standings())
        self.totals.sample(now, self.compute_seconds())

    def compute_seconds(self) -> float:
        """Give the seconds that all tasks of this run have taken, on all workers together."""
        return max(0.0, self._computed() - self._before)

    def _computed(self) -> float:
        prefixes = self._watch.scheduler.task_prefixes.values()
        return float(sum(prefix.all_durations.get("compute", 0.0) for prefix in prefixes))

    def _standings(self) -> Iterator[Standing]:
        """Give how each device stands that has a worker or is out of service."""
        worst: dict[str, Member] = {}
        for member in self._watch.members.all():
            before = worst.get(member.device)
            if before is None or WORST.index(_health(member)) < WORST.index(_health(before)):
                worst[member.device] = member
        for device, member in worst.items():
            verdict = member.verdict
            rule = "" if verdict is None else str(verdict.rule)
            why = "" if verdict is None or not verdict.evidence else one_line(str(verdict.evidence[0]), WORDS)
            yield Standing(device, member.host, str(member.phase), str(_health(member)), rule, why)
        for book in self._watch.keeper.book.devices.values():
            if book.name not in worst and book.phase.held:
                rule = book.cause.rule if book.cause else ""
                why = one_line("; ".join(book.cause.evidence[:1]), WORDS) if book.cause else ""
                yield Standing(book.name, book.host, str(book.phase), "unknown", rule, why)

    # -- rows --------------------------------------------------------------------------------------------------------

    def rows(self, now: float) -> list[dict[str, Any]]:
        """Give a row a stretch, as of now."""
        self.timeline.sample(now, self._standings())
        return list(self.timeline.rows())

    def sums(self, now: float) -> dict[str, Any]:
        """Give the totals, plain types only."""
        return self.totals.to_dict(now, self.compute_seconds())


def _health(member: Member) -> Health:
    return Health.UNKNOWN if member.verdict is None else member.verdict.health
