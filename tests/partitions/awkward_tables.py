"""Tables that other formats lose something of, by name; each is exact here or declined for the stated reason."""

from __future__ import annotations

import datetime as dt
import decimal
import uuid
import zoneinfo

import dateutil.tz
import numpy as np
import pandas as pd

NAN_PAYLOAD = np.array([0x7FF8_0000_0000_1234, 0xFFF8_0000_0000_0001], "u8").view("f8")
BERLIN = zoneinfo.ZoneInfo("Europe/Berlin")


def frame(values, **kwargs):
    return pd.DataFrame({"x": values}, **kwargs)


def objects(*values):
    return frame(pd.Series(values, dtype=object))  # without a dtype pandas 3 would make strings of them


def string(storage, missing):
    # Until pandas 2.3 there is no `na_value`, and only NA.
    dtype = pd.StringDtype(storage) if missing is pd.NA else pd.StringDtype(storage, na_value=missing)
    return frame(pd.array(["a", None, "", "schön", "日本\0"], dtype=dtype))


def arrow(values, kind):
    import pyarrow as pa

    return frame(pd.array(values, dtype=pd.ArrowDtype(getattr(pa, kind)() if isinstance(kind, str) else kind)))


def arrow_type(make):
    import pyarrow as pa

    return make(pa)


def with_(table, **changes):
    for name, value in changes.items():
        setattr(table, name, value)
    return table


def flagged(table):
    return table.set_flags(allows_duplicate_labels=False)


def numbers(index=None, columns=None, rows=4):
    return pd.DataFrame(np.arange(rows * 2.0).reshape(rows, 2), index=index, columns=columns)


def indexed(index):
    return numbers(index=index, rows=len(index))


