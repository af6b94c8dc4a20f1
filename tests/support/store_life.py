"""The life of a store under record, and a judge of what a power cut left of it."""

from __future__ import annotations

import json
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import reduce
from pathlib import Path
from random import Random

import crc32c
import numpy as np

from dask_resilient.core.manifest import Place
from dask_resilient.core.milestones import Description, Milestone, loads_milestone
from dask_resilient.errors import Damaged, Foreign, ResilienceError
from dask_resilient.protocols import Staged
from dask_resilient.store import Calls, PosixStore, open_store
from dask_resilient.testing.crashes import Crash
from dask_resilient.testing.recording import Recorder

FACTS = {"key": "k", "run": "r", "seconds": {"make": 1.5, "write": 0.5}}
_RECEIPT = re.compile(r"(.+)\.(\d+)\.json")


class Impatient(Calls):
    """Calls that wait for no disk."""

    def fdatasync(self, fd):
        """Return at once."""

    def fsync_directory(self, path):
        """Look whether it is there, and return at once."""
        self.names(path)


def stage(fill: int, rows: int = 8, chunks: int = 1) -> Staged:
    """Stage rows of seven numbers, of which no two are equal, in some chunks."""
    x = (np.arange(rows * 7, dtype="f8") + 1000 * fill).reshape(rows, 7)
    size = rows // chunks
    cut = tuple((memoryview(x[i : i + size].reshape(-1).view("u1")),) for i in range(0, rows, size))
    digests = tuple(reduce(lambda crc, buffer: crc32c.crc32c(buffer, crc), chunk, 0) for chunk in cut)
    return Staged("test", {"fill": fill}, "float64", x.shape, (size, 7), cut, digests, x.nbytes)


def content(staged: Staged) -> bytes:
    """Give the bytes that a reader must get."""
    return b"".join(bytes(b) for chunk in staged.chunks for b in chunk)[: staged.nbytes]


class Life:
    """What was asked of a store, and what it promised: everything that a judge must know."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.recorder = Recorder(base)
        self.values: dict[Place, bytes] = {}
        self.revoked: set[Place] = set()
        self.milestones: dict[str, Milestone] = {}

    def open(self, calls: Calls | None = None, *, create: bool = True) -> PosixStore:
        """Open the store, as another process would."""
        return open_store(self.base / "disk" / "store", create=create, calls=calls or self.recorder)

    def save(self, store: PosixStore, place: Place, staged: Staged) -> None:
        """Save one partition; if another writer was first, its copy is promised, once it is known to be durable."""
        self.values[place] = content(staged)
        try:
            store.write(place, staged, FACTS)
        except FileExistsError:
            receipt = store.winner(place)
            if receipt is None:
                return
            place = receipt.place
        store.calls.acknowledge(("saved", place))

    def revoke(self, store: PosixStore, place: Place) -> None:
        """Revoke one copy."""
        self.revoked.add(place)
        store.revoke(place, "differs")
        store.calls.acknowledge(("revoked", place))

    @staticmethod
    def description(name: str) -> Milestone:
        """Give what a store is told of a milestone."""
        return Milestone(name, "r", 1.0, Description("clean", "frame", 2))

    def declare(self, store: PosixStore, name: str) -> None:
        """Describe a milestone."""
        self.milestones[name] = self.description(name)
        store.declare(self.milestones[name])
        store.calls.acknowledge(("declared", name))


class Stopped(BaseException):
    """The process of a `Dying` store is no more."""


class Dying:
    """The calls of a process that is killed once the record has some number of steps."""

    def __init__(self, recorder: Recorder, at: int) -> None:
        self._recorder = recorder
        self._at = at

    def __getattr__(self, name):
        if name != "close" and len(self._recorder.log) >= self._at:
            raise Stopped
        return getattr(self._recorder, name)


class Turns:
    """Lets writers in threads do one call at a time, in an order that a seed decides."""

    def __init__(self, recorder: Recorder, writers: int, seed: int) -> None:
        self._recorder = recorder
        self._random = Random(seed)
        self._condition = threading.Condition()
        self._alive = list(range(writers))
        self._turn = self._random.choice(self._alive)

    def calls(self, writer: int):
        """Give the calls of one writer."""
        turns = self

        class Theirs:
            def __getattr__(self, name):
                return lambda *args: turns._do(writer, getattr(turns._recorder, name), args)

        return Theirs()

    def _do(self, writer, call, args):
        with self._condition:
            assert self._condition.wait_for(lambda: self._turn == writer, 60)
            try:
                return call(*args)
            finally:
                self._next()

    def _next(self):
        if self._alive:
            self._turn = self._random.choice(self._alive)
        self._condition.notify_all()

    def leave(self, writer):
        """Wait for one's turn, and take no more."""
        with self._condition:
            assert self._condition.wait_for(lambda: self._turn == writer, 60)
            self._alive.remove(writer)
            self._next()


