"""Receipts and places: what they refuse."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_resilient.core.manifest import Place, Receipt, digest, loads_receipt, split_key
from dask_resilient.errors import Damaged, Foreign

PLACE = Place("m" * 32, "0.1", 0, "a" * 32)
RECEIPT = Receipt(PLACE, "k", "run", "numpy", {"order": "C"}, 8, ((12, 7),), "f" * 64, seconds={"write": 0.5})


def test_a_receipt_round_trips() -> None:
    """Every field comes back as it was."""
    assert loads_receipt(RECEIPT.dumps()) == RECEIPT


def test_a_receipt_cut_short_anywhere_is_damaged() -> None:
    """No prefix of it reads as a receipt."""
    raw = RECEIPT.dumps()
    for end in range(len(raw)):
        with pytest.raises(Damaged):
            loads_receipt(raw[:end])


@pytest.mark.parametrize("field", ["key", "codec", "nbytes", "metadata", "chunks", "place", "schema", "format"])
def test_an_edited_receipt_is_damaged(field: str) -> None:
    """The SHA-256 covers every field."""
    body = json.loads(RECEIPT.dumps())
    body[field] = "edited"
    with pytest.raises(Damaged):
        loads_receipt(json.dumps(body).encode())


def test_every_flipped_bit_of_a_receipt_is_noticed() -> None:
    """Or changes nothing that it says."""
    raw = RECEIPT.dumps()
    for i in range(len(raw)):
        flipped = bytearray(raw)
        flipped[i] ^= 4
        with contextlib.suppress(Damaged, Foreign):
            assert loads_receipt(bytes(flipped)) == RECEIPT


@pytest.mark.parametrize("part", ["", "..", "a/b", "/etc", ".hidden", "a\0", "A", "a" * 200, "a..b", 7])
@pytest.mark.parametrize("field", ["milestone", "index", "attempt"])
def test_a_place_cannot_point_out_of_the_store(field: str, part: object) -> None:
    """What is no plain file name is refused, wherever it comes from."""
    with pytest.raises(Foreign):
        replace(PLACE, **{field: part})


@pytest.mark.parametrize(
    ("key", "expected"),
    [("x", ("x", "0")), (("x", 3), ("x", "3")), (("x", 0, 2), ("x", "0.2")), (("x",), ("('x',)", "0"))],
)
def test_a_key_splits_into_collection_and_index(key: object, expected: tuple[str, str]) -> None:
    """Indices are file names."""
    assert split_key(key) == expected


@given(st.lists(st.one_of(st.integers(), st.text(), st.floats(), st.booleans()), min_size=1, max_size=3))
def test_any_index_is_a_file_name(rest: list[object]) -> None:
    """Whatever a key is made of, it gives a place that is accepted."""
    _, index = split_key(("x", *rest))
    Place("m", index, 0, "a")


@given(st.lists(st.text(), max_size=4), st.lists(st.text(), max_size=4))
def test_digests_of_different_parts_differ(a: list[str], b: list[str]) -> None:
    """Parts cannot run into one another."""
    assert (digest(*a) == digest(*b)) == (a == b)
