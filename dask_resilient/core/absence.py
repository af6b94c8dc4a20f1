"""When a worker may be away for a moment, so that the cluster that started it does not take it for lost.

`distributed.SpecCluster`, the base of `LocalCluster`, `LocalCUDACluster` and those of dask-jobqueue, looks some time
after a worker has left (``distributed.deploy.lost-worker-timeout``, 15 s) whether its name is there, and ends its nanny
if not: also one whose process has come back meanwhile, and is being replaced a second time at that very moment.
"""

from __future__ import annotations

MARGIN = 1.0
"""Seconds by which clocks and loops may differ."""

USUAL = 10.0
"""Seconds that the start of a process is taken to need while none was seen. Judgement: cuDF alone takes some."""


class Absences:
    """Counts how often and how long workers are away, by name.

    Parameters
    ----------
    timeout
        Seconds after which a cluster looks.
    """

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._left: dict[str, list[float]] = {}
        self._took: dict[str, float] = {}

    def left(self, name: str, now: float) -> None:
        """Take in that a worker left."""
        self._left = {each: times for each, times in self._left.items() if now - times[-1] < self._timeout + MARGIN}
        recent = [at for at in self._left.get(name, ()) if now - at < self._timeout + MARGIN]
        self._left[name] = [*recent, now]

    def back(self, name: str, now: float) -> None:
        """Take in that a worker of that name joined."""
        if name in self._left:
            self._took = {each: took for each, took in self._took.items() if each in self._left}
            self._took[name] = now - self._left[name][-1]

    def wait(self, name: str, now: float) -> float:
        """Give the seconds to wait until a worker may be away for as long as its process needs to start."""
        away = 2 * self._took.get(name, USUAL) + MARGIN
        begin = now
        for at in sorted(self._left.get(name, ())):
            looks = at + self._timeout
            if begin - MARGIN < looks < begin + away:
                begin = looks + MARGIN
        return begin - now
