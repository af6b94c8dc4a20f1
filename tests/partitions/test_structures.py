"""Python's own values and what stands in them: exactly, or refused with the place."""

from __future__ import annotations

import collections
import datetime as dt
import enum
import json
import struct
import uuid
import zoneinfo
from decimal import Decimal

import ml_dtypes
import numpy as np
import pandas as pd
import pytest
import pytz
import scipy.sparse

from dask_resilient import partitions
from dask_resilient.core.outcome import Declined
from dask_resilient.errors import Foreign, Unreachable
from dask_resilient.partitions import structures
from dask_resilient.partitions.atoms import KINDS
from dask_resilient.testing.codecs import CodecContract, payload_of, round_trip, staged
from dask_resilient.testing.same import assert_same

ODD_NAN = struct.unpack("<d", bytes.fromhex("010000000000f4ff"))[0]
BERLIN = zoneinfo.ZoneInfo("Europe/Berlin")

EXACT = {
    "nothing": lambda: None,
    "truth": lambda: [True, 1, 1.0],
    "whole numbers": lambda: [0, -(2**63), 2**64, -(2**64), 3**9000],
    "numbers": lambda: [0.1, -0.0, 5e-324, 1e308, float("inf"), float("-inf"), float("nan"), ODD_NAN],
    "complex": lambda: complex(-0.0, ODD_NAN),
    "text": lambda: ["", "\0", "\n", "日本", "\ud800", "\ud83d\ude00", "x" * 5000, "\udc00" * 5000],
    "bytes": lambda: [b"", b"\xff", b"x" * 5000],
    "dates": lambda: [dt.date(1, 1, 1), dt.datetime(2020, 10, 25, 2, 30, fold=1, tzinfo=BERLIN), dt.time(1, fold=1)],
    "zones": lambda: [
        dt.datetime(2020, 1, 1, tzinfo=zone) for zone in (dt.UTC, dt.timezone(dt.timedelta(hours=3)), pytz.UTC)
    ],
    "durations": lambda: [dt.timedelta.min, dt.timedelta.max],
    "decimals": lambda: [Decimal("-0E+3"), Decimal("sNaN12"), Decimal("1E-999999"), Decimal("Infinity")],
    "ids": lambda: [uuid.UUID(int=5), uuid.UUID(int=2**128 - 1, is_safe=uuid.SafeUUID.unsafe)],
    "NumPy's scalars": lambda: [
        np.float32(0.1),
        np.int8(-1),
        np.bool(True),
        np.longlong(5),
        np.complex64(1j),
        np.longdouble(1) / 3,
    ],
    "NumPy's times": lambda: [np.datetime64("2020", "Y"), np.timedelta64("NaT", "25s"), np.datetime64("NaT")],
    "NumPy's text": lambda: [np.str_("a\0"), np.bytes_(b"a\0"), np.str_("\ud800")],
    "records": lambda: [np.zeros(1, [("a", "i4"), ("b", "U3")])[0], np.void(b"abc")],
    "ml_dtypes": lambda: [ml_dtypes.bfloat16(1.5), ml_dtypes.int4(-8)],
    "pandas": lambda: [pd.Timestamp(5, tz="Europe/Berlin"), pd.Timedelta(1, unit="s"), pd.NaT, pd.NA],
    "order of a dict": lambda: {"b": 1, "a": 2},
    "keys": lambda: {1: "a", None: 2, (1, "x"): 3, 2.5: 4, b"k": 5, "\ud800": 6, float("nan"): 7},
    "keys like ours": lambda: [{"$part": 0}, {"$dict": []}, {"$": 1}, {"$part": 0, "x": 1}],
    "tuples": lambda: ((), (1,), ([], {})),
    "all records of an array": lambda: list(np.zeros(3, [("a", "i4")])),
    "same tuple twice": lambda: [(1, 2)] * 3,
    "array and number": lambda: (np.arange(6).reshape(2, 3, order="F"), 1.5, "x"),
    "arrays by name": lambda: {"a": np.arange(3), "b": np.ma.array([1, 2], mask=[0, 1]), "c": [np.ones((0, 3))]},
    "sparse": lambda: (scipy.sparse.csr_array(np.eye(3)), np.ones(2)),
    "0-d array": lambda: [np.array(5), np.int64(5)],
    "many records": lambda: [{"id": i, "name": f"n{i}", "x": (i, None)} for i in range(2500)],
    "arrays in a list": lambda: [np.full(3, i) for i in range(60)],
}