EXACT = {
    # values
    "ints of all sizes": lambda: pd.DataFrame(
        {f"{s}{b}": np.array([0, 1, 2], f"{s}{b}") for s in "iu" for b in (1, 2, 4, 8)}
    ),
    "floats": lambda: pd.DataFrame({c: np.array([-0.0, np.inf, np.nan, 0.1], c) for c in ("f2", "f4", "f8")}),
    "NaN payloads": lambda: frame(NAN_PAYLOAD),
    "long double": lambda: frame(np.array([0.1, np.nan], np.longdouble)),
    "complex": lambda: pd.DataFrame({c: np.array([1j, np.nan, -0.0], c) for c in ("c8", "c16")}),
    "bool": lambda: frame([True, False]),
    "big-endian": lambda: frame(np.array([1, 2], ">i4")),
    "one block, C order": lambda: pd.DataFrame(np.arange(12).reshape(4, 3)),
    "one block, F order": lambda: pd.DataFrame(np.arange(12).reshape(3, 4).T),
    "every other row": lambda: pd.DataFrame(np.arange(12).reshape(6, 2))[::2],
    "many columns": lambda: pd.DataFrame(np.ones((2, 150))),
    # times
    "datetimes of every unit": lambda: pd.DataFrame(
        {u: np.array(["2020-01-01", "NaT"], f"M8[{u}]") for u in ("s", "ms", "us", "ns")}
    ),
    "timedeltas of every unit": lambda: pd.DataFrame(
        {u: np.array([1, "NaT"], f"m8[{u}]") for u in ("s", "ms", "us", "ns")}
    ),
    "datetimes beyond the range of ns": lambda: frame(np.array([-(2**62), 2**62], "M8[s]")),
    "time zone of zoneinfo": lambda: frame(pd.to_datetime(["2020-07-01", None]).tz_localize(BERLIN)),
    "time zone, seconds": lambda: frame(pd.to_datetime(["2020-07-01", None]).tz_localize(BERLIN).as_unit("s")),
    "ambiguous hour": lambda: frame(pd.date_range("2020-10-25", periods=6, freq="h", tz="Europe/Berlin").array),
    "UTC": lambda: frame(pd.to_datetime(["2020-07-01"], utc=True)),
    "UTC of zoneinfo": lambda: frame(pd.to_datetime(["2020-07-01"]).tz_localize(zoneinfo.ZoneInfo("UTC"))),
    "fixed offset": lambda: frame(pd.to_datetime(["2020-07-01"]).tz_localize(dt.timezone(dt.timedelta(hours=-3.5)))),
    "periods": lambda: frame(pd.PeriodIndex(["2020-01", None], freq="M")),
    "periods of business quarters": lambda: frame(pd.period_range("2020", periods=3, freq="Q-NOV")),
    # objects
    "objects, text": lambda: objects("a", "", "schön", "\ud800"),
    "objects, each kind of missing": lambda: objects("a", None, np.nan, pd.NA, pd.NaT, ""),
    "objects, nothing but missing": lambda: objects(None, np.nan),
    "objects, mixed": lambda: objects(1, "a", True, False, 2**70, -0.5, -0.0, b"\0\xff"),
    "objects, dates and decimals": lambda: objects(
        dt.date(2020, 1, 1), dt.datetime(2020, 1, 1, tzinfo=BERLIN), decimal.Decimal("1.10"), uuid.UUID(int=1)
    ),
    "objects, pandas scalars": lambda: objects(
        pd.Timestamp("2020", tz=BERLIN), pd.Timedelta(1, "ns"), np.int8(1), np.float32(0.1)
    ),
    "objects, only timestamps": lambda: pd.DataFrame({"x": pd.Series([pd.Timestamp("2020")] * 2, dtype=object)}),
    "objects, NaN with a payload": lambda: objects(float(NAN_PAYLOAD[0]), np.nan),
    "objects, no rows": lambda: pd.DataFrame({"x": np.array([], object)}, dtype=object),
    "objects, series": lambda: pd.Series(["a", None], dtype=object, name="s", index=["x", "x"]),
    # nullable, strings, Arrow
    "nullable ints": lambda: pd.DataFrame(
        {t: pd.array([1, None], dtype=t) for t in ("Int8", "Int16", "Int32", "Int64", "UInt8", "UInt64")}
    ),
    "nullable floats": lambda: pd.DataFrame({t: pd.array([0.1, None], dtype=t) for t in ("Float32", "Float64")}),
    "nullable NaN beside NA": lambda: frame(
        pd.arrays.FloatingArray(np.array([np.nan, 1.0, 0.0]), np.array([False, True, False]))
    ),
    "nullable booleans": lambda: frame(pd.array([True, None, False], dtype="boolean")),
    "nullable without NA": lambda: frame(pd.array([1, 2], dtype="Int64")),
    "default strings": lambda: frame(["a", None, "c"]),
    "Python strings, NA": lambda: string("python", pd.NA),
    "Python strings, NaN": lambda: string("python", np.nan),
    "Arrow strings, NA": lambda: string("pyarrow", pd.NA),
    "Arrow strings, NaN": lambda: string("pyarrow", np.nan),
    "lone surrogates": lambda: frame(pd.array(["\ud800", "\ud83d\ude00x", "é"], dtype=pd.StringDtype("python"))),
    "strings, all missing": lambda: frame(pd.array([None, None], dtype="string[python]")),
    "Arrow ints": lambda: arrow([1, None], "int32"),
    "Arrow decimal": lambda: arrow([None, 1], arrow_type(lambda pa: pa.decimal128(10, 2))),
    "Arrow lists": lambda: arrow([[1, 2], None, []], arrow_type(lambda pa: pa.list_(pa.int64()))),
    "Arrow structs": lambda: arrow([{"a": 1}, None], arrow_type(lambda pa: pa.struct([("a", pa.int8())]))),
    "Arrow dictionary": lambda: arrow(["a", None, "a"], arrow_type(lambda pa: pa.dictionary(pa.int32(), pa.string()))),
    "Arrow timestamps": lambda: arrow(
        [dt.datetime(2020, 1, 1, tzinfo=BERLIN), None], arrow_type(lambda pa: pa.timestamp("ms", "Europe/Berlin"))
    ),
    "Arrow dictionary, no rows": lambda: EXACT["Arrow dictionary"]()[:0],
    "Arrow without a chunk": lambda: frame(
        pd.arrays.ArrowExtensionArray(arrow_type(lambda pa: pa.chunked_array([], "i4")))
    ),
    "Arrow nulls": lambda: arrow([None, None], "null"),
    "Arrow in chunks, sliced": lambda: pd.concat([arrow([1, None], "int8"), arrow([3, 4], "int8")])[1:],
    # categoricals and intervals
    "categories unused and missing": lambda: frame(pd.Categorical(["b", None, "a"], categories=["c", "b", "a"])),
    "ordered categories": lambda: frame(pd.Categorical([1, 2, 1], categories=[2, 1], ordered=True)),
    "categories of intervals": lambda: frame(pd.cut(np.arange(5.0), 3)),
    "categories of times with freq": lambda: frame(
        pd.Categorical.from_codes([0, 1], categories=pd.date_range("2020", periods=3, freq="D", tz=BERLIN))
    ),
    "categories of a range": lambda: frame(pd.Categorical.from_codes([0, 1], categories=pd.RangeIndex(3))),
    "mixed categories": lambda: frame(pd.Categorical(["a", 1, 1.5, ("t", 1)], categories=["a", 1, 1.5, ("t", 1)])),
    "named categories": lambda: frame(pd.Categorical(["a"], categories=pd.Index(["a"], name="n"))),
    "no categories": lambda: frame(pd.Categorical([None, None], categories=[])),
    "300 categories": lambda: frame(pd.Categorical(np.arange(300))),
    "intervals": lambda: frame(pd.arrays.IntervalArray.from_tuples([(0, 1), None, (1, 3)], closed="left")),
    "intervals of ints": lambda: frame(pd.interval_range(0, 3)),
    "intervals of times": lambda: frame(pd.interval_range(pd.Timestamp("2020", tz=BERLIN), periods=2).array),
    # labels
    "duplicate columns": lambda: numbers(columns=["x", "x"]),
    "integer columns": lambda: numbers(columns=[3, 1]),
    "mixed columns": lambda: numbers(columns=pd.Index(["x", 1], dtype=object)),
    "True beside 1": lambda: numbers(columns=pd.Index([True, 1], dtype=object)),
    "None and NaN as columns": lambda: numbers(columns=pd.Index([None, np.nan], dtype=object)),
    "NaT and NA as columns": lambda: numbers(columns=pd.Index([pd.NaT, pd.NA], dtype=object)),
    "tuples as columns": lambda: numbers(
        columns=pd.Index([("a", 1), ("b", (2.0, None))], dtype=object, tupleize_cols=False)
    ),
    "numpy scalars as columns": lambda: numbers(
        columns=pd.Index([np.int8(1), np.datetime64("2020", "D")], dtype=object)
    ),
    "dates as columns": lambda: numbers(columns=pd.Index([dt.date(2020, 1, 1), dt.date(2020, 1, 2)], dtype=object)),
    "times as object columns": lambda: numbers(
        columns=pd.Index([pd.Timestamp("2020", tz=BERLIN), pd.Timedelta(1, "s")], dtype=object)
    ),
    "surrogates as columns": lambda: numbers(columns=pd.Index(["\ud83d\ude00", "\udc80"], dtype=object)),
    "times as columns": lambda: numbers(columns=pd.date_range("2020", periods=2, freq="D")),
    "categorical columns": lambda: numbers(columns=pd.CategoricalIndex(["b", "a"], ordered=True, name="c")),
    "MultiIndex both ways": lambda: numbers(
        index=pd.MultiIndex.from_product([["a", "b"], [1, 2]], names=["k", None]),
        columns=pd.MultiIndex.from_tuples([("x", 1), ("x", 2)], names=["k", "k"]),
    ),
    "MultiIndex with missing": lambda: indexed(pd.MultiIndex.from_arrays([["a", None], [np.nan, 1.0]])),
    "MultiIndex, unused levels": lambda: numbers(index=pd.MultiIndex.from_product([["a", "b"], [1, 2]]))[1:3],
    "MultiIndex of zoned times": lambda: indexed(
        pd.MultiIndex.from_product([pd.date_range("2020", periods=2, freq="D", tz=BERLIN), pd.Categorical(["a", "b"])])
    ),
    "MultiIndex, empty": lambda: indexed(pd.MultiIndex.from_arrays([[], []], names=["a", "b"])),
    "tuple as a name": lambda: with_(numbers(), index=pd.Index([4, 3, 2, 1], name=("a", 1))),
    # indexes
    "range with a step": lambda: indexed(pd.RangeIndex(10, 2, -2, name="r")),
    "small ints": lambda: indexed(pd.Index([3, 1], dtype="i1", name=7)),
    "float index": lambda: indexed(pd.Index([0.5, np.nan, -0.0])),
    "bool index": lambda: indexed(pd.Index([True, False])),
    "string index": lambda: indexed(pd.Index(["a", None, "a"])),
    "object index": lambda: indexed(pd.Index(["a", "b"], dtype=object)),
    "nullable index": lambda: indexed(pd.Index([1, None], dtype="Int64")),
    "freq": lambda: indexed(pd.date_range("2020", periods=3, freq="2h")),
    "freq of month ends, zoned": lambda: indexed(pd.date_range("2020", periods=3, freq="ME", tz=BERLIN)),
    "freq of business days": lambda: indexed(pd.bdate_range("2020", periods=3)),
    "freq of timedeltas": lambda: indexed(pd.timedelta_range("1h", periods=3, freq="30min")),
    "times without freq": lambda: indexed(pd.DatetimeIndex(["2020", "1999", None])),
    "period index": lambda: indexed(pd.period_range("2020", periods=3, freq="D", name="p")),
    "interval index": lambda: indexed(pd.interval_range(0, 3, closed="both")),
    "categorical index": lambda: indexed(pd.CategoricalIndex(["a", "b", "a"], categories=["b", "a", "z"])),
    # shapes and flags
    "empty": pd.DataFrame,
    "rows without columns": lambda: pd.DataFrame(index=pd.RangeIndex(10**9)),
    "columns without rows": lambda: pd.DataFrame({"a": np.array([], "i4"), "b": pd.array([], dtype="Int8")}),
    "no rows of every kind": lambda: EXACT["MultiIndex of zoned times"]()[:0].assign(
        c=pd.Categorical([]), s=pd.array([], dtype="str"), t=pd.DatetimeIndex([], tz=BERLIN)
    ),
    "attrs": lambda: with_(numbers(), attrs={"unit": "m", "n": [1, 1.5, None, True, {"t": (1, 2)}], 3: np.int8(1)}),
    "unique labels": lambda: flagged(numbers()),
    # series
    "series": lambda: pd.Series([1.5, np.nan], name="s"),
    "series without a name": lambda: pd.Series(["a", None], index=["x", "y"]),
    "series named by numpy": lambda: numbers(columns=np.array([3, 4])).iloc[:, 0],
    "series, strided": lambda: pd.DataFrame(np.arange(12).reshape(4, 3))[1],
    "series with attrs and flags": lambda: flagged(with_(pd.Series([1], index=["a"]), attrs={"a": 1})),
    "series of categories": lambda: pd.Series(pd.Categorical(["a", "b"]), name=("a", 1)),
    "series, empty": lambda: pd.Series([], dtype="M8[ms]"),
    # indexes alone, as the partitions of `ddf.index`
    "index of ints": lambda: pd.Index([3, 1], dtype="i1", name=7),
    "index of a range": lambda: pd.RangeIndex(10, 2, -2, name="r"),
    "index of strings": lambda: pd.Index(["a", None]),
    "index of objects": lambda: pd.Index(["a", None, ("t", 1)], dtype=object, tupleize_cols=False),
    "index of times": lambda: pd.date_range("2020", periods=3, freq="2h", tz=BERLIN, name="t"),
    "index of timedeltas": lambda: pd.timedelta_range("1h", periods=3, freq="30min"),
    "index of periods": lambda: pd.period_range("2020", periods=3, freq="D"),
    "index of intervals": lambda: pd.interval_range(0, 3, closed="both"),
    "index of categories": lambda: pd.CategoricalIndex(["a", "b"], categories=["b", "a", "z"], ordered=True),
    "index of several levels": lambda: pd.MultiIndex.from_product([["a", "b"], [1, 2]], names=["k", None]),
    "index of nothing": lambda: pd.Index([], dtype="f4"),
}


