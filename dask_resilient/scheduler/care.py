"""All that is done about health on the scheduler: readings, blame, and a look at the work once a tick."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from time import time
from typing import Any

from dask_resilient.config import Settings
from dask_resilient.scheduler.blame import Blame
from dask_resilient.scheduler.keeper import Keeper
from dask_resilient.scheduler.members import Member
from dask_resilient.scheduler.verdicts import Verdicts
from dask_resilient.scheduler.work import Work

logger = logging.getLogger("dask_resilient")

TICK = 1.0
"""Seconds between two looks at all workers."""

LATE = 2.0
"""Seconds by which a tick may come late; then the scheduler itself was busy, and workers only seem to be silent."""


class Care:
    """Puts the parts together, and ticks.

    Parameters
    ----------
    scheduler
        The `distributed.Scheduler`.
    settings
        As the client read them.
    rules
        What the user's file of rules says.
    event
        Logs a structured event.
    keeper
        Acts on what is found.
    sampled
        Hears once a second how everything stands.
    """

    def __init__(
        self,
        scheduler: Any,
        settings: Settings,
        rules: Mapping[str, Any] | None,
        event: Callable[..., None],
        keeper: Keeper,
        sampled: Callable[[float], None] = lambda _now: None,
    ) -> None:
        protocol = str(scheduler.address or "").partition("://")[0]
        self._keeper = keeper
        self._sampled = sampled
        self.verdicts = Verdicts(settings, rules, protocol, event, keeper.judged, keeper.canary)
        self.blame = Blame(scheduler, self.verdicts, event, keeper.tries.fault)
        self._work = Work(scheduler, self.verdicts, settings.probe_hang, keeper.tries.hung)
        self._probes = settings.probe_enabled
        self._on = settings.probe_enabled or settings.quarantine_enabled
        self._ticks: Any = None
        self._last = 0.0

    def start(self) -> None:
        """Begin to tick."""
        from tornado.ioloop import PeriodicCallback

        self._last = time()
        self._ticks = PeriodicCallback(self._tick, 1000 * TICK)
        self._ticks.start()

    def stop(self) -> None:
        """End that."""
        if self._ticks is not None:
            self._ticks.stop()

    def joined(self, member: Member) -> None:
        """Take in a worker."""
        self.verdicts.joined(member, time())

    def removed(self, address: str) -> None:
        """Forget a worker."""
        self.blame.removed(address)
        self._work.removed(address)
        self.verdicts.removed(address)

    def _tick(self) -> None:
        now = time()
        last, self._last = self._last, now
        if now - last > TICK + LATE:
            return
        try:
            if self._probes:
                self._work.tick(now)
                self.blame.tick(now)
                self.verdicts.tick(now)
            if self._on:
                self._keeper.tick()
            self._sampled(now)
        except Exception:
            logger.exception("dask-resilient: the health of devices is not looked at any more")
            self.stop()
