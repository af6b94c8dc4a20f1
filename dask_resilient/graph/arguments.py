"""Arguments of calls as facts, which tell what changed; that they count is in the structure of the graph."""

from __future__ import annotations

from typing import Any

from dask_resilient.core.fingerprints import Fact
from dask_resilient.graph.following import SHOWN


class Arguments:
    """The arguments of all functions of one fingerprint."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], list[Any]] = {}
        """By function and argument: the sum of the digests, and what is shown if that is always the same."""

    def add(self, function: str, name: str, digest: str, value: Any) -> None:
        """Take in an argument of a call: all calls of a function count together, in any order."""
        shown = repr(value) if type(value) in SHOWN else ""
        known = self._known.setdefault((function, name), [0, shown])
        known[0] = (known[0] + int(digest, 16)) % 2**128
        if known[1] != shown:
            known[1] = ""

    def facts(self) -> dict[str, Fact]:
        """Give the facts by name."""
        return {
            f"{function}({name})": Fact("argument", f"{total:032x}", shown)
            for (function, name), (total, shown) in self._known.items()
        }
