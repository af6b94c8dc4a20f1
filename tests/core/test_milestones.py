"""What a description may say, how it travels, and everything that is refused before a number of it is believed."""

from __future__ import annotations

import json
import zlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_resilient.core import milestones
from dask_resilient.core.manifest import seal
from dask_resilient.core.milestones import (
    Description,
    Milestone,
    dump_description,
    loads_milestone,
    read_description,
)
from dask_resilient.errors import Damaged, Foreign

ARRAY = Description(
    "clean",
    "array",
    6,
    keep=True,
    version="v2",
    numblocks=(2, 3),
    chunks=((5, 5), (4, None, 1)),
    meta={"codec": "numpy", "schema": {"dtype": "<f8"}, "payload": ""},
    dims=("y", None),
    variable="t",
    group=("token", 2),
    versions={"dask": "1"},
)
FRAME = Description("table", "frame", 3, divisions={"codec": "structure", "schema": {}, "payload": ""})
SCALAR = Description("dot", "array", 1, numblocks=(), chunks=())
KNOWN = [ARRAY, FRAME, SCALAR, Description("b", "bag", 2), Description("d", "delayed", 1), Description("o", "other", 7)]


@pytest.mark.parametrize("description", KNOWN, ids=lambda each: each.name)
def test_description_travels(description):
    """A description comes back equal: as a dict through JSON, compressed, and out of the milestone's file."""
    assert Description.from_dict(json.loads(json.dumps(description.to_dict()))) == description
    assert read_description(dump_description(description)) == description
    milestone = Milestone("m", "run", 12.5, description)
    assert loads_milestone(milestone.dumps(), "m") == milestone


def test_unknown_facts_are_left_out():
    """What is not known takes no place."""
    assert Description("b", "bag", 2).to_dict() == {"name": "b", "kind": "bag", "npartitions": 2, "keep": False}


@pytest.mark.parametrize(
    ("change", "of"),
    [
        ({"name": 3}, FRAME),
        ({"name": ""}, FRAME),
        ({"name": "a/b"}, FRAME),
        ({"name": "\x1b[2J"}, FRAME),
        ({"name": "x" * 101}, FRAME),
        ({"kind": "cube"}, FRAME),
        ({"kind": ["frame"]}, FRAME),
        ({"kind": "array"}, FRAME),
        ({"keep": "no"}, FRAME),
        ({"keep": 0}, FRAME),
        ({"npartitions": -1}, FRAME),
        ({"npartitions": True}, FRAME),
        ({"npartitions": 3.0}, FRAME),
        ({"npartitions": "3"}, FRAME),
        ({"npartitions": milestones.MAX_PARTITIONS + 1}, FRAME),
        ({"numblocks": (3,)}, FRAME),
        ({"numblocks": None, "chunks": None}, ARRAY),
        ({"numblocks": (2, 4)}, ARRAY),
        ({"numblocks": (2, -3)}, ARRAY),
        ({"numblocks": (2, 3.0)}, ARRAY),
        ({"numblocks": "23"}, ARRAY),
        ({"numblocks": (1,) * 65, "chunks": None, "npartitions": 1}, ARRAY),
        ({"npartitions": 5}, ARRAY),
        ({"chunks": ((5, 5), (4, 1))}, ARRAY),
        ({"chunks": ((5, 5),)}, ARRAY),
        ({"chunks": ((5, -5), (4, 1, 1))}, ARRAY),
        ({"chunks": ((5, "5"), (4, 1, 1))}, ARRAY),
        ({"dims": ("y",)}, ARRAY),
        ({"dims": ("y", 3)}, ARRAY),
        ({"dims": ("y",)}, FRAME),
        ({"variable": None}, ARRAY),
        ({"variable": 7}, ARRAY),
        ({"group": None}, ARRAY),
        ({"group": (7, 2)}, ARRAY),
        ({"group": ("token", "2")}, ARRAY),
    ],
)
def test_contradictions_are_refused(change, of):
    """Wrong types, and numbers that contradict one another, are damage: when it is made, and when it is read."""
    with pytest.raises(Damaged, match="contradicts itself"):
        replace(of, **change)
    body = json.loads(json.dumps({**of.to_dict(), **change}))
    with pytest.raises(Damaged):
        Description.from_dict(body)


