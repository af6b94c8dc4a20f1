"""A write that is stopped or fails anywhere leaves no receipt, or a whole partition."""

from __future__ import annotations

import dataclasses
import errno
import os
from pathlib import Path

import pytest

from dask_resilient.errors import Damaged, StoreError
from dask_resilient.store import Calls, open_store
from dask_resilient.testing.faults import FaultyCalls, fail


def survey(store, place):
    """Say what of a place lies in the store, reading it whole where it has a receipt."""
    has_receipt = Path(store.url, place.receipt).exists()
    if has_receipt:
        assert store.read(place, "k")[1].nbytes > 0
    return has_receipt, Path(store.url, place.data).exists()


def drafts(store):
    """Name the drafts that lie in the store."""
    return [p for p in Path(store.url, "commit").rglob(".*") if p.is_file()]


def faults(tmp_path, place, staged, facts, effect, *, lasting):
    """Write once for each system call of a write, with the effect in its place; give what was left each time."""
    sound = open_store(tmp_path / "store", create=True)
    sound.write(dataclasses.replace(place, index="first"), staged, facts)
    n = 0
    while True:
        calls = FaultyCalls()
        store = open_store(sound.url, create=False, calls=calls.as_calls())
        calls.arm(n, effect, lasting=lasting)
        at = dataclasses.replace(place, index=str(n))
        try:
            store.write(at, staged, facts)
            error = None
        except StoreError as e:
            error = e
        name = calls.hit
        if name is None:
            break
        yield name, sound, at, error
        n += 1
    assert n > 20


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
def test_any_call_fails_once(tmp_path, place, staged, facts, code):
    """A system call that fails once ends in an error that says why, and leaves neither receipt nor attempt."""
    for name, store, at, error in faults(tmp_path, place, staged, facts, fail(code), lasting=False):
        has_receipt, has_data = survey(store, at)
        if error is None:
            # A hint, and the name of a draft whose content is linked already, may fail without harm.
            assert name in {"flush_behind", "unlink"}
            assert has_receipt
            continue
        assert error.errno == code
        assert not has_receipt
        assert not has_data


def test_disk_goes_for_good(tmp_path, place, staged, facts):
    """A disk that fails from some call on leaves no receipt, or one whose partition is whole."""
    seen = set()
    for name, store, at, error in faults(tmp_path, place, staged, facts, fail(errno.EIO), lasting=True):
        has_receipt, has_data = survey(store, at)
        seen.add((has_receipt, has_data))
        assert has_data or not has_receipt
        if error is None:
            assert name == "flush_behind"
    assert seen == {(False, False), (False, True), (True, True)}


def test_receipt_that_cannot_be_taken_back(tmp_path, place, staged, facts):
    """A write that fails behind the commit point, and cannot take its receipt back, leaves the attempt with it."""

    class Stuck(Calls):
        def fsync_directory(self, path):
            if path.endswith("commit/m"):
                raise OSError(errno.EIO, os.strerror(errno.EIO))

        def unlink(self, path):
            if path.endswith(place.receipt):
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            super().unlink(path)

    store = open_store(tmp_path / "store", create=True, calls=Stuck())
    with pytest.raises(StoreError):
        store.write(place, staged, facts)
    assert survey(store, place) == (True, True)


def test_loser_of_the_last_moment(tmp_path, place, staged, facts):
    """A writer that loses when everything but the link is done removes its whole attempt."""
    rival = open_store(tmp_path / "store", create=True)
    winner = dataclasses.replace(place, attempt="winner")

    class Overtaken(Calls):
        def link(self, source, target):
            rival.write(winner, staged, facts)
            super().link(source, target)

    store = type(rival)(rival.url, rival.token, rival.survives, Overtaken())
    with pytest.raises(FileExistsError):
        store.write(place, staged, facts)
    assert not Path(store.url, place.data).exists()
    assert survey(store, winner) == (True, True)
    assert drafts(store) == []


@pytest.mark.parametrize("code", [errno.ETIMEDOUT, errno.EEXIST])
def test_lost_reply_of_a_link(tmp_path, place, staged, facts, code):
    """A link that was made and then reported as failed, as NFS may do, counts as made."""

    class LostReply(Calls):
        def link(self, source, target):
            super().link(source, target)
            raise OSError(code, os.strerror(code))

    open_store(tmp_path / "store", create=True)
    store = open_store(tmp_path / "store", create=False)
    nfs = type(store)(store.url, store.token, store.survives, LostReply())
    nfs.write(place, staged, facts)
    assert store.read(place, "k")[1].nbytes == staged.nbytes


def test_full_disk_without_a_reason(tmp_path, place, staged, facts):
    """A system that takes no bytes and reports no error ends the write."""

    class Full(Calls):
        def write(self, fd, buffers):
            return 0

    store = open_store(tmp_path / "store", create=True)
    full = type(store)(store.url, store.token, store.survives, Full())
    with pytest.raises(StoreError, match="no more bytes"):
        full.write(place, staged, facts)
    assert survey(store, place) == (False, False)


def test_interrupted_write_leaves_nothing(tmp_path, place, staged, facts):
    """An exception of any kind, a shutdown included, removes the attempt and passes."""

    def interrupt(name):
        raise KeyboardInterrupt(name)

    open_store(tmp_path / "store", create=True)
    calls = FaultyCalls()
    store = open_store(tmp_path / "store", create=False, calls=calls.as_calls())
    calls.arm(12, interrupt)
    with pytest.raises(KeyboardInterrupt):
        store.write(place, staged, facts)
    assert survey(store, place) == (False, False)


@pytest.mark.parametrize("lasting", [False, True])
def test_tombstone_that_fails(tmp_path, place, staged, facts, lasting):
    """A tombstone that cannot be made is an error, and the receipt stays in use."""
    open_store(tmp_path / "store", create=True).write(place, staged, facts)
    calls = FaultyCalls()
    store = open_store(tmp_path / "store", create=False, calls=calls.as_calls())
    calls.arm(3, fail(errno.ENOSPC), lasting=lasting)
    with pytest.raises(StoreError) as caught:
        store.revoke(place, "seen twice")
    assert caught.value.errno == errno.ENOSPC
    assert open_store(store.url, create=False).read(place, "k")


def test_revoked_after_a_crash_of_the_first_writer(store, place, staged, facts):
    """A tombstone alone, its receipt lost, still makes way for the next generation."""
    store.revoke(place, "absent")
    with pytest.raises(Damaged):
        store.read(place, "k")
    after = dataclasses.replace(place, generation=1)
    store.write(after, staged, facts)
    assert store.read(after, "k")[1].nbytes == staged.nbytes
