"""Failed allocations: memory that one process alone cannot get, and others can, is leaked there."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

ALLOCATIONS = 5
"""Failed allocations in a row, of different tasks, after which a worker wants a new process. Judgement."""


@dataclass(slots=True)
class _Streak:
    keys: set[Hashable]
    prefixes: set[str]
    elsewhere: bool = False
    """Whether a task of the same kind got its memory on another worker since it began."""


class Allocations:
    """Counts failed allocations in a row by worker: memory that one process alone cannot get is leaked there."""

    def __init__(self) -> None:
        self._streaks: dict[str, _Streak] = {}

    @property
    def listening(self) -> bool:
        """Say whether it matters what tasks do; else `succeeded` changes nothing."""
        return bool(self._streaks)

    def failed(self, worker: str, key: Hashable, prefix: str) -> bool:
        """Take in that a task ran out of memory; say whether the worker wants a new process."""
        streak = self._streaks.setdefault(worker, _Streak(set(), set()))
        streak.keys.add(key)
        streak.prefixes.add(prefix)
        return len(streak.keys) >= ALLOCATIONS and streak.elsewhere

    def succeeded(self, worker: str, prefix: str) -> None:
        """Take in that a task succeeded, so memory can be had there."""
        self._streaks.pop(worker, None)
        for streak in self._streaks.values():
            # What needs little memory says nothing of what needs much.
            streak.elsewhere |= prefix in streak.prefixes

    def gone(self, worker: str) -> None:
        """Take in that the process is gone."""
        self._streaks.pop(worker, None)
