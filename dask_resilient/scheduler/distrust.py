"""What happens to the results of a run when a device of it turns out to compute wrong.

Nobody knows since when it did, only when a canary last found it right, nor which other device has computed on with what
it made. So everything that this run has stored for later runs since then is revoked, whoever made it, and it stores
nothing more for them. What is in memory stays: whether the run is to go on is for its user to say, who is told.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from datetime import datetime
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from dask_resilient.core.manifest import WHICHEVER, Place
from dask_resilient.errors import StoreError
from dask_resilient.scheduler.clients import tell
from dask_resilient.scheduler.entries import Entry
from dask_resilient.store import PosixStore

if TYPE_CHECKING:
    from dask_resilient.scheduler.watch import Watch

logger = logging.getLogger("dask_resilient")

MARGIN = 30.0
"""Seconds before a canary that was right which count as after it: the longest that one may take, and be under way."""

AT_ONCE = 100
"""Tombstones that are written before something else may have its turn at the store."""


class Distrust:
    """Knows which devices of one run have computed wrong, and takes back what was stored since.

    Parameters
    ----------
    watch
        Of the same scheduler.
    """

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._right: dict[str, float] = {}
        """When a canary last found a device right."""
        self._doubted: set[str] = set()
        """Attempts that were being written when a device was found wrong."""
        self.wrong: dict[str, str] = {}
        """What to tell of each device that computed wrong."""

    @property
    def reason(self) -> str:
        """Why nothing is stored for later runs, empty if it is."""
        return next(iter(self.wrong.values()), "")

    def tried(self, device: str, result: object, at: float) -> None:
        """Hear how a canary ended, and when."""
        if result == "right":
            self._right[device] = max(at, self._right.get(device, 0.0))
        elif result == "wrong" and device not in self.wrong:
            self._distrust(device, at)

    def _distrust(self, device: str, at: float) -> None:
        watch, right = self._watch, self._right.get(device)
        since = float("-inf") if right is None else right - MARGIN
        what = f"{device} computed wrong at {_clock(at)}"
        if right is None:
            self.wrong[device] = f"{what}, and no canary had found it right before: all that this run made may be wrong"
        else:
            self.wrong[device] = f"{what}: what this run made after {_clock(since)} may be wrong"
        places = self._withdraw(device, since, what)
        self._doubted |= {e.attempt for e in watch.ledger.entries.values() if e.attempt is not None and e.shelf}
        text = (
            f"{self.wrong[device]}. {len(places)} stored partitions of that are revoked, and nothing more is stored "
            "for later runs: run the script again, without that device"
        )
        logger.error("dask-resilient: %s", text)
        watch.event("distrust", device=device, since=right, revoked=len(places), reason=self.wrong[device])
        tell(watch.scheduler, text)
        self._revoke(iter(places), what)

    def _withdraw(self, device: str, since: float, reason: str) -> list[Place]:
        """Take what was stored since then out of use at once, and give its places.

        Of copies for this run only those of the device itself: others are as good as what is in memory.
        """
        ledger = self._watch.ledger
        places = [
            Place(shelf.milestone, index, shelf.valid[index], WHICHEVER)
            for shelf in ledger.shelves()
            for index in shelf.since(since)
        ]
        gone = {_generation(place) for place in places}
        for entry in list(ledger.entries.values()):
            if entry.place is None:
                continue
            own = (entry.shelf is None or entry.late) and entry.device == device and entry.made >= since
            if own:
                places.append(entry.place)
            if own or _generation(entry.place) in gone:
                self._watch.copies.withdraw(entry, reason)
        for place in places:
            if (shelf := ledger.shelf(place.milestone)) is not None:
                shelf.take(place.index, place.generation)
        return places

    # -- what comes later ----------------------------------------------------------------------------------------------

    def refuses(self, entry: Entry) -> str:
        """Say why a partition must not be stored, empty if it may."""
        return self.reason if entry.shelf is not None and not entry.late else ""

    def committed(self, entry: Entry, attempt: str) -> None:
        """Take back a partition that was being written when a device was found wrong."""
        if attempt not in self._doubted or entry.place is None:
            return
        self._doubted.discard(attempt)
        place, reason = entry.place, self.reason
        self._watch.copies.withdraw(entry, reason)
        self._revoke(iter([place]), reason)

    # -- in the thread of the store ------------------------------------------------------------------------------------

    def _revoke(self, places: Iterable[Place], reason: str) -> None:
        """Write the tombstones, some at a time: the lease of this run and others wait for the same thread."""
        store, some = self._watch.queue.store, list(islice(places, AT_ONCE))
        if store is not None and some:
            self._watch.queue.submit(partial(_bury, store, some, reason), lambda _: self._revoke(places, reason))


def _bury(store: PosixStore, places: Iterable[Place], reason: str) -> None:
    failed = []
    for place in places:
        try:
            store.revoke(place, reason)
        except StoreError as e:
            failed.append(str(e))
    if failed:
        logger.error("dask-resilient: %d partitions that may be wrong are not revoked: %s", len(failed), failed[0])


def _generation(place: Place) -> tuple[str, str, int]:
    return place.milestone, place.index, place.generation


def _clock(at: float) -> str:
    return f"{datetime.fromtimestamp(at).astimezone():%Y-%m-%d %H:%M:%S}"
