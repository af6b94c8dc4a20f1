"""The codec of cuDF on a double of cuDF: its logic, not cuDF. `tests/rapids` checks the real names."""

from __future__ import annotations

import datetime as dt
import decimal
import re
import sys

import fake_cudf
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from test_frames import assert_same_index, same_types

from dask_resilient import partitions
from dask_resilient.core.outcome import Declined
from dask_resilient.errors import Foreign, Unreachable
from dask_resilient.partitions.builtin import DEVICE_CODECS
from dask_resilient.testing.codecs import CodecContract, payload_of, round_trip, staged


@pytest.fixture(autouse=True)
def cudf(monkeypatch):
    """Put the double in the place of cuDF, and see that nothing was moved back to the device."""
    monkeypatch.setitem(sys.modules, "cudf", fake_cudf)
    monkeypatch.setitem(sys.modules, "cupy", fake_cudf.cupy)
    monkeypatch.setattr(fake_cudf.runtime, "synchronized", 0)
    monkeypatch.setattr(fake_cudf, "UNSPILLED", [])
    yield fake_cudf
    assert not fake_cudf.UNSPILLED


def series(values, kind=None, **changes):
    made = fake_cudf.Series.from_arrow(values if isinstance(values, pa.Array) else pa.array(values, kind))
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def frame(columns, index=None, labels=None):
    made = fake_cudf.DataFrame(dict(enumerate(map(series, columns))), index=index)
    made.columns = pd.Index(range(len(columns))) if labels is None else labels
    return made


def index(values, kind=None, **changes):
    made = fake_cudf.Index.from_arrow(values if isinstance(values, pa.Array) else pa.array(values, kind))
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def intervals():
    kind = fake_cudf.IntervalDtype(np.dtype("i8"), "left").to_arrow()
    storage = pa.array([{"left": 0, "right": 1}, None], pa.struct([("left", pa.int64()), ("right", pa.int64())]))
    return pa.ExtensionArray.from_storage(kind, storage)


def categories(codes, values, ordered=False):
    return pa.DictionaryArray.from_arrays(pa.array(codes, pa.int8()), pa.array(values), ordered=ordered)


NAN = np.array([0x7FF8_0000_0000_1234, 0], "u8").view("f8")

EXACT = {
    "numbers": lambda: frame([pa.array([1, None], pa.int8()), pa.array([True, None]), pa.array([0.5, -0.0])]),
    "NaN payloads beside null": lambda: series(pa.array(NAN, mask=np.array([False, True]))),
    "strings": lambda: series(["a", None, "", "schön"], name="s"),
    "times of every unit": lambda: frame([pa.array([0, None], pa.timestamp(u)) for u in ("s", "ms", "us", "ns")]),
    "durations": lambda: frame([pa.array([0, None], pa.duration(u)) for u in ("s", "ms", "us", "ns")]),
    "decimals": lambda: series([decimal.Decimal("1.10"), None], pa.decimal64(9, 2)),
    "lists": lambda: series([[1, None], None, []], pa.list_(pa.int16())),
    "structs": lambda: series([{"a": 1, "b": [["x"]]}, None]),
    "categories": lambda: series(categories([1, None, 0], ["c", "b", "a"])),
    "ordered categories of times": lambda: series(categories([0], [dt.timedelta(1)], ordered=True)),
    "categories without rows": lambda: series(categories([], ["b", "a"])),
    "intervals": lambda: series(intervals()),
    "labels of every kind": lambda: frame([[1]] * 4, labels=pd.Index(["a", 1, None, ("t", 2)], tupleize_cols=False)),
    "MultiIndex of labels": lambda: frame([[1]] * 2, labels=pd.MultiIndex.from_tuples([("x", 1), ("x", 2)])),
    "range with a step": lambda: frame([[1, 2]], fake_cudf.RangeIndex(10, 6, -2, name="r")),
    "index of strings": lambda: frame([[1, 2]], index(["a", None], name=("n", 1))),
    "index of times with freq": lambda: frame(
        [[1, 2]], index([0, 86400], pa.timestamp("s"), freq=pd.offsets.Day(), name="t")
    ),
    "index of times": lambda: frame([[1, 2]], index([0, 5], pa.timestamp("s"))),
    "index of durations": lambda: frame([[1, 2]], index([0, 5], pa.duration("ms"))),
    "index of categories": lambda: frame([[1, 2]], index(categories([0, 0], ["a"]))),
    "index of intervals": lambda: frame([[1, 2]], index(intervals())),
    "MultiIndex": lambda: frame(
        [[1, 2]], fake_cudf.MultiIndex([fake_cudf.column(pa.array(v)) for v in ([1, 2], ["a", None])], ["k", "k"])
    ),
    "columns without rows": lambda: frame([pa.array([], pa.int8()), pa.array([], pa.string())]),
    "rows without columns": lambda: frame([], index(["a", "b"])),
    "attrs": lambda: series([1], attrs={"unit": "m", 1: [None, (2.5,)]}, name=3),
    "index alone": lambda: index([3, 1], pa.int16(), name="i"),
    "range alone": lambda: fake_cudf.RangeIndex(0, 5, 1),
}


