"""Collecting garbage: look at one milestone, ask the core what may go, look at the leases again, delete slowly.

Several collectors may work at once, beside live runs: what is gone already is no error, and what a run begins to use
meanwhile is seen, or is found absent by that run, which then recomputes.
"""

from __future__ import annotations

import contextlib
import itertools
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from dask_resilient.core.garbage import Contents, Garbage, StoredReceipt, Why, everything, garbage, in_use
from dask_resilient.errors import Damaged, Foreign, StoreError
from dask_resilient.store.archive import Archive
from dask_resilient.store.files import remove_attempt
from dask_resilient.store.leases import clock, leases
from dask_resilient.store.listing import (
    attempt_names,
    directories,
    is_draft,
    is_leftover,
    listing,
    milestone_ids,
    names,
    read_milestone,
    receipt_path,
)
from dask_resilient.store.reading import read_receipt

IDLE = 1.0
"""Seconds of rest per second of deleting: freed blocks are given back to the disk behind the deletion, and with that
writes of others took 24 times as long (measured on ext4 with ``discard``)."""

TOGETHER = 32
"""Things that are taken away before the disk is waited for, once for all of them."""

LOOK = 10.0
"""Seconds of deleting between looks at the leases: a run may begin to use a milestone that is being deleted."""


@dataclass(frozen=True, slots=True)
class Removed:
    """One thing that was deleted, or would be."""

    milestone: str
    what: str
    """``"partition"``, ``"attempt"``, ``"tombstone"``, ``"draft"`` or ``"description"``."""
    path: str
    nbytes: int
    why: Why


