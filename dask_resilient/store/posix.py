"""The store on a POSIX file system, local or shared.

A write goes through five steps, each durable before the next one begins, so that a stop at any point leaves either no
receipt or a whole partition:

1. the attempt's own directory, which no other writer ever touches; the chunk files in it, then ``zarr.json``;
2. the names: the attempt's directory, then the milestone's;
3. the staged memory is digested again: what changed since the task is not committed;
4. the receipt, under a name of its own;
5. the link of the receipt to its final name, which fails where a receipt of that generation is: the commit point.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import itertools
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from dask_resilient.core.manifest import FORMAT, Place, Receipt, loads_receipt
from dask_resilient.core.milestones import Milestone
from dask_resilient.errors import Damaged, ResilienceError, StoreError
from dask_resilient.protocols import Payload, Staged
from dask_resilient.store import array, leases
from dask_resilient.store.calls import Calls
from dask_resilient.store.files import (
    MAX_JSON,
    check_directories,
    create_if_absent,
    exists,
    read_small,
    remove_attempt,
    write_files,
)
from dask_resilient.store.reading import read_partition, read_token
from dask_resilient.store.receipts import dumps, make_receipt

_NAME = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]{0,127}")


class PosixStore:
    """Keeps partitions under one directory. Made by `dask_resilient.store.open_store`; may be used from any thread.

    Parameters
    ----------
    url
        The absolute path of the root.
    token
        What its ``store.json`` says.
    survives
        One line for users: where it lies, and the loss of what it survives.
    calls
        The system calls.
    """

    def __init__(self, url: str, token: str, survives: str, calls: Calls) -> None:
        self.url = url
        self.token = token
        self.survives = survives
        self._calls = calls
        self._durable_names: set[str] = set()

    def __repr__(self) -> str:
        return f"<PosixStore {self.url!r}>"

    def describe(self) -> str:
        """Say in one line where the store lies, and the loss of what it survives."""
        return self.survives

    def reachable(self) -> str:
        """Say why the store cannot be reached now, empty if it can."""
        token = read_token(self._calls, self.url)
        return "" if token == self.token else f"{self.url!r} cannot be reached, or another store lies there now"

    def write(self, place: Place, staged: Staged, facts: Mapping[str, Any]) -> Receipt:
        """Write the attempt, make it durable, then create its receipt.

        The receipt's ``seconds`` get ``"write"``, unless `facts` has it.

        Raises
        ------
        StoreError
            If it could not be written; ``errno`` tells why where the system did. There is no receipt, and the attempt
            is removed as far as possible. (Where a disk that failed behind the commit point lets nothing be taken back
            either, the receipt stays, and with it the whole attempt.)
        FileExistsError
            If a receipt of this generation exists already; the attempt is removed.
        ChangedWhileWriting
            If the staged memory no longer has its checksums after the last write; the attempt is removed.
        """
        begun = time.monotonic()
        array.check_staged(staged)
        with self._as_store_error(f"{place.data!r} is not saved"):
            if self._receipt_is_taken(place):
                raise FileExistsError(errno.EEXIST, "a receipt of this generation exists", place.receipt)
            directory = self._make_attempt(place)
            try:
                metadata = self._write_data(directory, staged)
                self._calls.fsync_directory(f"{self.url}/data/{place.milestone}")
                array.check_unchanged(staged)
                receipt = make_receipt(place, staged, metadata, facts, time.monotonic() - begun)
                self._create("commit", place.milestone, place.receipt, receipt.dumps())
            except BaseException as e:
                if isinstance(e, FileExistsError) or self._is_uncommitted(place):
                    remove_attempt(self._calls, directory)
                raise
        return receipt

    def read(self, place: Place, key: str | None) -> tuple[Receipt, Payload]:
        """Read the receipt, then the chunks, and verify every byte before giving them back.

        Raises
        ------
        Unreachable, Damaged, Foreign
            The endings of a load.
        """
        return read_partition(self._calls, self.url, self.token, place, key)

    def declare(self, milestone: Milestone) -> None:
        """Create ``milestones/<m>.json``; it may exist already. Before the first receipt of that milestone.

        Raises
        ------
        StoreError
            If it could not be created.
        """
        path = f"milestones/{milestone.milestone}.json"
        with self._as_store_error(f"the milestone {milestone.milestone!r} is not declared"):
            if not self._exists(path):
                with contextlib.suppress(FileExistsError):
                    name = f"{milestone.milestone}.json"
                    create_if_absent(self._calls, f"{self.url}/milestones", name, milestone.dumps())
                    return
            # Its maker may not have waited for the disk yet.
            self._calls.fsync_directory(f"{self.url}/milestones")

    def revoke(self, place: Place, reason: str) -> None:
        """Create the tombstone of this generation; it may exist already.

        Raises
        ------
        StoreError
            If it could not be created.
        """
        body = {"format": FORMAT, "place": place.to_dict(), "reason": reason}
        with self._as_store_error(f"{place.receipt!r} is not revoked"):
            try:
                self._create("revoked", place.milestone, place.tombstone, dumps(body))
            except FileExistsError:
                # Its maker may not have waited for the disk yet.
                self._calls.fsync_directory(f"{self.url}/revoked/{place.milestone}")

    def winner(self, place: Place) -> Receipt | None:
        """Give the durable receipt of this generation, of whichever attempt; None if there is none, or it is revoked.

        Raises
        ------
        StoreError
            If that cannot be told.
        Damaged, Foreign
            If there is one that cannot be used.
        """
        with self._as_store_error(f"{place.receipt!r} cannot be looked up"):
            if not exists(self._calls, f"{self.url}/commit/{place.milestone}"):
                self._calls.lstat(f"{self.url}/commit")
                return None
            # Another writer may have made the name without having waited for the disk yet.
            self._calls.fsync_directory(f"{self.url}/commit/{place.milestone}")
            if not self._exists(place.receipt) or self._exists(place.tombstone):
                return None
            return loads_receipt(read_small(self._calls, f"{self.url}/{place.receipt}"))

    def renew(self, run: str, milestones: Iterable[str], *, ended: bool, keep: Iterable[str] = ()) -> None:
        """Write the lease of a run anew: it lives, and uses these milestones, or it has ended; some are to be kept.

        Raises
        ------
        StoreError
            If it could not be written.
        """
        body = {"run": run, "milestones": sorted(milestones), "renewed": time.time(), "ended": ended}
        body |= {"keep": sorted(keep)}
        with self._as_store_error(f"the lease of run {run!r} is not renewed"):
            leases.renew(self._calls, self.url, run, body)

    @property
    def calls(self) -> Calls:
        """The system calls, for what works on a store from outside."""
        return self._calls

    def journal(self, run: str, name: str, body: Mapping[str, Any]) -> None:
        """Create ``runs/<run>/<name>.json``.

        Raises
        ------
        FileExistsError
            If there is one of that name already.
        StoreError
            If it could not be created.
        """
        for part in (run, name):
            if not _NAME.fullmatch(part) or ".." in part:
                raise StoreError(
                    errno.EINVAL, f"{part!r} is no name in a journal: letters, digits, '.', '_' and '-' only"
                )
        with self._as_store_error(f"the journal of {run!r} has no {name!r}"):
            self._create("runs", run, f"runs/{run}/{name}.json", dumps(body))

    def _receipt_is_taken(self, place: Place) -> bool:
        """Tell whether the receipt exists, and refuse a generation whose turn it is not."""
        if place.generation:
            if not self._exists(replace(place, generation=place.generation - 1).tombstone):
                raise StoreError(errno.EINVAL, f"{place.receipt!r} is refused: the generation before it is not revoked")
            # The tombstone's maker may not have waited for the disk yet.
            self._calls.fsync_directory(f"{self.url}/revoked/{place.milestone}")
        if self._exists(place.receipt):
            return True
        if self._exists(place.tombstone):
            raise StoreError(
                errno.EINVAL, f"{place.receipt!r} is refused: it is revoked already, write the next generation"
            )
        return False

    def _make_attempt(self, place: Place) -> str:
        directory = f"{self.url}/{place.data}"
        try:
            self._inside("data", place.milestone, lambda: self._calls.mkdir(directory))
        except FileExistsError as e:
            raise StoreError(errno.EEXIST, f"the attempt {place.data!r} exists already; give each its own name") from e
        return directory

    def _write_data(self, directory: str, staged: Staged) -> str:
        """Write chunks, then metadata, and give the digest of the metadata."""
        raw = array.metadata(staged)
        files = itertools.chain(array.files(staged), [("zarr.json", [memoryview(raw)])])
        write_files(self._calls, ((f"{directory}/{name}", buffers) for name, buffers in files))
        self._calls.fsync_directory(directory)
        return hashlib.sha256(raw).hexdigest()

    def _create(self, kind: str, group: str, path: str, raw: bytes) -> None:
        if len(raw) > MAX_JSON:
            raise StoreError(errno.EFBIG, f"{path!r} would have {len(raw)} bytes, more than {MAX_JSON}")
        directory, _, name = path.rpartition("/")
        self._inside(kind, group, lambda: create_if_absent(self._calls, f"{self.url}/{directory}", name, raw))

    def _inside(self, kind: str, group: str, step: Callable[[], None]) -> None:
        """Do a step in a directory that is made on demand; while it is empty, a collector may take it away again."""
        with contextlib.suppress(FileNotFoundError):
            self._ensure(kind, group)
            step()
            return
        self._ensure(kind, group)
        step()

    def _ensure(self, kind: str, group: str) -> None:
        """Make one level of directories on demand, never the roots: a store that was removed stays removed."""
        path = f"{self.url}/{kind}/{group}"
        try:
            self._calls.mkdir(path)
        except FileExistsError:
            if path in self._durable_names:
                return
            try:
                check_directories(self._calls, self.url, f"{kind}/{group}")
            except Damaged as e:
                raise StoreError(errno.ELOOP, str(e)) from e
        self._calls.fsync_directory(f"{self.url}/{kind}")
        self._durable_names.add(path)

    def _exists(self, path: str) -> bool:
        return exists(self._calls, f"{self.url}/{path}")

    def _is_uncommitted(self, place: Place) -> bool:
        """Tell whether there surely is no receipt; its attempt must not be removed otherwise."""
        try:
            return not self._exists(place.receipt)
        except OSError:
            return False

    @contextlib.contextmanager
    def _as_store_error(self, what: str) -> Iterator[None]:
        try:
            yield
        except (ResilienceError, FileExistsError):
            raise
        except OSError as e:
            raise StoreError(e.errno, f"{what} in {self.url!r}: {e}") from e
