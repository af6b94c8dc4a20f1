"""What is written is read back bit for bit, here and by zarr-python."""

from __future__ import annotations

import dataclasses
import errno
import json
from pathlib import Path

import numpy as np
import pytest
import zarr

from dask_resilient.core.manifest import Place
from dask_resilient.errors import ChangedWhileWriting, Damaged, Foreign, StoreError
from dask_resilient.store import Calls, files, open_store
from dask_resilient.testing.faults import FaultyCalls

DTYPES = [
    ("bool", None),
    ("int8", None),
    ("uint16", None),
    ("int64", None),
    ("float16", None),
    ("float32", None),
    ("float64", None),
    ("complex64", None),
    ("complex128", None),
    ("M8[ns]", {"name": "numpy.datetime64", "configuration": {"unit": "ns", "scale_factor": 1}}),
    ("m8[s]", {"name": "numpy.timedelta64", "configuration": {"unit": "s", "scale_factor": 1}}),
]
LAYOUTS = [((23,), 23), ((23,), 7), ((23, 5), 10), ((1, 1, 9), 1), ((0,), 1), ((4, 0), 2), ((16, 3), 4)]


def attempts(store, milestone="m"):
    """Name what lies under the data of a milestone."""
    folder = Path(store.url, "data", milestone)
    return sorted(p.name for p in folder.iterdir()) if folder.exists() else []


@pytest.mark.parametrize(("shape", "rows"), LAYOUTS)
@pytest.mark.parametrize(("dtype", "data_type"), DTYPES)
def test_bytes_come_back(store, place, facts, stage, dtype, data_type, shape, rows):
    """A partition of any dtype and chunking is given back bit for bit, and zarr-python reads the same."""
    raw = np.random.default_rng(0).integers(0, 2 if dtype == "bool" else 256, 10_000, np.uint8)
    x = raw[: int(np.prod(shape)) * np.dtype(dtype).itemsize].view(dtype).reshape(shape)
    receipt = store.write(place, stage(x, rows, data_type), facts)
    found, payload = store.read(place, "k")
    assert found == receipt
    assert payload.tobytes() == x.tobytes()
    assert payload.ctypes.data % 64 == 0 or not payload.size  # NumPy gives empty arrays any address
    z = zarr.open_array(Path(store.url, place.data), mode="r")
    assert z.dtype == x.dtype
    assert np.asarray(z[...]).tobytes() == x.tobytes()


def test_receipt_holds_the_facts(store, place, facts, staged):
    """The receipt says what the caller knew, and what the write cost."""
    receipt = store.write(place, staged, facts)
    assert (receipt.key, receipt.run, receipt.parents, receipt.producer) == ("k", "r", ("p",), facts["producer"])
    assert receipt.seconds["make"] == 1.5
    assert receipt.seconds["write"] > 0
    assert receipt.chunks == tuple((564, crc) for crc in staged.crc32c)
    assert store.read(place, None)[0] == receipt


def test_another_process_reads_it(store, place, facts, staged):
    """A store opened with the scheduler's token sees what was written."""
    store.write(place, staged, facts)
    other = open_store(store.url, create=False, token=store.token)
    assert other.read(place, "k")[1].nbytes == staged.nbytes


def test_large_and_many_buffers(store, place, facts, stage, monkeypatch):
    """Buffers larger than a block and more of them than one call takes are written whole and in order."""
    monkeypatch.setattr(files, "BLOCK", 1000)
    x = np.arange(12_345, dtype="u1")
    big = stage(x, len(x))
    tiny = tuple(memoryview(x[i : i + 3]) for i in range(0, len(x), 3))
    for attempt, chunk in (("big", big.chunks[0]), ("tiny", tiny)):
        at = dataclasses.replace(place, index=attempt)
        store.write(at, dataclasses.replace(big, chunks=(chunk,)), facts)
        assert store.read(at, "k")[1].tobytes() == x.tobytes()


def test_short_writes_and_reads(tmp_path, place, facts, staged):
    """A system that moves few bytes a call loses none."""

    class Short(Calls):
        def write(self, fd, buffers):
            return super().write(fd, [buffers[0][:5]])

        def read(self, fd, buffers):
            return super().read(fd, [buffers[0][:5]])

    store = open_store(tmp_path / "short", create=True, calls=Short())
    store.write(place, staged, facts)
    assert store.read(place, "k")[1].tobytes() == np.arange(161, dtype="f8").tobytes()


def test_order_of_durable_steps(tmp_path, place, facts, staged):
    """The receipt gets its name after everything it names is durable."""
    calls = FaultyCalls()
    store = open_store(tmp_path / "store", create=True, calls=calls.as_calls())
    calls.log.clear()
    store.write(place, staged, facts)
    steps = [(name, args[0]) for name, args in calls.log if name in {"create", "fdatasync", "fsync_directory", "link"}]
    steps = [(name, str(what).removeprefix(store.url + "/") if name != "fdatasync" else "") for name, what in steps]
    draft = steps[-2][1]
    files = [f"{place.data}/{name}" for name in ("0.0", "1.0", "2.0", "zarr.json")]
    assert draft.startswith("commit/m/.0.0.0.json.")
    assert steps == [
        ("fsync_directory", "data"),
        *(("create", file) for file in files),
        *(("fdatasync", "") for _ in files),
        ("fsync_directory", place.data),
        ("fsync_directory", "data/m"),
        ("fsync_directory", "commit"),
        ("create", draft),
        ("fdatasync", ""),
        ("link", draft),
        ("fsync_directory", "commit/m"),
    ]