class TestStructures(CodecContract):
    codec = "python"

    @pytest.fixture(params=list(EXACT))
    def value(self, request):
        return EXACT[request.param]()

    def assert_same(self, restored, original):
        assert_same(restored, original)


def test_tables_stand_in_structures():
    """A tuple of a table and its label, and tables that share an index, come back."""
    frame = pd.DataFrame({"x": [1.0, 2.0], "y": ["a", None]}, index=["p", "q"])
    restored, column, label = round_trip((frame, frame["x"], "mean"))
    pd.testing.assert_frame_equal(restored, frame, check_exact=True)
    pd.testing.assert_series_equal(column, frame["x"], check_exact=True)
    assert label == "mean"


class Colour(enum.IntEnum):
    RED = 1


class Text(str):
    __slots__ = ()


Point = collections.namedtuple("Point", "x y")


def twice(value):
    return [value, value]


def cycle():
    value = []
    value.append({"again": value})
    return value


def nested(depth):
    value = 5
    for _ in range(depth):
        value = (value,)
    return value


ARRAY = np.arange(100)

DECLINED = {
    "OrderedDict": (lambda: collections.OrderedDict(a=1), "no codec for collections.OrderedDict"),
    "defaultdict inside": (
        lambda: [1, {"k": collections.defaultdict(list)}],
        r"at \[1\]\['k'\]: .* collections.defaultdict",
    ),
    "namedtuple": (lambda: [Point(1, 2)], r"at \[0\]: .*Point, which has no codec"),
    "IntEnum": (lambda: {"c": Colour.RED}, r"at \['c'\]: .*Colour"),
    "text of a subclass": (lambda: {"c": Text("a")}, r"at \['c'\]: .*Text"),
    "key of a subclass": (lambda: {Text("a"): 1}, r"at \[0\]: .*Text"),
    "set": (lambda: [{1}], "builtins.set"),
    "datetime of a subclass": (lambda: [type("D", (dt.datetime,), {})(2020, 1, 1)], r"at \[0\]: .*D, which"),
    "zone": (lambda: [dt.datetime(2020, 1, 1, tzinfo=dt.timezone(dt.timedelta(0), "mine"))], "time zone .*no key"),
    "localised pytz": (
        lambda: pytz.timezone("Europe/Berlin").localize(dt.datetime(2020, 1, 1)),  # noqa: DTZ001
        "no key to find",
    ),
    "object array inside": (lambda: ({"x": np.array([None])},), r"at \[0\]\['x'\]: the array has dtype object"),
    "list twice": (lambda: twice([1]), r"at \[1\]: the value is a list that is in there twice"),
    "dict twice": (lambda: twice({}), r"at \[1\]: the value is a dict that is in there twice"),
    "array twice": (lambda: twice(ARRAY), r"at \[1\]: the value is a ndarray that is in there twice"),
    "list in one tuple twice": (lambda: twice(([],)), r"at \[1\]\[0\]: the value is a list"),
    "views": (lambda: (ARRAY[:60], ARRAY[50:]), "two parts whose memory overlaps"),
    "transposed": (lambda: {"a": ARRAY.reshape(10, 10), "b": [ARRAY.reshape(10, 10).T]}, "memory overlaps"),
    "strided views": (lambda: (ARRAY[::2], ARRAY[::-3]), "memory overlaps"),
    "array and its mask": (
        lambda: ((mask := np.eye(2, dtype=bool)), np.ma.array(np.ones((2, 2)), mask=mask)),
        "overlaps",
    ),
    "sparse and its data": (lambda: ((m := scipy.sparse.csr_array(np.eye(3))), m.data), "memory overlaps"),
    "frame and its array": (
        lambda: ((a := np.arange(3.0)), pd.DataFrame({"x": a}, copy=False)),
        r"overlaps \(a ndarray and a DataFrame\); copy one",
    ),
    "array and its record": (lambda: ((a := np.zeros(3, [("a", "i4")])), a[1]), r"overlaps \(a ndarray and a void\)"),
    "record twice": (lambda: ((a := np.zeros(3, [("a", "i4")]))[1], a[1]), "memory overlaps"),
    "cycle": (cycle, r"at \[0\]\['again'\]: the value is a list that is in there twice, or holds itself"),
    "deep": (lambda: nested(200), "nested more than 100 deep"),
    "very deep": (lambda: nested(100_000), "nested more than 100 deep"),
    "many items": (lambda: [0] * 2_000_001, "more than 2,000,000 items in all"),
    "many items in all": (lambda: [[i] * 1000 for i in range(2000)], "more than 2,000,000 items in all"),
    "many arrays": (lambda: [np.ones(1) for _ in range(1001)], r"at \[1000\]: .*more than 1,000 arrays"),
}


