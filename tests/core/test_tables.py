"""A user's file of rules changes rows of the tables, and says what is wrong with it."""

from __future__ import annotations

from typing import Any

import pytest

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
