"""Why partitions were taken from the store or not: text out of rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dask_resilient.core.explaining import Resumption, explain


@dataclass(frozen=True, slots=True)
class Explanation:
    """What was reused of the milestones of a name; printing it is enough."""

    rows: tuple[Resumption, ...]

    @classmethod
    def of(cls, rows: Iterable[Mapping[str, Any]]) -> Explanation:
        """Make it of what a scheduler, or a journal, says."""
        return cls(tuple(map(Resumption.from_dict, rows)))

    def __str__(self) -> str:
        """Give a line a milestone."""
        return "\n".join(map(explain, self.rows))

    def __repr__(self) -> str:
        """Give the same, for notebooks."""
        return str(self)