class Collector:
    """Deletes garbage of one store.

    Parameters
    ----------
    archive
        The store.
    delete
        False only says what would be deleted.
    idle
        Seconds of rest per second of deleting.
    """

    def __init__(
        self, archive: Archive, *, delete: bool, idle: float = IDLE, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._calls, self._root = archive.calls, archive.root
        self._delete = delete
        self._idle = idle
        self._sleep = sleep

    def milestones(self) -> list[str]:
        """Give the m of everything that lies in the store, described or not."""
        kinds = ("data", "commit", "revoked")
        found = {m for kind in kinds for m in directories(self._calls, self._root, kind)}
        return sorted(found | set(milestone_ids(self._calls, self._root)))

    def collect(self, milestone: str, grace: float) -> Iterator[Removed]:
        """Delete the garbage under one m, and give each piece of it."""
        now = clock(self._calls, self._root)
        contents = self._contents(milestone, now)
        # After the look at the contents: a run that begins to use the milestone names it before it reads receipts.
        runs = leases(self._calls, self._root, now)
        yield from self._remove(contents, garbage(contents, runs, grace))

    def remove(self, milestone: str, owner: str | None = None) -> Iterator[Removed]:
        """Delete a whole milestone, whatever its age.

        Parameters
        ----------
        milestone
            Its m.
        owner
            The run that asks for it, which may have made it itself.

        Raises
        ------
        StoreError
            If another live run uses it.
        """
        now = clock(self._calls, self._root)
        contents = self._contents(milestone, now)
        runs = leases(self._calls, self._root, now)
        user = in_use(contents, (lease for run, lease in runs.items() if run != owner))
        if user is not None:
            raise StoreError(f"milestone {milestone!r} is in use by run {user!r}, which lives; end that run first")
        yield from self._remove(contents, everything(contents, Why.REMOVED))

    def remove_partitions(self, milestone: str, indices: Iterable[str]) -> Iterator[Removed]:
        """Delete some partitions of a milestone, whoever uses it: an owner's word about what is its own."""
        contents, gone = self._contents(milestone, clock(self._calls, self._root)), set(indices)
        found = [
            Garbage(Why.REMOVED, receipt=place, attempt=receipt.attempt)
            for place, receipt in contents.receipts.items()
            if place[0] in gone
        ]
        for each in found:
            if (row := self._take(milestone, each)) is not None and self._delete:
                self._finish(milestone, [(each, row)])
                yield row

    def sweep_root(self, grace: float) -> Iterator[Removed]:
        """Delete what probes and runs that died have left beside the milestones."""
        now = clock(self._calls, self._root)
        drafts = {name: self._age(name, now) for name in self._calls.names(self._root) if is_leftover(name)}
        for directory in ("milestones", *(f"runs/{run}" for run in directories(self._calls, self._root, "runs"))):
            drafts |= self._drafts(directory, now)
        contents = Contents("", drafts=drafts)
        yield from self._remove(contents, garbage(contents, leases(self._calls, self._root, now), grace))

    # -- looking -----------------------------------------------------------------------------------------------------

    def _contents(self, m: str, now: float) -> Contents:
        calls, root = self._calls, self._root
        run, keep = None, False
        with contextlib.suppress(OSError, Damaged, Foreign):
            described = read_milestone(calls, root, m)
            run, keep = described.run, described.description.keep
        # Before the receipts: an attempt that is committed in between must not look abandoned.
        attempts = {name: self._age(f"data/{m}/{name}", now) for name in attempt_names(calls, root, m)}
        found = listing(calls, root, m)
        receipts = {(i, g): self._receipt(m, i, g, now) for i, gs in found.receipts.items() for g in gs}
        tombstones = {
            (i, g): self._age(f"revoked/{m}/{i}.{g}.json", now) for i, gs in found.tombstones.items() for g in gs
        }
        drafts = self._drafts(f"commit/{m}", now) | self._drafts(f"revoked/{m}", now)
        age = self._age(f"milestones/{m}.json", now)
        return Contents(m, run, keep, age, receipts, tombstones, attempts, drafts)

    def _drafts(self, directory: str, now: float) -> dict[str, float]:
        paths = (f"{directory}/{name}" for name in names(self._calls, self._root, directory) if is_draft(name))
        return {path: self._age(path, now) for path in paths}

    def _receipt(self, m: str, index: str, generation: int, now: float) -> StoredReceipt:
        path = receipt_path(m, index, generation)
        age = self._age(path, now)
        try:
            receipt = read_receipt(self._calls, self._root, path)
        except (Damaged, Foreign, OSError):
            return StoredReceipt(None, age)
        attempt = receipt.place.data.rpartition("/")[2]
        return StoredReceipt(attempt, age, receipt.run, receipt.temporary)

    def _age(self, path: str, now: float) -> float:
        """Give the age of what lies at a path; of what is absent none, so that it counts as new."""
        try:
            return max(0.0, now - self._calls.lstat(f"{self._root}/{path}").st_mtime)
        except OSError:
            return 0.0

    # -- deleting ----------------------------------------------------------------------------------------------------

    def _remove(self, contents: Contents, found: Iterable[Garbage]) -> Iterator[Removed]:
        m = contents.milestone
        looked = time.monotonic()
        for batch in _batches(found):
            begun = time.monotonic()
            if self._delete and begun - looked >= LOOK:
                if in_use(contents, leases(self._calls, self._root, clock(self._calls, self._root)).values()):
                    return
                looked = begun
            taken = [(each, row) for each in batch if (row := self._take(m, each)) is not None]
            if self._delete and taken:
                self._finish(m, taken)
                self._sleep(self._idle * (time.monotonic() - begun))
            yield from (row for _, row in taken)
        if self._delete and m:
            for kind in ("data", "commit", "revoked"):
                with contextlib.suppress(OSError):  # not empty, which is right
                    self._calls.rmdir(f"{self._root}/{kind}/{m}")

    def _take(self, m: str, each: Garbage) -> Removed | None:
        """Take away the file that something is, or by which it exists; None if it is gone already."""
        what, path = _file(m, each)
        nbytes = self._size(f"data/{m}/{each.attempt}") if each.attempt is not None else 0
        if what == "attempt":
            return Removed(m, what, path, nbytes, each.why)
        try:
            found = self._calls.lstat(f"{self._root}/{path}")
            if stat.S_ISDIR(found.st_mode):
                return None
            if self._delete:
                self._calls.unlink(f"{self._root}/{path}")
        except FileNotFoundError:
            return None
        return Removed(m, what, path, nbytes if what == "partition" else found.st_size, each.why)

    def _finish(self, m: str, taken: list[tuple[Garbage, Removed]]) -> None:
        """Remove the data: when their receipts are gone for good, for none must come back without them."""
        for directory in {row.path.rpartition("/")[0] for _, row in taken if row.what != "attempt"}:
            with contextlib.suppress(FileNotFoundError):  # another collector has taken the empty directory away
                self._calls.fsync_directory(f"{self._root}/{directory}")
        for each, _ in taken:
            if each.attempt is not None:
                remove_attempt(self._calls, f"{self._root}/data/{m}/{each.attempt}")

    def _size(self, path: str) -> int:
        total = 0
        with contextlib.suppress(OSError, Damaged):  # Damaged: a symbolic link, which itself holds nothing
            for name in names(self._calls, self._root, path):
                total += self._calls.lstat(f"{self._root}/{path}/{name}").st_size
        return total


def _file(m: str, each: Garbage) -> tuple[str, str]:
    """Give what something is, and the path of the file, or directory, that it is."""
    if each.description:
        return "description", f"milestones/{m}.json"
    if each.draft is not None:
        return "draft", each.draft
    if each.tombstone is not None:
        return "tombstone", f"revoked/{m}/{each.tombstone[0]}.{each.tombstone[1]}.json"
    if each.receipt is not None:
        return "partition", receipt_path(m, *each.receipt)
    return "attempt", f"data/{m}/{each.attempt}"


def _batches(found: Iterable[Garbage]) -> Iterator[list[Garbage]]:
    """Cut garbage into batches of one kind each, in its order."""
    for _, alike in itertools.groupby(found, lambda each: _file("", each)[0]):
        while batch := list(itertools.islice(alike, TOGETHER)):
            yield batch
