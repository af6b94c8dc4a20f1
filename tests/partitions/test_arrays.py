from __future__ import annotations

import sys

import ml_dtypes
import numpy as np
import pytest

from dask_resilient import partitions
from dask_resilient.core.outcome import Declined
from dask_resilient.errors import Foreign, Unreachable
from dask_resilient.partitions import buffers
from dask_resilient.partitions.mltypes import ML_DTYPES
from dask_resilient.testing.codecs import CodecContract, payload_of, round_trip, staged

ALIGNED = np.dtype([("a", "<i2"), ("b", "f8")], align=True)
BACKWARDS = np.dtype({"names": ["a", "b"], "formats": ["i4", "i4"], "offsets": [8, 0], "itemsize": 16})
OVERLAPPING = np.dtype({"names": ["a", "b"], "formats": ["u4", "u2"], "offsets": [0, 2]})
NESTED = np.dtype([("p", ALIGNED, (2, 3)), (("title", "t"), "M8[25s]"), ("s", "S3"), ("raw", "V5")])

EXACT = {
    "NaN payloads and -0.0": lambda: np.array([0x7FF8_0000_0000_1234, 0x8000_0000_0000_0000], "u8").view("f8"),
    "0-d": lambda: np.array(1.5),
    "zero length": lambda: np.zeros((0, 3), "f4"),
    "zero length, F": lambda: np.zeros((3, 0, 2), "i8", order="F"),
    "one item": lambda: np.ones((1, 1, 1)),
    "F": lambda: np.arange(6).reshape(2, 3, order="F"),
    "axes exchanged": lambda: np.arange(24).reshape(2, 3, 4).transpose(1, 2, 0),
    "strided": lambda: np.arange(24).reshape(4, 6)[::2, ::-3],
    "strided, F": lambda: np.arange(24).reshape(4, 6)[::2, ::3].T,
    "unaligned": lambda: np.frombuffer(bytearray(17), "u1")[1:].view("f8"),
    "read-only": lambda: np.frombuffer(b"abcdefgh", "i4"),
    "repeated": lambda: np.broadcast_to(np.arange(3.0), (10**6, 3)),
    "repeated, 0-d": lambda: np.broadcast_to(np.ones(()), (2, 3)),
    "big-endian": lambda: np.array([1, 2], ">i8"),
    "datetimes": lambda: np.array(["2020-01-01T00:00:00", "NaT"], "M8[25s]"),
    "datetimes without a unit": lambda: np.array(["NaT"], "M8"),
    "timedeltas without a unit": lambda: np.array([5, "NaT"], "m8"),
    "long double": lambda: np.array([0.1, np.inf], np.longdouble),
    "complex long double": lambda: np.array([1j], np.clongdouble),
    "long long": lambda: np.array([1], np.longlong),
    "bytes": lambda: np.array([b"a", b"a\0b"], "S4"),
    "text": lambda: np.array(["a", "\ud800", "日本"], "U4"),
    "text, big-endian": lambda: np.array(["ab"], ">U4"),
    "void": lambda: np.array([b"abc"], "V3"),
    "no bytes per item": lambda: np.ndarray((3,), "S0"),
    "no fields": lambda: np.zeros(3, []),
    "aligned fields": lambda: np.ones(3, ALIGNED),
    "fields in any order": lambda: np.ones(3, BACKWARDS),
    "overlapping fields": lambda: np.ones(3, OVERLAPPING),
    "nested fields": lambda: np.zeros((2, 2), NESTED),
    "bfloat16": lambda: np.array([1.5, np.nan, -0.0], ml_dtypes.bfloat16),
    "float8, F": lambda: np.ones((2, 3), ml_dtypes.float8_e4m3fn, order="F"),
    "float8 that calls itself f1": lambda: np.arange(5).astype(ml_dtypes.float8_e5m2),
    "int4": lambda: np.array([-8, 7], ml_dtypes.int4),
    "a field of bfloat16": lambda: np.ones(2, [("a", ml_dtypes.bfloat16, (2,)), ("b", "i1")]),
    "some fields": lambda: np.ones(3, NESTED)[["p", "s"]],
}