class Judge:
    """Opens what a power cut left, as a new process would, and lists what is wrong with it."""

    def __init__(self, life: Life, room: Path) -> None:
        self.life = life
        self.room = room

    def faults(self, crash: Crash) -> list[str]:
        """Give every broken promise."""
        shutil.rmtree(self.room, ignore_errors=True)
        self.room.mkdir()
        crash.materialise(self.room)
        try:
            store = open_store(self.room / "disk" / "store", create=True, calls=Impatient())
        except ResilienceError as e:
            return [f"cannot be opened: {e}"]
        found = dict(self._receipts(Path(store.url)))
        checks: tuple[Callable[..., Iterator[str]], ...] = (self._receipts_are_right, self._promises, self._milestones)
        faults = [fault for check in checks for fault in check(store, found, crash.acknowledged)]
        return faults + list(self._saving_again(store))

    def _receipts(self, root: Path) -> Iterator[tuple[tuple[str, str, int], bool]]:
        """Give milestone, index and generation of each receipt, and whether it is revoked; by names alone."""
        for path in root.glob("commit/*/*.json"):
            match = _RECEIPT.fullmatch(path.name)
            if match and not path.name.startswith("."):
                tombstone = root / "revoked" / path.parent.name / path.name
                yield (path.parent.name, match[1], int(match[2])), tombstone.exists()

    def _attempts(self, identity: tuple[str, str, int]) -> list[Place]:
        return [p for p in self.life.values if (p.milestone, p.index, p.generation) == identity]

    def _receipts_are_right(self, store, found, acknowledged) -> Iterator[str]:
        """A receipt that is there is sound, and so is every byte that it names."""
        for identity, is_revoked in found.items():
            place = Place(*identity, "x")
            before = replace(place, generation=max(0, place.generation - 1))
            is_left = (place.milestone, place.index, before.generation) in found
            if place.generation and is_left and not Path(store.url, before.tombstone).exists():
                yield f"{before} has a successor and no tombstone"
            if is_revoked:
                yield from self._tombstone_is_right(Path(store.url), place)
                continue
            yield from self._reads_right(store, identity)

    def _tombstone_is_right(self, root, place) -> Iterator[str]:
        try:
            found = Place.from_dict(json.loads((root / place.tombstone).read_bytes())["place"])
        except (ValueError, LookupError) as e:
            yield f"the tombstone of {place} is torn: {e!r}"
        else:
            if found not in self.life.revoked:
                yield f"{found} is revoked by nobody"

    def _reads_right(self, store, identity) -> Iterator[str]:
        endings = []
        for place in self._attempts(identity):
            try:
                payload = store.read(place, "k")[1].tobytes()
            except Foreign:
                continue  # the receipt is that of another attempt
            except ResilienceError as e:
                endings.append(f"{place} is torn: {e}")
            else:
                endings.append("" if payload == self.life.values[place] else f"{place} READS WRONG")
        if endings.count("") != 1:
            yield from endings or [f"{identity} is the receipt of nobody"]

    def _promises(self, store, found, acknowledged) -> Iterator[str]:
        """What was acknowledged is there."""
        for promise in acknowledged:
            kind, what = promise
            if ("removing", getattr(what, "milestone", what)) in acknowledged:
                continue
            if kind == "revoked" and not Path(store.url, what.tombstone).exists():
                yield f"the tombstone of {what} is lost"
            if kind == "saved":
                is_revoked = found.get((what.milestone, what.index, what.generation))
                if is_revoked is None and not Path(store.url, what.tombstone).exists():
                    yield f"{what} is lost"
                if is_revoked is False and store.winner(what).place != what:
                    yield f"{what} was replaced"
            if kind == "declared" and not Path(store.url, "milestones", f"{what}.json").exists():
                yield f"the description of {what} is lost"

    def _milestones(self, store, found, acknowledged) -> Iterator[str]:
        """A description is whole, and there wherever there is a receipt of that milestone."""
        for name, milestone in self.life.milestones.items():
            path = Path(store.url, "milestones", f"{name}.json")
            if not path.exists():
                if any(identity[0] == name for identity in found):
                    yield f"{name} has receipts and no description"
                continue
            try:
                if loads_milestone(path.read_bytes(), name) != milestone:
                    yield f"the description of {name} READS WRONG"
            except (Damaged, Foreign) as e:
                yield f"the description of {name} is torn: {e}"

    def _saving_again(self, store) -> Iterator[str]:
        """Every partition can be saved: in this generation, or in the next one where it is revoked."""
        staged = stage(99)
        for milestone, index in sorted({(p.milestone, p.index) for p in self.life.values}):
            place = Place(milestone, index, 0, "again")
            while Path(store.url, place.tombstone).exists():
                place = replace(place, generation=place.generation + 1)
            try:
                store.write(place, staged, FACTS)
            except FileExistsError:
                continue  # judged already
            except ResilienceError as e:
                yield f"{place} cannot be saved again: {e}"
                continue
            if store.read(place, "k")[1].tobytes() != content(staged):
                yield f"{place} READS WRONG after saving it again"
