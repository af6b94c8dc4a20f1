"""Whichever system call fails, whichever way: an error that says why, nothing half made, and the next try succeeds."""

from __future__ import annotations

import dataclasses
import errno
import subprocess
from pathlib import Path

import numpy as np
import pytest

from dask_resilient.core.manifest import Place
from dask_resilient.errors import StoreError, Unreachable
from dask_resilient.store import Calls, open_archive, open_store
from dask_resilient.testing.faults import FaultyCalls, fail
from tests.support.store_life import FACTS, Impatient, Life, content, stage

PLACE = Place("m", "0", 0, "a")
AFTER = Place("m", "0", 1, "b")
CODES = [errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.ESTALE, errno.EACCES, errno.EROFS, errno.EINTR, errno.ETIMEDOUT]
HARMLESS = {"flush_behind", "unlink"}
"""A hint, and the name of a draft whose content has its own name already: these may fail."""
MILESTONE = Life.description("m")


def write(store):
    """Save generation 0."""
    store.write(PLACE, stage(1), FACTS)


def revoke(store):
    """Revoke generation 0."""
    store.revoke(PLACE, "differs")


def write_after(store):
    """Save generation 1."""
    store.write(AFTER, stage(2), FACTS)


def declare(store):
    """Describe the milestone."""
    store.declare(MILESTONE)


def journal(store):
    """Write one entry of the journal."""
    try:
        store.journal("r", "n", {"a": 1})
    except FileExistsError:
        assert Path(store.url, "runs/r/n.json").read_bytes() == b'{\n "a": 1\n}'


OPERATIONS = {"write": write, "revoke": revoke, "write_after": write_after, "declare": declare, "journal": journal}
BEFORE = {"revoke": [write], "write_after": [write, revoke]}


def attempts(root):
    """Name the attempts that lie in a store."""
    return {path.name for path in root.glob("data/m/*")}


def tried(tmp_path, operation, code, *, lasting):
    """Do one operation on a new store for each of its system calls, which fails; give store, call and error."""
    n = 0
    while True:
        sound = open_store(tmp_path / f"{n}", create=True, calls=Impatient())
        for before in BEFORE.get(operation, ()):
            before(sound)
        calls = FaultyCalls(Impatient())
        store = open_store(sound.url, create=False, calls=calls.as_calls())
        calls.arm(n, fail(code), lasting=lasting)
        error = None
        try:
            OPERATIONS[operation](store)
        except StoreError as e:
            error = e
        if calls.hit is None:
            break
        yield sound, calls.hit, error
        n += 1
    assert n > 6


@pytest.mark.parametrize("lasting", [False, True])
@pytest.mark.parametrize("code", CODES, ids=errno.errorcode.get)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_any_call_of_any_operation_fails(tmp_path, operation, code, lasting):
    """The error has the number of the system; what stands is whole; once the disk is back, the same works."""
    for sound, name, error in tried(tmp_path, operation, code, lasting=lasting):
        root = Path(sound.url)
        if error is None:
            assert name in HARMLESS or (lasting and name == "flush_behind")
        else:
            assert error.errno == code
        for receipt in root.glob("commit/m/*.json"):
            generation = int(receipt.name.split(".")[1])
            if not (root / "revoked/m" / receipt.name).exists():
                read_whole(sound, generation)
        if error is not None and not lasting and operation.startswith("write"):
            kept = {"0-a"} if operation == "write_after" else set()
            assert attempts(root) == kept
        again(sound, operation)


def read_whole(store, generation):
    """Read one generation, and compare every byte."""
    place = (PLACE, AFTER)[generation]
    assert store.read(place, "k")[1].tobytes() == stage(1 + generation).chunks[0][0].tobytes()


def again(store, operation):
    """Do the operation once more, on a sound disk, as the next attempt."""
    if operation.startswith("write"):
        place = PLACE if operation == "write" else AFTER
        try:
            store.write(dataclasses.replace(place, attempt="next"), stage(3), FACTS)
        except FileExistsError:
            read_whole(store, place.generation)  # it was saved, though nobody was told
    else:
        OPERATIONS[operation](store)
    if operation == "revoke":
        assert store.winner(PLACE) is None
    if operation == "declare":
        assert open_archive(store.url).milestone("m") == MILESTONE


