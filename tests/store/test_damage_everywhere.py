"""Whatever happens to any single file of a store, no reader gets a wrong value, waits for ever, or fails unasked."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dask_resilient import partitions
from dask_resilient.errors import Damaged, Foreign, ResilienceError, StoreError
from dask_resilient.store import Calls, open_archive
from tests.support.store_changes import CHANGES
from tests.support.store_life import FACTS, Life
from tests.support.store_museum import PLACES, REVOKED, VALID, ending, endings, make

FILES = [
    "store.json",
    *(f"milestones/{m}.json" for m in ("m", "other")),
    REVOKED.tombstone,
    *(place.receipt for place in PLACES),
    *(f"{place.data}/{name}" for place in PLACES for name in ("zarr.json", "0.0", "1.0")),
]


def swap(path, other):
    """Let two files change places."""
    path.rename(path.with_name("moved"))
    other.rename(path)
    path.with_name("moved").rename(other)


@pytest.fixture
def store(room):
    """Give such a store."""
    return make(room / "store")


@contextmanager
def no_waiting(seconds=20):
    """Fail where a call waits for ever."""

    def stop(*_):
        pytest.fail(f"waited for {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def look(store):
    """Use the tools on a store: they end, with what they can tell, or in an error of ours."""
    try:
        archive = open_archive(store.url)
    except StoreError:
        return
    for milestone in archive.milestones():
        assert milestone == Life.description(milestone.milestone)
        for _, receipt in archive.receipts(milestone.milestone):
            assert not isinstance(receipt, Exception) or isinstance(receipt, (ResilienceError, OSError))
        archive.missing(milestone)


def touched(file):
    """Give the places that a file belongs to."""
    return {place for place in PLACES if file in {place.receipt, place.tombstone} or file.startswith(place.data + "/")}


@pytest.mark.parametrize("file", FILES)
def test_every_change_of_every_file(store, room, file):
    """Changed in any way, a file costs its own partition at most, and nobody gets a wrong value."""
    for change in CHANGES.values():
        copied = room / "copied"
        shutil.copytree(store.url, copied)
        changed = type(store)(str(copied), store.token, store.survives, Calls())
        change(copied / file)
        with no_waiting():
            look(changed)
            found = endings(changed)
        for place in VALID:
            expected = {"good"} if place not in touched(file) else {"Damaged"}
            assert found[place] in expected, place
        # Where the tombstone is lost, the copy counts again, and is still compared with its receipt.
        assert found[REVOKED] == (
            "good" if file == REVOKED.tombstone and not os.path.lexists(copied / file) else "Damaged"
        )
        shutil.rmtree(copied)


@pytest.mark.parametrize("file", FILES)
def test_every_file_in_the_place_of_every_other(store, room, file):
    """Sound files that stand in one another's place, swapped or copied, are damage or foreign, and no value."""
    for other, put in itertools.product(FILES, (swap, lambda path, other: shutil.copy(other, path))):
        if other == file:
            continue
        copied = room / "copied"
        shutil.copytree(store.url, copied)
        changed = type(store)(str(copied), store.token, store.survives, Calls())
        put(copied / file, copied / other)
        with no_waiting():
            look(changed)
            found = endings(changed)
        hit = touched(file) | (touched(other) if put is swap else set())
        same = (copied / file).read_bytes() == Path(store.url, file).read_bytes()
        for place in VALID:
            assert found[place] == "good" if place not in hit or same else found[place] in {"Damaged", "Foreign"}, place
        shutil.rmtree(copied)


@pytest.mark.parametrize("place", VALID)
def test_wrong_receipts_are_foreign(store, place):
    """The sound receipt of another milestone, index or generation is foreign: nothing is revoked for it."""
    sound = Path(store.url, place.receipt).read_bytes()
    for other in set(PLACES) - {place}:
        shutil.copy(Path(store.url, other.receipt), Path(store.url, place.receipt))
        assert endings(store)[place] == "Foreign"
    Path(store.url, place.receipt).write_bytes(sound)
    assert endings(store)[place] == "good"


@pytest.mark.parametrize(
    "edit",
    [
        {"shape": [8, 8]},
        {"shape": [4, 14]},
        {"shape": [7, 7]},
        {"data_type": "int64"},
        {"data_type": "float32"},
        {"fill_value": 1.0},
        {"codecs": [{"name": "bytes", "configuration": {"endian": "big"}}, {"name": "crc32c"}]},
        {"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [8, 7]}}},
        {"attributes": {"a": 1}},
    ],
)
def test_edited_metadata_is_damage(store, edit):
    """Sound metadata of another array are damage."""
    place = VALID[0]
    path = Path(store.url, place.data, "zarr.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), **edit}))
    found = endings(store)
    assert found.pop(place) == "Damaged"
    assert [found[each] for each in VALID[1:]] == ["good", "good"]


def cut_everywhere(path):
    """Give the path after the file was cut short at each of its bytes."""
    raw = path.read_bytes()
    for n in range(len(raw)):
        path.write_bytes(raw[:n])
        yield path
    path.write_bytes(raw)


@pytest.mark.parametrize("file", ["store.json", "milestones/m.json", VALID[0].receipt, f"{VALID[0].data}/1.0"])
def test_cut_short_at_every_byte(store, file):
    """Cut short at any byte, a file gives nothing half; whole again, it is good again."""
    for _ in cut_everywhere(Path(store.url, file)):
        look(store)
        hit = VALID[0] in touched(file)
        assert ending(lambda: store.read(VALID[0], "k"), VALID[0]) == ("Damaged" if hit else "good")
    assert endings(store) == {place: "Damaged" if place == REVOKED else "good" for place in PLACES}


@pytest.mark.parametrize("fill", [0.0, -0.0, np.nan, np.inf])
def test_partitions_of_one_value(store, fill):
    """All zeros, or no number anywhere, is a partition like any other: valid, equal, and gone when its chunk is."""
    x = np.full((30, 7), fill)
    place = replace(VALID[0], index="9", generation=0)
    store.write(place, partitions.stage(x), FACTS)
    receipt, payload = store.read(place, "k")
    found = partitions.restore(receipt.codec, receipt.schema, payload)
    assert found.tobytes() == x.tobytes()
    assert (found.dtype, found.shape) == (x.dtype, x.shape)
    chunks = [path for path in Path(store.url, place.data).iterdir() if path.name != "zarr.json"]
    assert chunks
    for chunk in chunks:
        raw = chunk.read_bytes()
        chunk.unlink()
        with pytest.raises(Damaged):
            store.read(place, "k")
        chunk.write_bytes(raw)
    assert store.read(place, "k")[1].tobytes() == x.tobytes()


def test_key_of_another_task_is_foreign(store):
    """A receipt whose Dask key is another one is foreign, which says nothing against the copy."""
    with pytest.raises(Foreign):
        store.read(VALID[0], "another")
    assert endings(store)[VALID[0]] == "good"