class Frame(pd.DataFrame):
    pass


class Text(str):
    __slots__ = ()


DECLINED = {
    "lists": (lambda: frame([[1], [2]]), r"column 'x' has dtype object and in row 0 a builtins.list"),
    "sets": (lambda: frame(["a", {1}]), r"column 'x' has dtype object and in row 1 a builtins.set"),
    "dicts": (lambda: frame([{"a": 1}, None]), r"column 'x' has dtype object and in row 0 a builtins.dict"),
    "subclass of str": (lambda: objects(Text("a")), r"column 'x' .* row 0 a .*Text"),
    "object series": (lambda: pd.Series([1, object], name="s"), r"series 's' has dtype object and in row 1 a builtins"),
    "sparse": (lambda: frame(pd.arrays.SparseArray([0, 1])), r"column 'x' has dtype Sparse"),
    "label of a strange type": (lambda: numbers(columns=pd.Index(["a", object], dtype=object)), r"the columns .*label"),
    "label of a subclass": (lambda: numbers(columns=pd.Index(["a", Text("b")], dtype=object)), r"the columns .*Text"),
    "label NaN with a payload": (
        lambda: numbers(columns=pd.Index(["a", float(NAN_PAYLOAD[0])], dtype=object)),
        r"the columns .*NaN with a payload",
    ),
    "huge int as a label": (
        lambda: numbers(columns=pd.Index(["a", 2**64], dtype=object)),
        r"the columns .*label",
    ),
    "strange name": (lambda: with_(pd.Series([1]), name=frozenset([1])), r"the name of the series .*frozenset"),
    "attrs with an array": (lambda: with_(numbers(), attrs={"a": np.ones(2)}), r"attrs .*ndarray"),
    "attrs in a circle": (lambda: with_(pd.Series([1]), attrs=circle()), r"RecursionError"),
    "custom freq": (
        lambda: indexed(pd.date_range("2020", periods=3, freq=pd.offsets.CDay(holidays=["2020-01-03"]))),
        r"the index has the frequency",
    ),
    "freq of a DateOffset": (
        lambda: indexed(pd.date_range("2020", periods=3, freq=pd.DateOffset(months=1, days=1))),
        r"the index has the frequency",
    ),
    "time zone of dateutil": (
        lambda: frame(pd.to_datetime(["2020"]).tz_localize(dateutil.tz.tzoffset("X", 3600))),
        r"time zone",
    ),
    "named fixed offset": (
        lambda: frame(pd.to_datetime(["2020"]).tz_localize(dt.timezone(dt.timedelta(hours=1), "X"))),
        r"column 'x' has the time zone",
    ),
    "Arrow extension type": (
        lambda: frame(pd.arrays.ArrowExtensionArray(arrow_type(lambda pa: pa.array(["{}"], pa.json_(pa.string()))))),
        r"column 'x' has the Arrow type",
    ),
    "subclass of DataFrame": (lambda: Frame({"x": [1]}), r"no codec for .*Frame"),
}


VERSION = tuple(map(int, pd.__version__.split(".")[:2]))
"""Of pandas; what an older one cannot make is left out of the tables."""

if VERSION < (2, 3):
    del EXACT["Python strings, NaN"], EXACT["Arrow strings, NaN"]
    del DECLINED["Arrow extension type"]  # comes with the oldest pyarrow too, which has none of its own


def circle():
    attrs = {}
    attrs["again"] = attrs
    return attrs