def test_directories_of_others_are_made_durable_once(store, place, facts, staged):
    """A directory that another process made may not be durable yet: the first write waits for it, later ones do not."""
    store.write(dataclasses.replace(place, index="first"), staged, facts)
    calls = FaultyCalls()
    other = open_store(store.url, create=False, calls=calls.as_calls())
    for index, count in (("second", 1), ("third", 0)):
        calls.log.clear()
        other.write(dataclasses.replace(place, index=index), staged, facts)
        for kind in ("data", "commit"):
            assert calls.log.count(("fsync_directory", (f"{store.url}/{kind}",))) == count


def test_second_writer_of_a_generation_loses(store, place, facts, staged):
    """A generation that has its receipt is not written again, and the loser leaves nothing."""
    first = store.write(place, staged, facts)
    with pytest.raises(FileExistsError):
        store.write(dataclasses.replace(place, attempt="a2"), staged, facts)
    assert attempts(store) == ["0.0-a1"]
    assert store.read(place, "k")[0] == first


def test_attempt_is_never_written_twice(store, place, facts, staged):
    """An attempt that lies there already is left alone."""
    Path(store.url, place.data).mkdir(parents=True)
    Path(store.url, place.data, "0.0").write_text("theirs")
    with pytest.raises(StoreError, match="exists already"):
        store.write(place, staged, facts)
    assert Path(store.url, place.data, "0.0").read_text() == "theirs"
    assert store.winner(place) is None


def test_generations_follow_tombstones(store, place, facts, staged):
    """Generation 1 waits for the tombstone of 0, and a revoked generation is never written again."""
    after = dataclasses.replace(place, generation=1, attempt="a2")
    store.write(place, staged, facts)
    with pytest.raises(StoreError, match="not revoked"):
        store.write(after, staged, facts)
    assert store.winner(place) is not None
    store.revoke(place, "its bytes differ")
    store.revoke(place, "seen twice")
    assert json.loads(Path(store.url, place.tombstone).read_text())["reason"] == "its bytes differ"
    assert store.winner(place) is None
    store.write(after, staged, facts)
    assert store.winner(after) is not None
    assert store.read(after, "k")[0].place == after
    Path(store.url, place.receipt).unlink()
    with pytest.raises(StoreError, match="revoked already"):
        store.write(dataclasses.replace(place, attempt="a3"), staged, facts)


def test_changed_memory_is_not_committed(store, place, facts, stage):
    """A value that changed since its task ended is refused and leaves nothing."""
    x = np.arange(40.0)
    staged = stage(x, 10)
    x[39] += 1
    with pytest.raises(ChangedWhileWriting, match="chunk 3"):
        store.write(place, staged, facts)
    assert attempts(store) == []
    assert store.winner(place) is None


def test_file_carries_the_checksum_of_the_task(tmp_path, place, facts, stage):
    """A value that changed during the write and changed back is noticed by the reader."""
    x = np.arange(40.0)
    staged = stage(x, 40)

    class Toggling(Calls):
        def write(self, fd, buffers):
            x[0] = 1 - x[0]
            try:
                return super().write(fd, buffers)
            finally:
                x[0] = 1 - x[0]

    store = open_store(tmp_path / "store", create=True, calls=Toggling())
    store.write(place, staged, facts)
    with pytest.raises(Damaged, match="crc32c"):
        store.read(place, "k")


@pytest.mark.parametrize(
    "change",
    [
        {"shape": (), "chunk_shape": ()},
        {"chunk_shape": (10, 3)},
        {"chunk_shape": (0, 7)},
        {"chunk_shape": (23, 7)},
        {"crc32c": (1, 2)},
        {"nbytes": -1},
        {"nbytes": 1681},
        {"shape": (33, 7)},
        {"chunks": ((memoryview(b"12"),), (memoryview(b"1"),), (memoryview(b"12"),))},
    ],
)
def test_contradictory_staging_is_refused(store, place, facts, staged, change):
    """Shape, chunks and checksums that contradict one another are refused before anything is written."""
    with pytest.raises(StoreError, match="no array cut along its first axis"):
        store.write(place, dataclasses.replace(staged, **change), facts)
    assert attempts(store) == []


@pytest.mark.parametrize(
    "change",
    [{"producer": {"at": object()}}, {"producer": {9: 1, 10: 2}}, {"seconds": {"make": {1, 2}}}, {"colour": "red"}],
)
def test_unreadable_receipts_are_never_made(store, place, facts, staged, change):
    """Facts that JSON does not keep are refused, rather than sealed into a receipt that nobody can read."""
    with pytest.raises(StoreError, match="cannot be written") as caught:
        store.write(place, staged, facts | change)
    assert caught.value.errno == errno.EINVAL
    assert attempts(store) == []


@pytest.mark.parametrize("part", ["..", "/abs", "a/b", "", ".hidden", "a..b", "A", "a\0", "x" * 129])
def test_hostile_places_are_refused(part):
    """No place points out of the store."""
    for fields in ((part, "0", 0, "a"), ("m", part, 0, "a"), ("m", "0", 0, part)):
        with pytest.raises(Foreign):
            Place(*fields)


def test_journal_is_written_once(store):
    """A journal entry is durable, readable, and never overwritten."""
    store.journal("run-1", "incident-0", {"what": "a worker died"})
    assert json.loads(Path(store.url, "runs/run-1/incident-0.json").read_text()) == {"what": "a worker died"}
    with pytest.raises(FileExistsError):
        store.journal("run-1", "incident-0", {"what": "another"})


@pytest.mark.parametrize(
    ("run", "name", "body"), [("..", "a", {}), ("r", "/a", {}), ("r", "", {}), ("r", "a", {"a": {1}})]
)
def test_hostile_journal_is_refused(store, run, name, body):
    """No journal entry lies outside its run, or holds what is no JSON."""
    with pytest.raises(StoreError):
        store.journal(run, name, body)
    assert list(Path(store.url, "runs").rglob("*.json")) == []