def overlapping():
    return np.lib.stride_tricks.sliding_window_view(np.arange(9), 3)


DECLINED = {
    "objects": (lambda: np.array([1, None]), "has dtype object"),
    "a field of objects": (lambda: np.zeros(1, [("a", "i4"), ("b", "O")]), r"has dtype \["),
    "strings of variable length": (lambda: np.array(["a"], np.dtypes.StringDType()), "has dtype StringDType"),
    "metadata": (lambda: np.zeros(1, np.dtype("f4", metadata={"unit": "m"})), "metadata .*unit"),
    "metadata of a field": (lambda: np.zeros(1, [("a", np.dtype("f4", metadata={"unit": "m"}))]), "metadata"),
    "records": (lambda: np.zeros(1, np.dtype((np.record, [("a", "i4")]))), "has dtype"),
    "sliding window": (overlapping, "overlaps itself"),
    "memmap": (lambda: np.zeros(3).view(np.memmap), "no codec for .*memmap"),
    "big-endian bfloat16": (lambda: np.zeros(2, np.dtype(ml_dtypes.bfloat16).newbyteorder(">")), "dtype"),
    "matrix": (lambda: np.zeros((1, 1)).view(np.matrix), "no codec for .*matrix"),
    "recarray": (lambda: np.rec.array([(1, 2.0)]), "no codec for .*recarray"),
    "title that is no string": (lambda: np.zeros(1, [((1, "a"), "i4")]), "titles"),
}


def assert_same_array(restored, original):
    assert type(restored) is np.ndarray
    assert restored.dtype == original.dtype
    assert repr(restored.dtype) == repr(original.dtype)
    assert restored.dtype.type is original.dtype.type
    assert restored.dtype.isalignedstruct == original.dtype.isalignedstruct
    assert restored.shape == original.shape
    assert np.ascontiguousarray(restored).tobytes() == np.ascontiguousarray(original).tobytes()
    assert restored.flags.aligned
    for order in ("C", "F"):
        name = f"{order.lower()}_contiguous"
        assert getattr(restored.flags, name) or not getattr(original.flags, name)


class TestArrays(CodecContract):
    codec = "numpy.ndarray"

    @pytest.fixture(params=list(EXACT))
    def value(self, request):
        return EXACT[request.param]()

    def assert_same(self, restored, original):
        assert_same_array(restored, original)


@pytest.mark.parametrize("name", DECLINED)
def test_what_cannot_be_exact_is_declined(name):
    """An array without an exact form is declined with the reason."""
    make, reason = DECLINED[name]
    result = partitions.stage(make())
    assert isinstance(result, Declined)
    with pytest.raises(AssertionError, match=reason):
        staged(make())


@pytest.mark.skipif(sys.byteorder == "big", reason="native numbers are stored as bytes there")
@pytest.mark.parametrize(
    "dtype",
    [
        "bool",
        "int8",
        "int16",
        "int32",
        "int64",
        "uint8",
        "uint16",
        "uint32",
        "uint64",
        "float16",
        "float32",
        "float64",
        "complex64",
        "complex128",
    ],
)
def test_numbers_in_c_order_keep_their_zarr_type(dtype):
    """An array of numbers in C order is stored under its own data type and shape."""
    result = staged(np.ones((4, 3), dtype))
    assert (result.data_type, result.shape, result.chunk_shape) == (dtype, (4, 3), (4, 3))


@pytest.mark.parametrize("order", ["C", "F"])
def test_contiguous_arrays_are_staged_without_a_copy(order):
    """What is staged is the memory of the array: a later change shows in the digest."""
    array = np.zeros((300, 400), order=order)
    result = staged(array)
    array[3, 4] = 1
    assert partitions.digest(result.chunks) != result.crc32c


def test_strided_arrays_are_copied():
    """What is staged of a strided array is a copy, which a later change does not reach."""
    array = np.zeros((300, 400))
    result = staged(array[::2])
    array[:] = 1
    assert partitions.digest(result.chunks) == result.crc32c


