"""Whatever happens to a file of a stored partition is noticed, and has the right ending."""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from dask_resilient.core.manifest import loads_receipt
from dask_resilient.errors import Damaged, Foreign, StoreError, Unreachable
from dask_resilient.store import open_store, reading
from dask_resilient.testing.faults import FaultyCalls, fail
from tests.support.store_changes import CHANGES

RECEIPT = "commit/m/0.0.0.json"
FILES = [RECEIPT, *(f"data/m/0.0-a1/{name}" for name in ("zarr.json", "0.0", "1.0", "2.0"))]


@pytest.fixture
def written(store, place, facts, staged):
    """Give a store that holds one partition."""
    store.write(place, staged, facts)
    return store


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("change", CHANGES)
def test_every_change_of_every_file_is_damage(written, place, file, change):
    """A lost, changed or replaced file ends as damage, never as data."""
    assert written.read(place, "k")[1].size
    path = Path(written.url, file)
    CHANGES[change](path)
    with pytest.raises(Damaged):
        written.read(place, "k")


def test_every_byte_of_the_receipt_counts(store, place, facts, staged):
    """A receipt cut short anywhere, or with a bit flipped anywhere, gives no data."""
    # A number of the clock could have more digits than a float keeps, and the last one would not count.
    store.write(place, staged, {**facts, "seconds": {"make": 1.5, "write": 0.5}})
    path = Path(store.url, RECEIPT)
    raw = path.read_bytes()
    for n in range(len(raw)):
        for broken in (raw[:n], raw[:n] + bytes([raw[n] ^ 1]) + raw[n + 1 :]):
            path.write_bytes(broken)
            with pytest.raises((Damaged, Foreign)):
                store.read(place, "k")


@pytest.mark.parametrize(("a", "b"), [("0.0", "1.0"), ("1.0", "2.0"), ("0.0", "2.0")])
def test_swapped_chunks_are_damage(written, place, a, b):
    """Two sound chunks in each other's place are noticed, which their own checksums cannot tell."""
    folder = Path(written.url, place.data)
    (folder / a).rename(folder / "x")
    (folder / b).rename(folder / a)
    (folder / "x").rename(folder / b)
    with pytest.raises(Damaged, match="crc32c"):
        written.read(place, "k")


def test_chunk_of_another_version_is_damage(written, place, facts, stage):
    """A sound chunk of the same position of another attempt is noticed."""
    other = dataclasses.replace(place, index="0.1")
    written.write(other, stage(np.ones((23, 7)), 10), facts)
    shutil.copy(Path(written.url, other.data, "1.0"), Path(written.url, place.data, "1.0"))
    with pytest.raises(Damaged, match="crc32c"):
        written.read(place, "k")


def test_lost_attempt_is_damage(written, place):
    """A receipt without its attempt is damage while the store is in sight."""
    shutil.rmtree(Path(written.url, place.data))
    with pytest.raises(Damaged, match="absent"):
        written.read(place, "k")


def test_receipt_of_another_place_is_foreign(written, place, facts, staged):
    """A sound receipt under another partition's name is foreign."""
    other = dataclasses.replace(place, index="0.1")
    written.write(other, staged, facts)
    shutil.copy(Path(written.url, other.receipt), Path(written.url, place.receipt))
    with pytest.raises(Foreign, match=r"0\.1"):
        written.read(place, "k")


def test_receipt_of_another_attempt_is_foreign(written, place):
    """The winner's receipt is not what the loser asks for."""
    with pytest.raises(Foreign, match="a1"):
        written.read(dataclasses.replace(place, attempt="a2"), "k")


def test_receipt_of_another_key_is_foreign(written, place):
    """A receipt of another Dask key is foreign, unless keys are not compared."""
    with pytest.raises(Foreign, match="key"):
        written.read(place, "another")
    assert written.read(place, None)[0].key == "k"


def test_receipt_of_another_format_is_foreign(written, place):
    """A sound receipt of a later version is refused, not judged."""
    path = Path(written.url, place.receipt)
    body = json.loads(path.read_bytes())
    del body["sha256"]
    body["format"] = 99
    seal = hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
    path.write_text(json.dumps({**body, "sha256": seal}))
    with pytest.raises(Foreign, match="format"):
        written.read(place, "k")