@pytest.mark.parametrize("code", CODES, ids=errno.errorcode.get)
def test_any_call_of_looking_fails(tmp_path, code):
    """Looking for a receipt, and verifying it, end in an error that says why, whichever call fails."""
    open_store(tmp_path / "store", create=True, calls=Impatient()).write(PLACE, stage(1), FACTS)
    calls = FaultyCalls(Impatient())
    store = open_store(tmp_path / "store", create=False, calls=calls.as_calls())
    for look, ending in ((store.winner, StoreError), (lambda place: store.read(place, "k"), Unreachable)):
        calls.log.clear()
        assert look(PLACE)
        for n in range(len(calls.log)):
            calls.arm(n, fail(code))
            with pytest.raises(ending) as caught:
                look(PLACE)
            assert caught.value.errno == code, calls.hit


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.ESTALE, errno.EROFS], ids=errno.errorcode.get)
def test_any_call_of_opening_fails(tmp_path, code):
    """A store that cannot be made or opened is told in one line, and is made and opened once that works."""
    n, hit = 0, True
    while hit:
        calls = FaultyCalls(Impatient())
        calls.arm(n, fail(code))
        root = tmp_path / f"{n}" / "store"
        try:
            open_store(root, create=True, calls=calls.as_calls())
        except StoreError as e:
            said = str(e)
            assert "\n" not in said
        token = open_store(root, create=True, calls=Impatient()).token
        assert open_store(root, create=False, token=token, calls=Impatient()).token == token
        hit, n = calls.hit, n + 1
    assert n > 25


def test_few_bytes_a_call_and_then_none(tmp_path):
    """A disk that takes the last bytes one at a time until it is full leaves nothing that looks saved."""

    class Filling(Impatient):
        left = 700

        def write(self, fd, buffers):
            if not self.left:
                raise OSError(errno.ENOSPC, "full")
            count = super().write(fd, [buffers[0][: min(7, self.left)]])
            self.left -= count
            return count

    open_store(tmp_path, create=True, calls=Impatient())
    store = open_store(tmp_path, create=False, calls=Impatient())
    for left in range(700, 1600, 97):
        full = Filling()
        full.left = left
        narrow = type(store)(store.url, store.token, store.survives, full)
        place = dataclasses.replace(PLACE, index=f"{left}")
        try:
            narrow.write(place, stage(1), FACTS)
        except StoreError as e:
            code = e.errno
            assert code == errno.ENOSPC
            assert not Path(store.url, place.receipt).exists()
            assert not Path(store.url, place.data).exists()
            store.write(place, stage(1), FACTS)
        assert store.read(place, "k")[1].size


@pytest.fixture
def tiny(tmp_path):
    """Mount a real file system of 256 KiB."""
    point = tmp_path / "tiny"
    point.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", point], capture_output=True, check=False)
    if done.returncode:
        pytest.skip(f"nothing can be mounted here: {done.stderr.decode().strip()}")
    yield point
    subprocess.run(["umount", "-l", point], check=True)


@pytest.mark.skipif("not __import__('shutil').which('mount')", reason="there is no mount command here")
def test_real_disk_that_is_full(tiny):
    """On a full disk a save fails with ENOSPC and leaves nothing; what was saved stays; with room it works again."""
    store = open_store(tiny / "store", create=True, calls=Calls())
    saved = []

    def place():
        return dataclasses.replace(PLACE, index=f"{len(saved)}")

    def fill():
        while True:
            store.write(place(), stage(len(saved), rows=400), FACTS)
            saved.append(place())

    with pytest.raises(StoreError) as caught:
        fill()
    assert caught.value.errno == errno.ENOSPC
    assert len(saved) > 3
    assert {path.name for path in Path(store.url).glob("data/m/*")} == {f"{p.index}-a" for p in saved}
    assert {path.name for path in Path(store.url).glob("commit/m/*")} == {f"{p.index}.0.json" for p in saved}
    for n, each in enumerate(saved):
        assert store.read(each, "k")[1].tobytes() == content(stage(n, rows=400))
    for path in Path(store.url, saved[0].data).iterdir():
        path.unlink()
    store.write(place(), stage(len(saved), rows=400), FACTS)
    assert np.frombuffer(store.read(place(), "k")[1], "f8")[0] == 1000 * len(saved)
