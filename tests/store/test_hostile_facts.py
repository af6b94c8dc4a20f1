"""Sizes, types and depths that a hostile hand has sealed: refused before memory is taken for them.

Every checksum here is right: whoever can write to a store can also seal what is in it.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import dask_resilient as dr
from dask_resilient import partitions
from dask_resilient.core.manifest import loads_receipt, seal
from dask_resilient.core.milestones import MAX_PARTITIONS, Milestone, read_description
from dask_resilient.errors import Damaged, Foreign, LoadError, ResilienceError, Unreachable
from dask_resilient.store import open_archive, open_store
from dask_resilient.store.files import MAX_JSON
from dask_resilient.store.survey import partition_rows
from tests.support.hostile import KIND, PLACE, describe, everything, metadata, receipt
from tests.support.store_life import FACTS, Impatient


@pytest.fixture
def root(store):
    """Give the directory of a store with one milestone of one partition."""
    store.declare(Milestone("m", "r", 1.0, KIND))
    store.write(PLACE, partitions.stage(np.arange(8.0)), FACTS)
    return Path(store.url)


# -- numbers -----------------------------------------------------------------------------------------------------------

HUGE = 1 << 62


@pytest.mark.parametrize(
    "change",
    [
        {"nbytes": HUGE},
        {"nbytes": -1},
        {"nbytes": 10**4000},
        {"nbytes": "8"},
        {"nbytes": 8.0},
        {"nbytes": float("nan")},
        {"nbytes": None},
        {"chunks": []},
        {"chunks": None},
        {"chunks": 7},
        {"chunks": [[HUGE, 0]]},
        {"chunks": [[-4, 0]]},
        {"chunks": [[0, 0]]},
        {"chunks": [[68, -1]]},
        {"chunks": [[68, 1 << 40]]},
        {"chunks": [[float("inf"), 0]]},
        {"chunks": [["68", "0"]]},
        {"chunks": [[68]]},
        {"chunks": [[68, 0, 0]]},
        {"chunks": [{}]},
        {"chunks": [[68, 0]] * 10_000},
        {"key": 7},
        {"run": ["r"]},
        {"run": {}},
        {"codec": ["numpy"]},
        {"codec": "os.system"},
        {"codec": None},
        {"schema": None},
        {"schema": []},
        {"schema": {}},
        {"metadata": None},
        {"metadata": 7},
        {"producer": []},
        {"seconds": "long"},
        {"parents": 7},
        {"temporary": "yes"},
        {"temporary": None},
        {"place": {"attempt": "b"}},
        {"surprise": 1},
    ],
    ids=lambda change: repr(change)[:60],
)
def test_wrong_facts_in_a_receipt(root, change):
    """Facts of a receipt that cannot be are an ending of the load, never another error; collectors go round them."""
    receipt(root, **change)
    with pytest.raises(LoadError):
        dr.open(root, "clean").compute(scheduler="sync")
    everything(root)
    (row,) = partition_rows(open_archive(root), open_archive(root).milestones())
    assert row["ending"] != "good" or "codec" in change or "schema" in change


@pytest.mark.parametrize(
    "schema",
    [
        {"shape": [HUGE]},
        {"shape": [HUGE], "core": [HUGE]},
        {"shape": [-8]},
        {"shape": [8.0]},
        {"shape": "8"},
        {"shape": [8] * 100},
        {"shape": [2, 4]},
        {"dtype": "<f4"},
        {"dtype": "O"},
        {"dtype": "|V0"},
        {"dtype": "<U1000000000"},
        {"dtype": ["<f8"]},
        {"dtype": None},
        {"dtype": "os"},
        {"axes": [1]},
        {"axes": [0, 0]},
        {"axes": None},
        {"core": [4]},
        {"core": [8, 0]},
    ],
    ids=repr,
)
def test_wrong_schema_in_a_receipt(root, schema):
    """A schema that does not fit the bytes is refused before any memory is taken for it."""
    body = json.loads((root / PLACE.receipt).read_bytes())
    receipt(root, schema={**body["schema"], **schema})
    with pytest.raises(LoadError):
        read_stored(root)


def read_stored(root):
    """Read the partition as a task of an opened milestone does."""
    from dask_resilient.tasks import read_stored as read

    return read({"store": str(root), "token": open_archive(root).token, "receipt": PLACE.receipt})


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"[]",
        b"7",
        b"{}",
        b'{"shape": 7}',
        b'{"shape": []}',
        b'{"shape": null}',
        b"[" * 100_000,
        b'{"shape": [' + b"1," * 100 + b"1]}",
        b'{"shape": [' + b"1," * 300_000 + b"1]}",
    ],
    ids=lambda raw: repr(raw)[:30],
)
def test_wrong_metadata(root, raw):
    """Metadata that describe no array are refused, however many axes they name."""
    metadata(root, raw)
    with pytest.raises((Foreign, Damaged)):
        read_stored(root)
    everything(root)


def test_sizes_are_seen_on_disk_before_memory_is_taken(root):
    """A receipt that says petabytes of a file that is small takes nothing."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    receipt(root, nbytes=1 << 50, chunks=[[(1 << 50) + 4, 0]])
    with pytest.raises(Damaged, match="its receipt says"):
        read_stored(root)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10