@pytest.mark.parametrize(
    "raw",
    [
        None,
        7,
        [],
        [["name"]],
        {},
        {"name": "x"},
        {**FRAME.to_dict(), "surprise": 1},
        {**ARRAY.to_dict(), "numblocks": 6},
        {**ARRAY.to_dict(), "chunks": [1, 2]},
        {**ARRAY.to_dict(), "group": []},
        {**ARRAY.to_dict(), "group": ["token"]},
        {**ARRAY.to_dict(), "group": {"a": 1}},
    ],
    ids=repr,
)
def test_no_description(raw):
    """What is no description is damage, whatever its type."""
    with pytest.raises(Damaged):
        Description.from_dict(raw)
    with pytest.raises(Damaged):
        read_description(zlib.compress(json.dumps(raw).encode()))
    with pytest.raises(Damaged):
        loads_milestone(seal({"milestone": "m", "run": "r", "made": 1.0, "description": raw}), "m")


@pytest.mark.parametrize(
    "raw",
    [b"", b"nothing", dump_description(FRAME)[:-3], zlib.compress(b"{"), zlib.compress(b"[" * 1_000_000)],
    ids=["empty", "no zlib", "cut", "no JSON", "deep"],
)
def test_torn_description_in_a_ticket(raw):
    """What came to a worker cut off, or as something else, is damage."""
    with pytest.raises(Damaged):
        read_description(raw)


def test_bomb_in_a_ticket(monkeypatch):
    """A description is unpacked no further than any can be large."""
    monkeypatch.setattr(milestones, "MAX_UNPACKED", 1000)
    assert read_description(dump_description(FRAME)) == FRAME
    with pytest.raises(Damaged, match="larger than any"):
        read_description(dump_description(replace(FRAME, meta={"payload": "x" * 1000})))


@pytest.mark.parametrize(
    "made", [None, "soon", [], float("nan"), float("inf"), -1.0, 1e300, 10**400], ids=lambda made: repr(made)[:9]
)
def test_made_at_no_time(made):
    """A time that no clock gives, and that no calendar shows, is damage."""
    with pytest.raises(Damaged):
        loads_milestone(seal({"milestone": "m", "run": "r", "made": made, "description": FRAME.to_dict()}), "m")


def test_file_of_another_milestone():
    """A description that was copied to another name is not taken for that milestone's."""
    with pytest.raises(Damaged, match="'n' describes 'm'"):
        loads_milestone(Milestone("m", "r", 1.0, FRAME).dumps(), "n")


def test_file_of_another_format():
    """A description that a later version wrote is foreign, not damaged."""
    body = {"milestone": "m", "run": "r", "made": 1.0, "description": FRAME.to_dict()}
    with pytest.raises(Foreign, match="does not know"):
        loads_milestone(seal({**body, "format": 2}), "m")


@given(st.integers(0), st.integers(0, 255))
def test_any_other_byte_is_noticed(position, byte):
    """No byte of the file can change unnoticed."""
    milestone = Milestone("m", "r", 1.0, ARRAY)
    raw = bytearray(milestone.dumps())
    position %= len(raw)
    same = raw[position] == byte
    raw[position] = byte
    try:
        found = loads_milestone(bytes(raw), "m")
    except (Damaged, Foreign):
        assert not same
    else:
        assert found == milestone


@given(st.lists(st.integers(1, 4), max_size=4))
def test_indices_of_an_array(blocks):
    """Every block has its index, each once, and `has` knows these and no others."""
    count = 1
    for n in blocks:
        count *= n
    description = Description("x", "array", count, numblocks=tuple(blocks))
    indices = list(description.indices())
    assert len(set(indices)) == count
    assert all(map(description.has, indices))
    if blocks:
        assert [int(i) for i in indices[0].split(".")] == [0] * len(blocks)
        assert [int(i) for i in indices[-1].split(".")] == [n - 1 for n in blocks]
        assert indices == sorted(indices, key=lambda index: [*map(int, index.split("."))])
    else:
        assert indices == ["0"]
    for odd in ("", ".", "00", "-1", "x", "0" + ".0" * len(blocks), str(count + 4), "1e0", "\u0660"):
        assert odd in indices or not description.has(odd)


def test_indices_of_the_rest():
    """A frame's partitions are numbered; how those of unknown collections are numbered nobody knows."""
    assert list(FRAME.indices()) == ["0", "1", "2"]
    assert not FRAME.has("3")
    assert Description("o", "other", 1).has("x0123")


def test_indices_are_made_one_by_one():
    """A description that names millions of blocks, or an axis without end beside an empty one, takes no memory."""
    many = Description("x", "array", milestones.MAX_PARTITIONS, numblocks=(milestones.MAX_PARTITIONS, 1))
    assert next(iter(many.indices())) == "0.0"
    assert not list(Description("x", "array", 0, numblocks=(0, 10**18)).indices())
