"""The scheduler's graph as `core.recovery` asks for it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dask_resilient.scheduler.ledger import Ledger


class SchedulerLineage:
    """The scheduler's graph for the decision; keys are `TaskState` objects."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def parents(self, key: Any) -> Iterable[Any]:
        """Give the tasks that a task is computed from."""
        return key.dependencies  # type: ignore[no-any-return]

    def seconds(self, key: Any) -> float | None:
        """Give how long tasks of this prefix take on average, None if none has run."""
        average = key.prefix.duration_average
        return None if average < 0 else average

    def available(self, key: Any) -> bool:
        """Say whether a value is in memory, or can be loaded."""
        if key.who_has:
            return True
        entry = self._ledger.stored(key)
        return entry is not None and entry.usable


class Resident(SchedulerLineage):
    """The same as it would be without us: nothing is stored."""

    def available(self, key: Any) -> bool:
        """Say whether a value is in memory."""
        return bool(key.who_has)