@pytest.mark.parametrize("name", DECLINED)
def test_what_cannot_be_exact_is_declined(name):
    """A value without an exact form is declined with the reason and the place in it."""
    make, reason = DECLINED[name]
    value = make()
    assert isinstance(partitions.stage(value), Declined)
    with pytest.raises(AssertionError, match=reason):
        staged(value)


def test_long_places_are_shortened():
    """A reason stays readable, however deep or long the place is."""
    reason = partitions.stage([{"k" * 10_000: nested(90) and [[[[{1}]]]]}]).reason
    assert len(reason) < 500


def test_disjoint_views_of_one_array_are_stored():
    """Two parts of one array that do not overlap are two values."""
    assert_same(round_trip((ARRAY[:50].copy(), ARRAY[50:])), (ARRAY[:50], ARRAY[50:]))
    assert_same(round_trip((ARRAY[:50], ARRAY[50:])), (ARRAY[:50], ARRAY[50:]))


def test_every_registered_type_is_encoded():
    """The table of single values names only types that the codec takes, or that another library brings."""
    for module, name in KINDS:
        assert partitions.table.codec_of(type(name, (), {"__module__": module, "__qualname__": name})) == "python"


def test_text_beyond_the_limit_is_declined(monkeypatch):
    """Much text in small pieces is declined; in long pieces it lies beside the tree and counts no more than bytes."""
    monkeypatch.setattr(structures, "MAX_TEXT", 10_000)
    assert "more than 10,000 bytes of text" in partitions.stage(["x" * 4000] * 3).reason
    assert "bytes of text" in partitions.stage([1.2345678901234567] * 1000).reason
    assert_same(round_trip(["x" * 5000 for _ in range(10)]), ["x" * 5000] * 10)


def test_parts_lie_aligned_in_one_payload():
    """Arrays are staged without a copy, at multiples of 64 bytes, and come back as views; a small one as a copy."""
    big, small = np.arange(10_000.0), np.arange(3)
    result = staged({"big": big, "small": small})
    assert all(part["at"] % 64 == 0 for part in result.schema["parts"])
    payload = payload_of(result)
    restored = partitions.restore(result.codec, result.schema, payload)
    assert np.shares_memory(restored["big"], payload)
    assert not np.shares_memory(restored["small"], payload)
    big[5] = -1
    assert partitions.digest(result.chunks) != result.crc32c