@pytest.mark.parametrize(
    "change",
    [
        {"npartitions": MAX_PARTITIONS, "numblocks": [MAX_PARTITIONS]},
        {"npartitions": MAX_PARTITIONS, "numblocks": [1, MAX_PARTITIONS, 1]},
        {"npartitions": 0, "numblocks": [0, HUGE]},
        {"npartitions": 0, "numblocks": [0]},
        {"kind": "frame", "npartitions": MAX_PARTITIONS, "numblocks": None},
        {"kind": "bag", "npartitions": 0, "numblocks": None},
        {"group": ["g", 10**9], "variable": "t"},
    ],
    ids=repr,
)
def test_milestones_without_end(root, change):
    """A description of millions of partitions, or of none, is refused in no time and no memory."""
    describe(root, **{key: value for key, value in change.items() if value is not None})
    if change.get("numblocks", 1) is None:
        body = {k: v for k, v in {**KIND.to_dict(), **change}.items() if v is not None}
        (root / "milestones/m.json").write_bytes(seal({"milestone": "m", "run": "r", "made": 1.0, "description": body}))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises((LookupError, Damaged)) as caught:
        dr.open(root, "clean")
    assert len(str(caught.value)) < 1000
    everything(root)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10


@pytest.mark.parametrize("schema", [{"shape": [HUGE], "core": [HUGE]}, {"dtype": "<U1000000000"}, {}, {"shape": None}])
def test_wrong_meta_in_a_description(root, schema):
    """A meta that does not fit its bytes is refused as a partition would be."""
    staged = partitions.stage(np.empty(0))
    meta = {"codec": staged.codec, "schema": {**staged.schema, **schema} if schema else {}, "payload": ""}
    describe(root, meta=meta)
    with pytest.raises(ResilienceError):
        dr.open(root, "clean")


# -- large and deep files ----------------------------------------------------------------------------------------------


def test_bomb_in_a_ticket():
    """A description that unpacks to a hundred megabytes is refused after a few megabytes."""
    bomb = zlib.compressobj(9)
    block = b" " * (1 << 20)
    raw = b"".join(bomb.compress(block) for _ in range(96)) + bomb.flush()
    assert len(raw) < 1 << 17
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(Damaged, match="larger than any"):
        read_description(raw)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 32 << 10


FILES = ["store.json", "milestones/m.json", PLACE.receipt, f"{PLACE.data}/zarr.json", "runs/r/lease.json"]


@pytest.mark.parametrize("path", FILES)
@pytest.mark.parametrize("depth", [900, 100_000])
@pytest.mark.parametrize("pair", ["[]", "{}"])
def test_deep_json(root, path, depth, pair):
    """Deeply nested JSON is refused, sealed or not, and never ends the process."""
    (root / "runs/r").mkdir()
    deep = ("[" * depth + "]" * depth) if pair == "[]" else ('{"a":' * depth + "1" + "}" * depth)
    (root / path).write_text(f'{{"format": 1, "sha256": "", "token": {deep}, "place": {deep}, "shape": {deep}}}')
    everything(root)
    if depth < 1000 and path == PLACE.receipt:
        receipt_body = loads_receipt_body(root, deep)
        (root / path).write_bytes(seal(receipt_body))
        everything(root)


def loads_receipt_body(root, deep):
    """Give a receipt of which the schema is deep."""
    staged = partitions.stage(np.arange(8.0))
    store = open_store(root, create=False, calls=Impatient())
    other = replace(PLACE, index="1")
    store.write(other, staged, FACTS)
    body = json.loads((root / other.receipt).read_bytes())
    body.pop("sha256")
    return {**body, "place": PLACE.to_dict(), "schema": {**body["schema"], "deep": json.loads(deep)}}


@pytest.mark.parametrize("path", FILES)
def test_file_that_is_too_large(root, path):
    """A file larger than any of its kind is refused by its size, unread."""
    (root / "runs/r").mkdir()
    (root / path).touch()
    os.truncate(root / path, 1 << 40)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    everything(root)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10


PROGRAM = """
import resource, sys
from pathlib import Path
from dask_resilient.store import open_archive
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
archive = open_archive(Path(sys.argv[1]))
archive.milestones()
bad = [each for _, each in archive.receipts("m") if isinstance(each, Exception)]
print(len(archive.unreadable) + len(bad), (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10)
"""


@pytest.mark.parametrize("fill", ["[],", "[", '{"a":1},', "1.5,"])
@pytest.mark.parametrize("path", [PLACE.receipt, "milestones/m.json"])
@pytest.mark.slow
def test_megabytes_of_json(root, path, fill):
    """Sixteen megabytes of brackets take bounded memory, and go again."""
    (root / path).write_text('{"x": [' + fill * (MAX_JSON // len(fill) - 10) + "1]}")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(root)], capture_output=True, text=True, check=True, timeout=120
    )
    refused, mebibytes = map(int, done.stdout.split())
    assert refused == 1
    assert mebibytes < 640


def test_receipt_of_many_facts_is_refused_as_such():
    """What a receipt says is checked as a whole: every field, and no other."""
    body = {"place": PLACE.to_dict(), "key": "k", "run": "r", "codec": "c", "schema": {}, "nbytes": 0, "chunks": []}
    body["parents"] = []
    good = {**body, "metadata": "x"}
    assert loads_receipt(seal(good)).place == PLACE
    for field in good:
        with pytest.raises((Damaged, Foreign)):
            loads_receipt(seal({key: value for key, value in good.items() if key != field}))
    with pytest.raises(Unreachable):
        partitions.restore("nobody's", {}, np.empty(0, np.uint8))
