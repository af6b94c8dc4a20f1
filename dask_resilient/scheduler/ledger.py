"""Which partitions are being saved, which are durable, and which copy a key may be loaded from.

An entry lives as long as the scheduler's task: a key that is forgotten loses its entry, so that the same key submitted
anew is computed anew. Not so where the milestone is known to other runs, by its fingerprint or by the user's word: then
its **shelf** says what is stored, a save goes on when the key is forgotten, and the next task of that key is loaded.

The scheduler answers each staged attempt with a place, a **grant**; so there is one authority on generations, and an
attempt of a forgotten task can never become the copy of a new task of the same name that makes something else.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any

from dask_resilient.core.manifest import WHICHEVER, digest, split_key
from dask_resilient.core.outcome import SaveState
from dask_resilient.core.shelf import Shelf
from dask_resilient.scheduler.entries import Entry, Tally, beside

ENDED_KEPT = 10_000
"""Rows of forgotten keys that are remembered at most, the newest."""


@dataclass(slots=True)
class _Life:
    """One life of the keys of a collection: their milestone, which indices it has seen, how many live."""

    milestone: str
    seen: set[str] = field(default_factory=set)
    alive: int = 0
    late: bool = False
    """Whether it has late copies."""


class Ledger:
    """All entries of one run."""

    def __init__(self, run: str) -> None:
        self.run = run
        self.entries: dict[Any, Entry] = {}
        self.tally = Tally()
        self.ended: deque[dict[str, Any]] = deque(maxlen=ENDED_KEPT)
        self.ended_counts: dict[str, Counter[str]] = {}
        self.totals: dict[str, int] = {}
        self._lives: dict[str, _Life] = {}
        self._shelves: dict[str, Shelf] = {}
        """What other runs know too, by the name of the collection."""
        self.claimed: set[str] = set()
        """The milestones of all shelves; also used by other threads."""
        self.own: frozenset[str] = frozenset()
        """Those of this run only, as of the last time that somebody asked; also read by other threads."""
        self.kept: set[str] = set()
        """Those of them that were marked to be kept."""
        self._begun = 0

    # -- entries -----------------------------------------------------------------------------------------------------

    def bind(self, collection: str, shelf: Shelf) -> None:
        """Take in that the keys of a collection are the partitions of a milestone that other runs know."""
        if collection not in self._lives:
            self._shelves.setdefault(collection, shelf)
            if shelf.counted:
                self.totals.setdefault(shelf.name, shelf.npartitions)

    def shelf(self, milestone: str) -> Shelf | None:
        """Give the shelf of a milestone."""
        return next((shelf for shelf in self._shelves.values() if shelf.milestone == milestone), None)

    def shelf_of(self, collection: str) -> Shelf | None:
        """Give the shelf of a collection."""
        return self._shelves.get(collection)

    def unbind(self, milestone: str) -> None:
        """Take in that what is stored of a milestone is to be taken away: nothing is loaded from it any more."""
        self.claimed.discard(milestone)
        for name in [name for name, shelf in self._shelves.items() if shelf.milestone == milestone]:
            del self._shelves[name]
        for entry in self.entries.values():
            if entry.milestone == milestone and not entry.late:
                entry.place, entry.state, entry.reason = None, SaveState.NOT_SAVED, "its snapshot was superseded"

    def is_bound(self, collection: str) -> bool:
        """Say whether a collection has its shelf already, or entries of this run only."""
        return collection in self._shelves or collection in self._lives

    def stored(self, task: Any) -> Entry | None:
        """Give the entry of a task; a new one where another run, or another task of this one, has stored its value."""
        entry = self.entries.get(task.key)
        if entry is not None and entry.task is task:
            return entry
        if not self._shelves:
            return None
        collection, index = split_key(task.key)
        shelf = self._shelves.get(collection)
        if shelf is None or (entry is None and index not in shelf.valid):
            return None
        return self._new(task, shelf.name, shelf.npartitions)

    def entry(self, task: Any, name: str, npartitions: int) -> Entry:
        """Give the entry of a task, a new one if it has none."""
        entry = self.entries.get(task.key)
        if entry is None or entry.task is not task:
            entry = self._new(task, name, npartitions)
        if entry.name not in self.totals and (entry.shelf is None or entry.shelf.counted):
            entry.name, entry.npartitions = name, npartitions  # it may have been saved late, of a worker without store
            self.totals[name] = npartitions
        return entry

    def late(self, task: Any) -> Entry:
        """Give the entry of a task whose value is saved late; it need be no milestone."""
        entry = self.entries.get(task.key)
        if entry is None or entry.task is not task:
            entry = self._new(task, split_key(task.key)[0], 1)
        return entry

    def grant_late(self, entry: Entry) -> None:
        """Take in that an attempt of a partition is late."""
        entry.late = True
        collection, index = split_key(entry.key)
        if entry.shelf is not None:
            # Such a copy is of this task only, whatever its milestone: no digest tells whether it was changed since.
            entry.beside = self._life(f"{collection}\0late", index).milestone
            return
        entry.beside = beside(entry.milestone)
        life = self._lives.get(collection)
        if life is not None:
            life.late = True

    def _new(self, task: Any, name: str, npartitions: int) -> Entry:
        collection, index = split_key(task.key)
        shelf = self._shelves.get(collection)
        before = self.entries.get(task.key)
        if before is not None:
            if shelf is not None and before.task is None:
                before.task = task
                return before
            self.forget(task.key)
            self._uncount(before)
        milestone = self._life(collection, index).milestone if shelf is None else shelf.milestone
        entry = self.entries[task.key] = Entry(task.key, name, index, milestone, npartitions, task, shelf)
        if shelf is not None:
            entry.generation = shelf.generation(index)
            if index in shelf.valid:
                entry.place, entry.state = entry.where(WHICHEVER), SaveState.DURABLE
                entry.nbytes = shelf.sizes.get(index, 0)
        entry.tally = self.tally
        self.tally.take(entry)
        return entry

    def _uncount(self, entry: Entry) -> None:
        """Have the tally count an entry no more that is none of this ledger's."""
        entry.tally = None
        self.tally.drop(entry)

    def _life(self, collection: str, index: str) -> _Life:
        """Give the life that a partition belongs to; an index that was there and was forgotten starts a new one."""
        life = self._lives.get(collection)
        if life is None or index in life.seen:
            self._begun += 1
            life = self._lives[collection] = _Life(digest(self.run, collection, str(self._begun))[:32])
        life.seen.add(index)
        life.alive += 1
        return life

    def forget(self, key: Any) -> Entry | None:
        """Let go of the entry of a forgotten key, and give it; its row stays among the ended ones.

        None where there is none, or it stays: what is under way for a milestone that other runs know is still wanted.
        """
        entry = self.entries.get(key)
        if entry is None:
            return None
        if entry.shelf is not None and not entry.late:
            entry.task = None
            if entry.busy:
                return None
        return self._end(entry)

    def settle(self, entry: Entry) -> None:
        """Let go of an entry whose key was forgotten, if nothing is under way for it any more."""
        if entry.task is None and not entry.busy and self.entries.get(entry.key) is entry:
            self._end(entry)

    def _end(self, entry: Entry) -> Entry:
        del self.entries[entry.key]
        self._uncount(entry)
        if entry.state is SaveState.SAVING:
            entry.state, entry.reason = SaveState.NOT_SAVED, "released before it was saved"
        self.ended.append(entry.to_dict())
        if entry.shelf is None or entry.state is not SaveState.DURABLE:  # else the shelf counts it
            self.ended_counts.setdefault(entry.name, Counter())[str(entry.state)] += 1
        collection, _ = split_key(entry.key)
        if entry.shelf is not None:
            collection += "\0late"
        life = self._lives.get(collection)
        if life is not None and life.milestone in (entry.milestone, entry.beside):
            life.alive -= 1
            if not life.alive:
                del self._lives[collection]
        return entry

    def clear(self) -> list[Entry]:
        """Forget every key (`client.restart`)."""
        return [entry for key in list(self.entries) if (entry := self.forget(key)) is not None]

    def milestones(self) -> set[str]:
        """Give the milestones that keys of this run may be loaded from."""
        own = {life.milestone for life in self._lives.values()}
        own |= {beside(life.milestone) for life in self._lives.values() if life.late}
        self.own = frozenset(own)
        return self.claimed | own

    # -- rows --------------------------------------------------------------------------------------------------------

    def rows(self) -> list[dict[str, Any]]:
        """Give a row a partition: those of known keys first, then the newest of forgotten ones."""
        return [entry.to_dict() for entry in self.entries.values()] + list(self.ended)

    def shelves(self) -> list[Shelf]:
        """Give what other runs know too, each milestone once."""
        return list({shelf.milestone: shelf for shelf in self._shelves.values()}.values())

    def summary(self) -> list[dict[str, Any]]:
        """Give a row a milestone name: how many partitions stand where, and how many are released already."""
        # What was saved late need be of no milestone.
        counts = {name: Counter(self.tally.counts.get(name, ())) for name in self.totals}
        for shelf in (shelf for shelf in self.shelves() if shelf.counted):
            counts[shelf.name]["durable"] += max(len(shelf.valid) - self.tally.durable[shelf.milestone], 0)
            counts[shelf.name]["nbytes"] += sum(shelf.sizes.values())
            counts[shelf.name]["unread"] += len(shelf.valid) - len(shelf.sizes)
        return [
            {
                "name": name,
                "total": self.totals[name],
                "durable": live["durable"],
                "late": live["late"],
                "saving": live["saving"],
                "nbytes": live["nbytes"],
                "unread": live["unread"],
                "lost": sum(live[s] for s in ("failed", "not saved", "revoked")),
                "released": sum(self.ended_counts.get(name, Counter()).values()),
                "released_durable": self.ended_counts.get(name, Counter())["durable"],
            }
            for name, live in counts.items()
        ]

    def saving_on(self, worker: str) -> int:
        """Count the partitions of one worker whose saving is under way."""
        return sum(entry.attempt is not None and entry.worker == worker for entry in self.entries.values())

    def saving(self) -> int:
        """Count the partitions whose saving is under way."""
        return sum(entry.state is SaveState.SAVING and entry.attempt is not None for entry in self.entries.values())