def assert_same_column(one, other):
    assert repr(one.dtype) == repr(other.dtype) or isinstance(one.dtype, fake_cudf.CategoricalDtype)
    assert one.array.type == other.array.type
    assert one.array.equals(other.array) or "float" in str(one.array.type) or "double" in str(one.array.type)
    assert one.array.is_valid().equals(other.array.is_valid())
    if pa.types.is_floating(one.array.type):
        valid = np.asarray(one.array.is_valid())
        assert np.array_equal(*(np.asarray(each.array.fill_null(0)).view("u8")[valid] for each in (one, other)))
    if isinstance(one.dtype, fake_cudf.CategoricalDtype):
        assert one.dtype.ordered == other.dtype.ordered
        assert_same_column(one.dtype.categories._columns[0], other.dtype.categories._columns[0])


def assert_same(one, other):
    assert type(one) is type(other)
    if isinstance(one, fake_cudf.RangeIndex):
        assert (one.start, one.stop, one.step, one.name) == (other.start, other.stop, other.step, other.name)
        return
    assert len(one._columns) == len(other._columns)
    for mine, its in zip(one._columns, other._columns, strict=True):
        assert_same_column(mine, its)
    for name in ("name", "names", "freq"):
        if type(one) is not fake_cudf.TimedeltaIndex or name != "freq":
            assert same_types(getattr(one, name, None), getattr(other, name, None))
    if isinstance(one, fake_cudf.Table):
        assert_same(one.index, other.index)
        assert same_types(one.attrs, other.attrs)
    if isinstance(one, fake_cudf.DataFrame):
        assert_same_index(one.columns, other.columns)


class TestCudf(CodecContract):
    codec = "cudf"

    @pytest.fixture(params=list(EXACT))
    def value(self, request):
        return EXACT[request.param]()

    def assert_same(self, restored, original):
        assert_same(restored, original)


def levelled():
    made = fake_cudf.MultiIndex([fake_cudf.column(pa.array([1]))], ["k"])
    made._levels = [index([1, 2])]
    return made


def flagged(table):
    table.flags.allows_duplicate_labels = False
    return table


def unordered():
    table = series(categories([0], ["a"]))
    table.dtype.ordered = None
    return table


DECLINED = {
    "only nulls in a list": (lambda: series([None, None], pa.list_(pa.int8())), r"series None .* only nulls"),
    "lists without rows": (lambda: frame([pa.array([], pa.list_(pa.int8()))]), r"column 0 .* no rows"),
    "half floats": (lambda: series(np.array([1], "f2")), r"has dtype dtype\('float16'\)"),
    "levels": (lambda: frame([[1]], levelled()), r"the index is a MultiIndex whose levels"),
    "flag": (lambda: flagged(series([1])), r"allows_duplicate_labels"),
    "attrs": (lambda: series([1], attrs={"a": object()}), r"attrs .*object"),
    "freq": (lambda: index([0], pa.timestamp("s"), freq=pd.DateOffset(months=1)), r"the index has the frequency"),
    "order unknown": (unordered, r"has dtype"),
}


