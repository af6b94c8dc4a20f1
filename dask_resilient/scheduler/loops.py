"""What the scheduler does for loops: which snapshots are stored, whether one is durable, and taking old ones away.

A snapshot is a partition of the loop's own milestone, named by its step; it is written when all collections of the
state are durable, so either all of it exists or nothing. What belongs to it has names that begin with its own.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Iterable
from time import time
from typing import TYPE_CHECKING, Any

from dask_resilient.core.fingerprints import changes
from dask_resilient.core.lineages import StoredLineage, read_lineage
from dask_resilient.core.milestones import LOOP, Milestone, read_description
from dask_resilient.core.outcome import SaveState
from dask_resilient.core.shelf import Shelf
from dask_resilient.errors import ResilienceError, StoreError
from dask_resilient.scheduler.lease import renew_now
from dask_resilient.scheduler.resume import LIST_SECONDS
from dask_resilient.store import PosixStore
from dask_resilient.store.archive import Archive
from dask_resilient.store.garbage import Collector
from dask_resilient.store.guarded import within
from dask_resilient.store.listing import directories

if TYPE_CHECKING:
    from dask_resilient.scheduler.watch import Watch

CHANGES = 5
"""Changes that are told of a loop that begins anew."""


class Loops:
    """The loops of one run.

    Parameters
    ----------
    watch
        Of the same scheduler.
    """

    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    # -- opening -----------------------------------------------------------------------------------------------------

    async def open(self, milestone: str, collection: str, description: bytes, lineage: bytes) -> dict[str, Any]:
        """Give what is stored of a loop, and in what it differs from the last one of its name.

        Raises
        ------
        OSError, ResilienceError
            If the store cannot be used.
        """
        watch, store = self._watch, self._watch.queue.store
        if store is None or not watch.resume.on:
            raise ResilienceError(watch.queue.reason or watch.resume.off)
        described, made_of = read_description(description), read_lineage(lineage)
        made = Milestone(milestone, watch.run, time(), described, made_of)
        watch.ledger.claimed.add(milestone)
        found, changed = await asyncio.to_thread(within, LIST_SECONDS, lambda: self._look(store, made, made_of))
        watch.ledger.bind(collection, found)
        return {"store": store.url, "token": store.token, "found": dict(found.valid), "changes": changed}

    def _look(self, store: PosixStore, made: Milestone, lineage: StoredLineage) -> tuple[Shelf, list[str]]:
        ledger, archive = self._watch.ledger, Archive(store.url, store.token, store.calls)
        renew_now(store, self._watch.run, ledger)
        before = None if archive.listing(made.milestone).receipts else self._before(archive, made)
        listing = archive.listing(made.milestone)
        store.declare(made)
        valid = {index: g for index, g in listing.valid().items() if made.description.has(index)}
        shelf = Shelf.of(made.milestone, made.description.name, 1, valid, listing.tombstones)
        shelf.counted = False
        if before is None or before.lineage is None:
            return shelf, []
        said = changes(before.lineage, lineage)
        return shelf, said[:CHANGES] + ([f"and {len(said) - CHANGES} more"] if len(said) > CHANGES else [])

    def _before(self, archive: Archive, made: Milestone) -> Milestone | None:
        """Give the loop of that name that another run has used last: one of this run only begins with another state."""
        of_name = (each for each in archive.milestones() if each.description.name == made.description.name)
        loops = [
            each
            for each in of_name
            if each.description.kind == LOOP and each.milestone != made.milestone and each.run != self._watch.run
        ]
        stored = [[each] for each in loops if archive.listing(each.milestone).receipts]
        return archive.by_use(stored)[-1][0] if stored else None

    # -- saving ------------------------------------------------------------------------------------------------------

    def durable(self, collections: Iterable[str]) -> dict[str, Any]:
        """Say how many partitions are stored, how many may come to be, and why others will not."""
        stored = pending = 0
        reasons: dict[str, None] = {}
        for name in collections:
            shelf = self._watch.ledger.shelf_of(name)
            if shelf is None:
                reasons["nothing of it is known: the store could not be listed"] = None
                continue
            lost = self._lost(shelf)
            reasons |= dict.fromkeys(lost.values())
            stored += len(shelf.valid)
            pending += max(shelf.npartitions - len(shelf.valid) - len(lost), 0)
        return {"stored": stored, "pending": pending, "reasons": list(reasons)}

    def _lost(self, shelf: Shelf) -> dict[str, str]:
        """Give why partitions that are computed are not saved, by index; one that is computed again may be yet."""
        over = (SaveState.FAILED, SaveState.NOT_SAVED, SaveState.REVOKED)
        return {
            entry.index: entry.reason
            for entry in self._watch.ledger.entries.values()
            if entry.shelf is shelf and entry.state in over and entry.task is not None and entry.task.state == "memory"
        }

    # -- taking away -------------------------------------------------------------------------------------------------

    async def drop(self, milestone: str, snapshots: Iterable[str]) -> dict[str, Any]:
        """Take snapshots away, with what belongs to them: first what makes them exist.

        Raises
        ------
        OSError, ResilienceError
            If the store cannot be used, or another run that lives uses them.
        """
        watch, store = self._watch, self._watch.queue.store
        if store is None:
            raise ResilienceError(watch.queue.reason)
        names = list(snapshots)
        if (shelf := watch.ledger.shelf(milestone)) is not None:
            for index in names:
                shelf.drop(index)
        parts = await watch.queue.ask(lambda: _parts(store, milestone, names))
        for part in parts:
            watch.ledger.unbind(part)
        watch.queue.submit(lambda: self._take(store, milestone, names, parts), lambda _: None)
        return {}

    def _take(self, store: PosixStore, milestone: str, names: list[str], parts: list[str]) -> None:
        renew_now(store, self._watch.run, self._watch.ledger)
        collector = Collector(Archive(store.url, store.token, store.calls), delete=True, idle=0.0)
        deque(collector.remove_partitions(milestone, names), maxlen=0)
        for part in parts:
            # A run that died may seem to live for some minutes: what it uses is looked at again the next time.
            with contextlib.suppress(FileNotFoundError, StoreError):
                deque(collector.remove(part, self._watch.run), maxlen=0)


def _parts(store: PosixStore, milestone: str, gone: Iterable[str]) -> list[str]:
    """Give m of the collections that belong to snapshots of a loop which are gone, or never came to be."""
    there = Archive(store.url, store.token, store.calls).listing(milestone).valid().keys() - set(gone)
    found = [name for name in directories(store.calls, store.url, "data") if name.startswith(f"{milestone}.")]
    return [name for name in found if ".".join(name.split(".")[1:3]) not in there]