@pytest.mark.parametrize("raw", [b"", b"{}", b"[]", b"null", b"\xff", b"[" * 100_000, b'{"sha256": 1}'])
def test_no_receipt_at_all_is_damage(written, place, raw):
    """Bytes that are no receipt are damage."""
    Path(written.url, place.receipt).write_bytes(raw)
    with pytest.raises(Damaged):
        written.read(place, "k")


def test_revoked_is_damage(written, place):
    """A revoked generation is not read again."""
    written.revoke(place, "seen twice")
    with pytest.raises(Damaged, match="revoked"):
        written.read(place, "k")


@pytest.mark.parametrize(
    ("nbytes", "chunks"),
    [(1 << 50, None), (1 << 50, ((1 << 50, 0),) * 3), (1681, None), (-1, None), (0, ((3, 0),) * 3)],
)
def test_a_receipt_cannot_ask_for_memory(written, place, nbytes, chunks, monkeypatch):
    """Sizes that the files do not have are damage before any memory is taken for them."""
    path = Path(written.url, place.receipt)
    receipt = loads_receipt(path.read_bytes())
    path.write_bytes(dataclasses.replace(receipt, nbytes=nbytes, chunks=chunks or receipt.chunks).dumps())
    monkeypatch.setattr(reading, "_aligned", lambda nbytes: pytest.fail(f"took {nbytes} bytes"))
    with pytest.raises(Damaged):
        written.read(place, "k")


def test_huge_receipt_is_damage(written, place):
    """A file larger than any receipt is not read into memory."""
    os.truncate(Path(written.url, place.receipt), 1 << 40)
    with pytest.raises(Damaged, match="more than any file"):
        written.read(place, "k")


def test_want_of_memory_is_unreachable(written, place, monkeypatch):
    """A process without memory for the partition says nothing about the copy."""

    def refuse(nbytes):
        raise MemoryError(nbytes)

    monkeypatch.setattr(reading, "_aligned", refuse)
    with pytest.raises(Unreachable) as caught:
        written.read(place, "k")
    assert caught.value.errno == errno.ENOMEM


@pytest.mark.parametrize("code", [errno.EIO, errno.EACCES, errno.ESTALE, errno.ETIMEDOUT, errno.ENOTCONN, errno.EMFILE])
def test_every_error_of_the_system_is_unreachable(written, place, code):
    """Whichever call of a read fails, nothing is said against the copy."""
    calls = FaultyCalls()
    store = open_store(written.url, create=False, calls=calls.as_calls())
    calls.log.clear()
    store.read(place, "k")
    steps = len(calls.log)
    assert steps > 20
    for n in range(steps):
        calls.arm(n, fail(code))
        with pytest.raises(Unreachable) as caught:
            store.read(place, "k")
        assert caught.value.errno == code


@pytest.mark.parametrize(
    "remove",
    [
        shutil.rmtree,
        lambda root: root.rename(root.with_name("elsewhere")),
        lambda root: (root / "store.json").unlink(),
        lambda root: (root / "store.json").write_text('{"format": 1, "token": "another"}'),
        lambda root: (shutil.rmtree(root), root.write_text("a file")),
        lambda root: (shutil.rmtree(root), root.mkdir()),
    ],
)
def test_store_out_of_sight_is_unreachable(written, place, facts, staged, remove):
    """Where the store itself is gone, a missing copy is no damage, and nothing is made anew in its place."""
    root = Path(written.url)
    remove(root)
    shutil.rmtree(root / "data", ignore_errors=True)
    shutil.rmtree(root / "commit", ignore_errors=True)
    left = sorted(root.rglob("*"))
    with pytest.raises(Unreachable):
        written.read(place, "k")
    with pytest.raises(StoreError):
        written.write(dataclasses.replace(place, index="1.0"), staged, facts)
    assert sorted(root.rglob("*")) == left
    with pytest.raises(StoreError):
        written.winner(place)


def test_store_removed_under_way_is_not_made_anew(written, place, facts, staged):
    """A root that was removed stays removed, whatever is asked of the store."""
    shutil.rmtree(written.url)
    for ask in (
        lambda: written.write(place, staged, facts),
        lambda: written.revoke(place, "gone"),
        lambda: written.journal("r", "n", {}),
    ):
        with pytest.raises(StoreError) as caught:
            ask()
        assert caught.value.errno == errno.ENOENT
    assert not Path(written.url).exists()