@pytest.mark.parametrize("name", DECLINED)
def test_what_cannot_be_exact_is_declined(name):
    """A table with a part that Arrow or cuDF would change is declined, and the reason names the part."""
    make, reason = DECLINED[name]
    result = partitions.stage(make())
    assert isinstance(result, Declined)
    assert re.search(reason, result.reason), result.reason


SPILLED = {
    "data of a column": lambda table: table._columns[0].plc_column.data(),
    "mask of a column": lambda table: table._columns[1].plc_column.null_mask(),
    "child of a column": lambda table: table._columns[2].plc_column.children()[0].data(),
    "index": lambda table: table.index._columns[0].plc_column.data(),
    "categories": lambda table: table._columns[1].dtype.categories._columns[0].plc_column.data(),
}


@pytest.mark.parametrize("name", SPILLED)
def test_spilled_buffer_stays_where_it_is(name):
    """One spilled buffer, wherever it belongs, and the table is declined before anything is copied."""
    table = frame([pa.array([1]), categories([0], ["a"]), pa.array([[1]])], index(["a"]))
    SPILLED[name](table).owner.is_spilled = True
    assert "spilled to the host" in partitions.stage(table).reason
    assert all(not buffer.owner.held for column in table._columns for buffer in column.plc_column.buffers)


def test_device_is_synchronised_before_each_copy(cudf):
    """Staging waits for the device once, while every buffer is held; the double refuses to be copied otherwise."""
    staged(EXACT["categories"]())
    assert cudf.runtime.synchronized == 1


def test_missing_cudf_is_unreachable(monkeypatch):
    """Where cuDF is not installed the copy may be intact: another worker may have it."""
    result = staged(EXACT["strings"]())
    monkeypatch.setitem(sys.modules, "cudf", None)
    with pytest.raises(Unreachable, match="cudf"):
        partitions.restore(result.codec, result.schema, payload_of(result))


def test_dtype_that_cudf_no_longer_makes_is_unreachable(monkeypatch):
    """A release of cuDF that makes something else of a column is refused, and both dtypes are named."""
    result = staged(EXACT["strings"]())
    monkeypatch.setattr(fake_cudf, "dtype_of", lambda array: np.dtype("i4"))
    with pytest.raises(Unreachable, match=r"'int32'|<i4.*StringDtype"):
        partitions.restore(result.codec, result.schema, payload_of(result))


def test_columns_of_another_length_are_foreign():
    """An index that promises other rows than the columns have is refused before the device is touched."""
    result = staged(frame([[1, 2]]))
    schema = {**result.schema, "index": {"range": [0, 2**40, 1], "name": None}}
    with pytest.raises(Foreign, match="do not fit"):
        partitions.restore(result.codec, schema, payload_of(result))


def test_columns_are_arrow_streams_for_any_reader():
    """What is stored of a column can be read by Arrow alone, as the docs say."""
    result = staged(EXACT["strings"]())
    where = result.schema["data"][0]["stream"]
    assert where["at"] % 64 == 0
    raw = payload_of(result)[where["at"] : where["at"] + where["nbytes"]]
    assert pa.ipc.open_stream(raw).read_all().column(0).to_pylist() == ["a", None, "", "schön"]


def test_loads_make_room_for_cudf():
    """A cuDF table counts as device memory before it is restored."""
    assert "cudf" in DEVICE_CODECS


def test_copy_survives_the_original():
    """What comes back shares nothing with what was staged."""
    original = EXACT["numbers"]()
    assert_same(round_trip(original), original)
