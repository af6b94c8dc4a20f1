"""The scheduler's side of one run: it hears hooks and messages, asks the core, and sends the answers.

Synchronous and without I/O throughout: what touches the store goes through the `StoreQueue`. What a key is loaded from
is in :mod:`~dask_resilient.scheduler.ledger`, how Dask is made to load it in :mod:`dask_resilient.internals.detour`,
messages about copies in :mod:`~dask_resilient.scheduler.copies`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterable, Mapping
from time import time
from typing import Any

from dask_resilient.config import Settings
from dask_resilient.core.recovery import ATTEMPTS, UNBEGUN, Costs, Reloading, should_reload
from dask_resilient.internals.detour import Detour
from dask_resilient.internals.rows import Rows
from dask_resilient.internals.versions import unsupported
from dask_resilient.scheduler.care import Care
from dask_resilient.scheduler.chronicle import Chronicle
from dask_resilient.scheduler.copies import Copies
from dask_resilient.scheduler.keeper import Keeper
from dask_resilient.scheduler.ledger import Ledger
from dask_resilient.scheduler.lineage import SchedulerLineage
from dask_resilient.scheduler.losses import Losses
from dask_resilient.scheduler.members import HOLD_SECONDS, Members
from dask_resilient.scheduler.queue import StoreQueue
from dask_resilient.scheduler.reports import Reports
from dask_resilient.scheduler.resume import Resume
from dask_resilient.tasks import load

logger = logging.getLogger("dask_resilient")

TOPIC = "resilience"


class Watch:
    """Watches one scheduler.

    Parameters
    ----------
    scheduler
        The `distributed.Scheduler`.
    settings
        As the client read them.
    run
        Id of this life of the plugin.
    queue
        The scheduler's way to the store.
    alive
        Says whether the plugin is still registered.
    rules
        What the user's file of rules says.
    """

    def __init__(
        self,
        scheduler: Any,
        settings: Settings,
        run: str,
        queue: StoreQueue,
        alive: Any,
        rules: Mapping[str, Any] | None = None,
    ) -> None:
        self.scheduler = scheduler
        self.settings = settings
        self.run = run
        self.queue = queue
        self.alive = alive
        self.ledger = Ledger(run)
        self.losses = Losses(self)
        self.book = self.losses.book
        self.members = Members()
        self.costs = Costs(floor=settings.recover_floor, margin=settings.recover_margin)
        self.reloading = Reloading(pause=settings.recover_pause)
        self.detour = Detour(scheduler, self, load)
        self.copies = Copies(self)
        self.resume = Resume(self)
        self.reports = Reports(self)
        self.keeper = Keeper(self)
        self.chronicle = Chronicle(self, time())
        self.care = Care(scheduler, settings, rules, self.event, self.keeper, self.chronicle.tick)
        self.rows: Rows | None = None
        self.recovery_off = ""
        """Why recovery is left to Dask, empty if it is not."""
        self.nanny_closed: Callable[[str], None] = lambda _: None
        """Hears the address of each nanny that was closed with its worker."""
        self._reloaded: set[Any] = set()

    # -- life --------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Take in the workers that are there, and install the detour if this Dask is one that it is right on."""
        self.care.start()
        for address, ws in self.scheduler.workers.items():
            self._joined(address, ws)
        if not self.settings.recover_enabled:
            self.recovery_off = "resilience.recover.enabled is false"
            return
        reason = unsupported(self.scheduler)
        if reason is not None and not self.settings.recover_untested_dask:
            self.recovery_off = reason
            logger.warning("dask-resilient: %s: partitions are saved and reported, recovery is left to Dask", reason)
            return
        self.rows = Rows(self.detour, self._surprise)
        self.rows.install()
        self.resume.start()

    def registered(self) -> None:
        """Take in who came and went while the plugin was being registered, when it had no hooks yet."""
        here, known = set(self.scheduler.workers), {row["worker"] for row in self.members.rows()}
        for address in here - known:
            self.added(address)
        for address in known - here:
            self.removed(address)

    def stop(self) -> None:
        """Undo every intrusion on the scheduler, also with loads under way."""
        self.care.stop()
        self.keeper.stop()
        self.resume.stop()
        if self.rows is not None:
            self.rows.undo()
            self.rows = None

    def _surprise(self, e: BaseException) -> None:
        self.recovery_off = f"it met something unexpected: {e!r}"
        logger.error("dask-resilient: recovery is left to Dask from now on: %r", e, exc_info=e)
        self.event("recovery-off", reason=self.recovery_off)

    def event(self, action: str, **fields: Any) -> None:
        """Log a structured event under the topic ``resilience``."""
        self.scheduler.log_event(TOPIC, {"action": action, "run": self.run, **fields})

    # -- the detour's host -------------------------------------------------------------------------------------------

    def ticket(self, ts: Any) -> Mapping[str, Any] | None:
        """Give the load's argument if the key has a copy that may be used, and loading it is cheaper."""
        entry = self.ledger.stored(ts)
        if entry is None or not entry.usable or entry.bad_loads >= ATTEMPTS:
            return None
        if self.reloading.paused(time()):
            return None
        if not should_reload(ts, entry.nbytes, SchedulerLineage(self.ledger), self.costs):
            return None
        assert entry.place is not None
        return {"dask_key": ts.key, "key": entry.digest_of_key, "place": entry.place.to_dict()}

    def loaders(self, key: Hashable) -> set[str] | None:
        """Give the workers that can load a key."""
        entry = self.ledger.entries.get(key)
        return self.members.loaders(entry.avoid if entry is not None else set(), time())

    def expected(self) -> set[str]:
        """Give the workers that have just joined and not reported yet."""
        return self.members.expected(time())

    def left(self, key: Any, state: str, was: str, moved: bool) -> None:
        """Count a load that brought the value, and one that did not."""
        entry = self.ledger.entries.get(key)
        begun, ended = "", False
        if entry is not None:
            begun, entry.loading = entry.loading, ""
            ended, entry.ended = entry.ended, False
        if state == "memory":
            self._reloaded.add(key)
            if entry is not None:
                entry.bad_loads = 0
                entry.avoid.clear()
        elif entry is not None and not moved:
            if was == "erred":
                # An error here proves no damage (it may be this environment), but no second try would differ.
                entry.refuse("a load ended as an error: recomputed in this run")
            elif was == "processing" and self.losses.losing:
                entry.bad_loads += 1 if begun == self.losses.losing else UNBEGUN
            elif was == "processing" and (ts := entry.task) is not None and (ts.waiters or ts.who_wants):
                # Else nobody needs it any more.
                # Not ended: a late result of an earlier run came in between, its worker closes, or it was to be stolen.
                entry.bad_loads += 1 if ended else UNBEGUN

    # -- hooks -------------------------------------------------------------------------------------------------------

    def transition(  # noqa: C901, PLR0912 - branches cost less than calls here
        self, key: Any, start: str, finish: str, startstops: Iterable[Mapping[str, Any]] | None = None
    ) -> None:
        """Hear of every transition. The hot path: a key that is nobody's concern costs a look-up or two."""
        counting = self.book.counting
        if finish == "memory":
            reloaded = key in self._reloaded
            if reloaded:
                self._reloaded.discard(key)
            if counting:
                self.losses.back(key, reloaded, startstops)
        elif finish == "waiting":
            if counting and start == "released":
                self.book.wanted(key, (dep.key for dep in self.scheduler.tasks[key].dependents))
        elif finish == "released":
            if counting and start != "memory" and self.book.sent_back(key):
                # Not here: the same transitions may ask for it again.
                self.scheduler.loop.add_callback(self.losses.settle)
        elif finish == "forgotten":
            if key in self.ledger.entries:
                self.copies.forget(key)
            if counting:
                self.losses.closed(self.book.dropped(key, time()))
            if self.keeper.tries.concerned:
                self.keeper.tries.forget(key)
        elif finish == "erred" and counting:
            self.losses.closed(self.book.dropped(key, time()))
        if self.care.blame.listening and finish in ("memory", "forgotten"):
            # Not here: what follows may take tasks back, and these transitions are not over.
            self.scheduler.loop.add_callback(self.care.blame.transition, key, finish)

    def removed(self, address: str) -> None:
        """Take in that a worker is gone and its loss is worked off."""
        self.care.removed(address)
        self.keeper.removed(address)
        self.members.remove(address)
        self.copies.worker_lost(address)
        self.losses.worked_off()
        self.detour.renew()

    def added(self, address: str) -> None:
        """Take in that a worker joined: no load goes there until it has reported."""
        self._joined(address, self.scheduler.workers[address])
        self.detour.renew()

    def _joined(self, address: str, ws: Any) -> None:
        member = self.members.add(address, ws.name, ws.host, time())
        self.care.joined(member)
        # A worker with our preload says at once which device it has; of others a message tells that.
        device = ws.extra.get("resilience")
        if isinstance(device, Mapping):
            self.reports.device(address, device)
        else:
            self.keeper.joined(member)
        # Loads that are held for this worker are given up if it has not reported by then.
        self.scheduler.loop.call_later(HOLD_SECONDS, self.detour.renew)

    def restarted(self) -> None:
        """Take in that every task is gone (`client.restart`)."""
        for key in list(self.ledger.entries):
            self.copies.forget(key)
        self.detour.parked.clear()
        self._reloaded.clear()
        self.losses.closed(self.book.forget(time()))

    # -- messages of workers -----------------------------------------------------------------------------------------

    def handle(self, worker: str, kind: str, msg: Mapping[str, Any]) -> None:
        """Handle one message of a worker."""
        handlers = {
            "hello": self.reports.hello,
            "device": self.reports.device,
            "failed": self.reports.failed,
            "saving-off": self.reports.saving_off,
            "loaded": self.reports.loaded,
            "readings": self.care.verdicts.readings,
            "fault": self.reports.fault,
            "tried": self.keeper.tried,
            "busy": self.keeper.enact.busy,
            "leaving": self.keeper.enact.leaving,
            "late": self.keeper.enact.drains.answered,
            "staged": self.copies.staged,
            "committed": self.copies.committed,
            "not-saved": self.copies.not_saved,
            "loading": self.copies.loading,
            "load-ended": self.copies.load_ended,
            "verified": self.copies.verified,
        }
        handlers[kind](worker, msg)
