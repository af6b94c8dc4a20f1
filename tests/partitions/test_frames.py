from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pytest
from awkward_tables import DECLINED, EXACT, VERSION

from dask_resilient import partitions
from dask_resilient.core.outcome import Declined
from dask_resilient.errors import Foreign, Unreachable
from dask_resilient.partitions import buffers, zones
from dask_resilient.testing.codecs import CodecContract, payload_of, round_trip, staged


def same_types(one, other):
    """Equal attrs or labels, with the same types all the way down."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same_types(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same_types, one, other))
    return one is other or one == other or (pd.isna(one) and pd.isna(other))


def assert_same_index(one, other):
    pd.testing.assert_index_equal(one, other, exact=True, check_exact=True, check_order=True)
    assert same_types(list(one.names), list(other.names))
    if isinstance(one, pd.MultiIndex):
        for mine, its in zip(one.levels, other.levels, strict=True):
            assert_same_index(mine, its)
        assert all(map(np.array_equal, one.codes, other.codes))
        assert one.sortorder == other.sortorder
    elif one.dtype == object:
        assert same_types(one.tolist(), other.tolist())
    assert getattr(one, "freq", None) == getattr(other, "freq", None)


def assert_same_series(one, other):
    pd.testing.assert_series_equal(
        *(one, other),
        check_exact=True,
        check_dtype=True,
        check_index_type="exact",
        check_freq=True,
        check_flags=True,
    )
    assert same_types(one.name, other.name)
    assert repr(one.dtype) == repr(other.dtype)
    assert one.equals(other)
    if one.dtype == object:
        assert same_types(one.tolist(), other.tolist())
        assert list(map(repr, one)) == list(map(repr, other))  # -0.0 equals 0.0
    elif isinstance(one.dtype, np.dtype):
        assert one.to_numpy().tobytes() == other.to_numpy().tobytes()
    if isinstance(one.dtype, pd.CategoricalDtype):
        assert_same_index(one.cat.categories, other.cat.categories)
        assert one.cat.codes.dtype == other.cat.codes.dtype
    if isinstance(one.dtype, pd.DatetimeTZDtype):
        assert type(one.dtype.tz) is type(other.dtype.tz)
        assert str(one.dtype.tz) == str(other.dtype.tz)


class TestTables(CodecContract):
    codec = "pandas"

    @pytest.fixture(params=list(EXACT))
    def value(self, request):
        return EXACT[request.param]()

    def assert_same(self, restored, original):
        assert type(restored) is type(original)
        if isinstance(original, pd.Index):
            assert_same_index(restored, original)
            return
        assert same_types(restored.attrs, original.attrs)
        assert restored.flags.allows_duplicate_labels == original.flags.allows_duplicate_labels
        if isinstance(original, pd.Series):
            assert_same_series(restored, original)
        else:
            pd.testing.assert_frame_equal(
                *(restored, original),
                check_exact=True,
                check_dtype=True,
                check_index_type="exact",
                check_column_type="exact",
                check_freq=True,
                check_flags=True,
            )
            assert_same_index(restored.columns, original.columns)
            for i in range(original.shape[1]):
                assert_same_series(restored.iloc[:, i], original.iloc[:, i])
        if len(original) < 100:
            assert_same_index(restored.index, original.index)


@pytest.mark.parametrize("name", EXACT)
def test_restored_columns_can_be_changed_in_place(name):
    """Values of a restored table can be assigned to as those of the original."""
    table = round_trip(EXACT[name]())
    if isinstance(table, pd.Index) or not table.size or not len(table):
        return
    table = table.to_frame() if table.ndim == 1 else table
    expected = table.iloc[:, 0].copy()
    value = expected.iloc[-1] if not isinstance(expected.iloc[-1], list) else pd.NA
    expected.iloc[0] = value
    table.iloc[0, 0] = value
    pd.testing.assert_series_equal(table.iloc[:, 0], expected)


def test_columns_are_staged_without_a_copy():
    """Changing a column after staging shows in the digest, whether it lies alone or in a block of many."""
    values = np.zeros((3, 1000))
    frame = pd.DataFrame(values.T, copy=False)
    frame["n"] = np.zeros(1000, "i4")
    result = staged(frame)
    values[1, 7] = 1
    assert partitions.digest(result.chunks) != result.crc32c


def test_columns_that_are_one_array_are_declined_where_it_shows():
    """Without copy-on-write a change of one column shows in its twin; then the frame is declined."""
    values = np.zeros(4)
    frame = pd.DataFrame({"a": values, "b": values}, copy=False)
    if VERSION < (3, 0):
        frame.iloc[0, 0] = 1
        assert frame.iloc[0, 1] == 1
        assert "column 'b' is the same memory as column 'a'" in partitions.stage(frame).reason
    frame = pd.DataFrame({"a": values})
    frame["b"] = frame["a"]  # shares memory from pandas 3 on, until one is written to
    pd.testing.assert_frame_equal(round_trip(frame), frame)


def test_reason_names_the_column():
    """Of many columns the declined one is named."""
    frame = pd.DataFrame({"a": [1], ("b", 1): pd.Series([[]], dtype=object)})
    reason = "column ('b', 1) has dtype object and in row 0 a builtins.list, which stays unsaved"
    assert partitions.stage(frame) == Declined(reason)


def test_index_longer_than_the_columns_is_foreign():
    """A range that promises more rows than the columns have never makes pandas repeat them."""
    result = staged(pd.DataFrame({"c": pd.Categorical(["a"])}))
    schema = {**result.schema, "index": {"name": None, "range": [0, 2**40, 1]}}
    with pytest.raises(Foreign, match="rows"):
        partitions.restore(result.codec, schema, payload_of(result))


def test_columns_that_share_bytes_are_foreign():
    """Two columns that point at the same bytes could write into each other, and are refused."""
    result = staged(pd.DataFrame({"a": np.zeros(8), "b": np.ones(8)}))
    schema = {**result.schema, "data": [result.schema["data"][1]] * 2}
    with pytest.raises(Foreign, match="one by one"):
        partitions.restore(result.codec, schema, payload_of(result))


def test_stream_of_an_extension_type_is_foreign():
    """A hostile stream that names a type of another library is refused, whatever the schema says of it."""
    pa = pytest.importorskip("pyarrow")
    result = staged(pd.Series(pd.array([1], dtype=pd.ArrowDtype(pa.int64()))))
    [spec] = result.schema["data"]
    kind = pa.array(pd.period_range("2020", periods=1, freq="D")).type
    values = pa.ExtensionArray.from_storage(kind, pa.array([1], pa.int64()))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, pa.schema([("", kind)])) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays([values], names=[""]))
    raw = np.frombuffer(sink.getvalue(), np.uint8).copy()
    spec = {**spec, "type": str(kind), "stream": {"at": 0, "nbytes": len(raw)}}
    with pytest.raises(Foreign, match="Arrow stream"):
        partitions.restore(result.codec, {**result.schema, "data": [spec]}, raw)


def test_zone_that_is_missing_here_is_unreachable(monkeypatch):
    """A table of a time zone that this machine lacks may be intact: another worker may have it."""
    result = staged(EXACT["time zone of zoneinfo"]())
    monkeypatch.setattr(zones, "_zoneinfo_keys", frozenset)
    with pytest.raises(Unreachable, match="Europe/Berlin"):
        partitions.restore(result.codec, result.schema, payload_of(result))


def test_zones_of_pytz():
    """Zones of pytz come back as the same objects."""
    pytz = pytest.importorskip("pytz")
    for zone in (pytz.utc, pytz.timezone("Europe/Berlin")):
        stamps = pd.Series(pd.to_datetime(["2020-07-01", None]).tz_localize(zone))
        assert round_trip(stamps).dtype.tz is stamps.dtype.tz
    fixed = pd.Series(pd.to_datetime(["2020"]).tz_localize(pytz.FixedOffset(60)))
    assert "time zone" in partitions.stage(fixed).reason


def test_wide_frame_is_consolidated():
    """A restored frame of many columns takes a new one without a warning about fragmentation."""
    frame = round_trip(pd.DataFrame(np.ones((2, 150))))
    frame["new"] = 1


def test_wide_frame_of_objects_keeps_its_dtypes():
    """Consolidating many columns of objects makes nothing else of them."""
    frame = pd.DataFrame(np.full((2, 150), "a", object), dtype=object)
    pd.testing.assert_frame_equal(round_trip(frame), frame, check_dtype=True)


def test_frame_above_one_chunk(monkeypatch):
    """A table larger than a chunk comes back from several."""
    monkeypatch.setattr(buffers, "CHUNK_NBYTES", 1000)
    frame = pd.DataFrame({"a": np.arange(300), "b": pd.array(["x" * (i % 7) for i in range(300)], dtype="str")})
    assert len(staged(frame).chunks) > 3
    pd.testing.assert_frame_equal(round_trip(frame), frame)


@pytest.mark.parametrize("name", DECLINED)
def test_what_cannot_be_exact_is_declined(name):
    """A table with a part that has no exact form is declined, and the reason names the part."""
    make, reason = DECLINED[name]
    result = partitions.stage(make())
    assert isinstance(result, Declined)
    assert re.search(reason, result.reason), result.reason