def broken(change, value=(ARRAY, "x")):
    result = staged(value)
    schema = json.loads(json.dumps(result.schema))
    payload = payload_of(result)
    at, nbytes = schema["tree"]["at"], schema["tree"]["nbytes"]
    text = change(schema, payload[at : at + nbytes].tobytes())
    if text is not None:
        payload = np.append(payload[:at], np.frombuffer(text, np.uint8))
        schema["tree"]["nbytes"] = len(text)
    return partitions.restore(result.codec, schema, payload)


BROKEN = {
    "part twice": lambda schema, text: b'[{"$part": 0}, {"$part": 0}]',
    "part missing": lambda schema, text: b"[]",
    "part beyond": lambda schema, text: b'[{"$part": 0}, {"$part": 1}]',
    "negative part": lambda schema, text: b'{"$part": -1}',
    "unknown kind": lambda schema, text: b'[{"$part": 0}, {"$import": "this"}]',
    "NaN": lambda schema, text: b'[{"$part": 0}, NaN]',
    "key twice": lambda schema, text: b'[{"$part": 0}, {"$dict": [[1, 1], [2, 3]]}]',
    "key of a list": lambda schema, text: b'[{"$part": 0}, {"$dict": [[[]], [2]]}]',
    "deep": lambda schema, text: b"[" * 10**6,
    "long number": lambda schema, text: b'[{"$part": 0}, ' + b"9" * 10**6 + b"]",
    "no JSON": lambda schema, text: b"\xff\xfe",
    "two values": lambda schema, text: b'{"$part": 0}\n1',
    "structure in a structure": lambda schema, text: schema["parts"][0].update(codec="python"),
    "lines": lambda schema, text: schema.update(batched=True),
    "empty lines": lambda schema, text: schema.update(batched=True) or b"\n" * 10**6,
    "buffer of a part": lambda schema, text: b'[{"$part": 0}, {"$raw": {"at": 0, "nbytes": 8}}]',
}


@pytest.mark.parametrize("name", BROKEN)
def test_tree_that_was_never_written_is_foreign(name):
    """Whatever stands in the tree: it is refused, and no part is given out twice or left over."""
    with pytest.raises(Foreign):
        broken(BROKEN[name])


def test_unknown_codec_of_a_part_is_unreachable():
    """A part of a codec that is not registered here may be restored elsewhere."""
    with pytest.raises(Unreachable, match="not registered here"):
        broken(lambda schema, text: schema["parts"][0].update(codec="somebody.else"))


def test_device_parts_are_counted():
    """Room is asked for what comes back on the device: all of a device array, the device parts of a structure."""
    assert partitions.device_nbytes("cupy.ndarray", {}, 80) == 80
    assert partitions.device_nbytes("numpy.ndarray", {}, 80) == 0
    parts = [{"codec": codec, "nbytes": 8} for codec in ("cupy.ndarray", "numpy.ndarray", "numba.cuda")]
    assert partitions.device_nbytes("python", {"parts": parts}, 80) == 16
    assert partitions.device_nbytes("python", {"parts": parts}, 10) == 10


@pytest.mark.parametrize(
    "parts", [None, 5, [None], [{"codec": [], "nbytes": 5}], [{"codec": "numba.cuda", "nbytes": "5"}]]
)
def test_device_parts_of_a_damaged_schema_count_nothing(parts):
    """A damaged schema asks for no room."""
    assert partitions.device_nbytes("python", {"parts": parts}, 80) == 0


def test_device_arrays_stand_in_structures(cuda):
    """A device array in a tuple is copied to the host and comes back on the device; two views of one are refused."""
    array = cuda.to_device(np.arange(1000.0))
    restored, label = round_trip((array, "x"))
    assert type(restored) is type(array)
    assert restored.copy_to_host().tolist() == list(range(1000))
    assert label == "x"
    assert "memory overlaps" in partitions.stage((array[:600], array[500:])).reason
    result = staged([array])
    assert partitions.device_nbytes(result.codec, result.schema, result.nbytes) == 8000
