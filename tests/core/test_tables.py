"""A user's file of rules changes rows of the tables, and says what is wrong with it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dask_resilient.core import cuda_errors, xid
from dask_resilient.core.faults import Class
from dask_resilient.core.tables import Tables
from dask_resilient.errors import SettingError


def test_no_file_changes_nothing() -> None:
    """The tables are ours."""
    assert Tables.of(None).xids[79].cls is Class.EVICT


def test_a_file_changes_rows_of_both_tables() -> None:
    """Keys may be text, as after JSON."""
    tables = Tables.of({"file": "f.yaml", "xid": {"79": {"class": "drain"}}, "cuda": {700: {"class": "observe"}}})
    assert (tables.xids[79].cls, tables.xids[79].source) == (Class.DRAIN, "f.yaml")
    assert tables.cuda[700].cls is Class.OBSERVE


def test_a_number_without_a_row_gets_one() -> None:
    """It starts as what numbers without a row are taken for."""
    tables = Tables.of({"file": "f.yaml", "xid": {999: {"meaning": "new"}}, "cuda": {9999: {"class": "kill"}}})
    assert tables.xids[999] == replace(xid.UNKNOWN, code=999, meaning="new", source="f.yaml")
    assert tables.cuda[9999] == replace(cuda_errors.UNKNOWN, code=9999, cls=Class.KILL, source="f.yaml")


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        ({"xids": {}}, "no section 'xids'; known are xid and cuda"),
        ({"xid": {79: {"klass": "drain"}}}, "f.yaml: XID 79 has no field 'klass'"),
        ({"cuda": {700: "drain"}}, "f.yaml: CUDA error 700 is 'drain'"),
        ({"xid": [79]}, "must be a mapping of XID codes"),
    ],
)
def test_a_file_that_cannot_be_says_where(rules: dict[str, Any], words: str) -> None:
    """The message names file, row and field."""
    with pytest.raises(SettingError, match=words.replace("(", r"\(")):
        Tables.of({"file": "f.yaml", **rules})