@pytest.mark.parametrize(
    ("shape", "rows"),
    [((5, 10), [5]), ((13, 10), [7, 6]), ((25, 10), [9, 9, 7]), ((3, 200), [1, 1, 1]), ((26, 10), [9, 9, 8])],
)
def test_large_arrays_are_cut_evenly(shape, rows, monkeypatch):
    """Above the size of a chunk rows are shared out evenly, and only the last chunk is filled up with zero bytes."""
    monkeypatch.setattr(buffers, "CHUNK_NBYTES", 800)
    array = np.arange(np.prod(shape), dtype="f8").reshape(shape)
    result = staged(array)
    assert result.chunk_shape == (rows[0], shape[1])
    raw = [b"".join(chunk) for chunk in result.chunks]
    starts = np.cumsum([0, *rows])
    for chunk, start, stop in zip(raw, starts, starts[1:], strict=False):
        assert chunk == array[start:stop].tobytes().ljust(rows[0] * shape[1] * 8, b"\0")
    assert len(raw) == len(rows)
    assert_same_array(round_trip(array), array)


def test_restored_array_is_a_view_of_the_payload():
    """The payload is not copied when it is restored."""
    result = staged(np.arange(10))
    payload = payload_of(result)
    assert np.shares_memory(partitions.restore(result.codec, result.schema, payload), payload)


def test_long_double_of_another_machine_is_unreachable():
    """Bytes of a long double that has another format here are never read as one."""
    result = staged(np.ones(2, np.longdouble))
    schema = {**result.schema, "dtype": {**result.schema["dtype"], "mantissa": 112}}
    with pytest.raises(Unreachable, match="112"):
        partitions.restore(result.codec, schema, payload_of(result))


@pytest.mark.parametrize("name", sorted(ML_DTYPES))
def test_every_type_of_ml_dtypes_in_the_table_comes_back(name):
    """Each name of the table that this release has is stored as flat bytes and comes back; others are unreachable."""
    kind = getattr(ml_dtypes, name, None)
    if kind is None:
        with pytest.raises(Unreachable, match="update ml_dtypes"):
            partitions.restore(
                "numpy.ndarray", {**staged(np.ones(2)).schema, "dtype": {"ml_dtypes": name}}, np.ones(16, "u1")
            )
        return
    array = np.zeros(3, np.uint8).astype(kind)
    assert staged(array).data_type == "uint8"
    assert_same_array(round_trip(array), array)


def test_missing_ml_dtypes_is_unreachable(monkeypatch):
    """Where ml_dtypes is not installed, its arrays are not lost: another worker may have it."""
    result = staged(np.ones(2, ml_dtypes.bfloat16))
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(Unreachable, match="'bfloat16' is missing here"):
        partitions.restore(result.codec, result.schema, payload_of(result))


@pytest.mark.parametrize("name", ["finfo", "os", "bfloat", "__name__", 5, None, ["bfloat16"]])
def test_no_other_name_is_looked_up_in_ml_dtypes(name, monkeypatch):
    """A name out of the table is foreign before anything is imported."""
    schema = {**staged(np.ones(2)).schema, "dtype": {"ml_dtypes": name}}
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(Foreign):
        partitions.restore("numpy.ndarray", schema, np.ones(16, np.uint8))


@pytest.mark.parametrize("dtype", ["O", "f4,f4", "float64", "T", {"names": ["a"], "formats": ["O"]}, 7])
def test_dtypes_that_are_never_written_are_foreign(dtype):
    """A schema cannot bring in objects, nor say a dtype in other words."""
    result = staged(np.ones(2))
    with pytest.raises(Foreign):
        partitions.restore(result.codec, {**result.schema, "dtype": dtype}, payload_of(result))


def test_padding_of_records_is_stored_as_it_is():
    """Where they have to be copied, the bytes between their fields too: never what the memory held before."""
    dtype = np.dtype({"names": ["a", "b"], "formats": ["u1", "u4"], "offsets": [0, 4]})
    raw = np.frombuffer(bytes(range(256)), np.uint8)
    kept = partitions.stage(raw.view(dtype)[::2])
    stored = b"".join(bytes(buffer) for chunk in kept.chunks for buffer in chunk)
    assert stored == raw.reshape(-1, 8)[::2].tobytes()
