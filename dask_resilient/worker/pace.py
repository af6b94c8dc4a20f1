"""How long the tasks of a worker take, by prefix: the last few, for comparing devices."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Any

from dask.utils import key_split

LAST = 20
"""Tasks of one prefix that are remembered."""

PREFIXES = 50
"""Prefixes that are remembered, those that were used last."""


class Pace:
    """Remembers durations; only the worker's event loop calls it."""

    def __init__(self) -> None:
        self._seconds: OrderedDict[str, deque[float]] = OrderedDict()
        self._changed: set[str] = set()

    def transition(self, worker: Any, key: Any, start: str, finish: str) -> None:
        """Take in that a task of the worker changed its state."""
        if finish != "memory" or start not in ("executing", "long-running"):
            return
        task = worker.state.tasks.get(key)
        computed = (s for s in reversed(task.startstops) if s["action"] == "compute") if task is not None else ()
        for startstop in computed:
            self._add(key_split(key), float(startstop["stop"]) - float(startstop["start"]))
            return

    def _add(self, prefix: str, seconds: float) -> None:
        last = self._seconds.get(prefix)
        if last is None:
            last = self._seconds[prefix] = deque(maxlen=LAST)
            if len(self._seconds) > PREFIXES:
                gone, _ = self._seconds.popitem(last=False)
                self._changed.discard(gone)
        self._seconds.move_to_end(prefix)
        last.append(round(seconds, 6))
        self._changed.add(prefix)

    def report(self) -> dict[str, list[float]] | None:
        """Give seconds by prefix, where a task has ended since the last report; None if nowhere."""
        if not self._changed:
            return None
        changed, self._changed = self._changed, set()
        return {prefix: list(self._seconds[prefix]) for prefix in changed}
