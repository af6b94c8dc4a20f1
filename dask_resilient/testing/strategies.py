"""Hypothesis strategies for the values that partitions are made of: every type that comes with a codec, but for tables.

Numbers are drawn as bits, so that NaN payloads, ``-0.0`` and subnormal ones are among them.
"""

from __future__ import annotations

import datetime as dt
import uuid
import zoneinfo
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from hypothesis.strategies import DrawFn, SearchStrategy

__all__ = ["arrays", "dtypes", "filled", "masked_arrays", "records", "scalars", "structures"]


def dtypes(*, fields: bool = True) -> SearchStrategy[np.dtype[Any]]:
    """Give dtypes of all kinds that are stored: numbers in both byte orders, times, text, records, those of ml_dtypes.

    Parameters
    ----------
    fields
        Whether dtypes with fields are among them.
    """
    import ml_dtypes
    from hypothesis import strategies as st
    from hypothesis.extra import numpy as hnp

    more = [np.dtype(each) for each in ("g", "G", "q", "Q", "V1", "V7", "S0", "M8", "m8", ">g")]
    small = [np.dtype(getattr(ml_dtypes, each)) for each in ("bfloat16", "float8_e4m3fn", "float8_e5m2", "int4")]
    plain = hnp.scalar_dtypes() | hnp.datetime64_dtypes() | st.sampled_from([*more, *small])
    if not fields:
        return plain
    nested = hnp.nested_dtypes(max_leaves=4, max_itemsize=64)
    return plain | nested | st.builds(_aligned, st.lists(plain, min_size=1, max_size=3))


def _aligned(formats: list[np.dtype[Any]]) -> np.dtype[Any]:
    return np.dtype([(f"f{i}", each) for i, each in enumerate(formats)], align=True)


def filled(draw: DrawFn, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Any:
    """Give an array of any bits that its dtype allows."""
    from hypothesis import strategies as st

    array = np.zeros(shape, dtype)
    dtype = array.dtype  # without the shape that it may have itself
    if dtype.names is not None:
        for name in dtype.names:
            part = array[name]
            part[...] = filled(draw, dtype[name].base, part.shape)
        return array
    if not array.nbytes:
        return array
    raw = np.frombuffer(draw(st.binary(min_size=array.nbytes, max_size=array.nbytes)), np.uint8).copy()
    if dtype.char in "gG":  # most bits are no number
        array[...] = raw[: array.size].reshape(array.shape)
        return array
    if dtype.kind == "b":
        raw &= 1
    elif dtype.kind == "U":
        order = ">u4" if dtype.byteorder == ">" else "<u4"
        raw = (raw.view(order) % 0x110000).astype(order).view(np.uint8)
    return raw.view(dtype).reshape(array.shape)


def arrays(*, fields: bool = True, repeated: bool = True) -> SearchStrategy[Any]:
    """Give arrays of every dtype, with up to four axes in any order in memory, with steps and repetitions.

    Parameters
    ----------
    fields
        Whether dtypes with fields are among them.
    repeated
        Whether arrays that repeat their items along an axis are among them.
    """
    from hypothesis import strategies as st
    from hypothesis.extra import numpy as hnp

    # Made once: a strategy that is made anew for each array takes most of the time.
    every, shapes = dtypes(fields=fields), hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=3)
    orders = [st.permutations(range(ndim)) for ndim in range(8)]
    steps, often = st.sampled_from([1, 1, -1, 2, -2]), st.integers(0, 4)

    @st.composite
    def views(draw: DrawFn) -> Any:
        array = filled(draw, draw(every), draw(shapes))
        array = array.transpose(draw(orders[array.ndim]))
        array = array[(..., *(slice(None, None, draw(steps)) for _ in range(array.ndim)))]
        if repeated and draw(often) == 0:
            array = np.broadcast_to(array, (draw(often), *array.shape))
        return array

    return views()


def masked_arrays() -> SearchStrategy[Any]:
    """Give masked arrays: with and without a mask, of records too, hard and soft, with a fill value or none."""
    from hypothesis import reject
    from hypothesis import strategies as st

    every, yes = arrays(repeated=False), st.booleans()

    @st.composite
    def masked(draw: DrawFn) -> Any:
        data = draw(every)
        mask: Any = np.ma.nomask
        if draw(yes):
            dtype = np.ma.make_mask_descr(data.dtype)
            mask = filled(draw, dtype, data.shape) if draw(yes) else np.zeros(data.shape, dtype, order="F")
        try:
            with np.errstate(all="ignore"):
                array = np.ma.MaskedArray(data, mask=mask, hard_mask=draw(yes))
        except (TypeError, ValueError):  # of some records NumPy finds no default fill value
            reject()
        if array.size and array.dtype.kind in "biufcS" and draw(yes):
            array.fill_value = data.reshape(-1)[:1].reshape(())
        if draw(yes):
            array.unshare_mask()
        return array

    return masked()


def scalars() -> SearchStrategy[Any]:
    """Give single values of Python, NumPy and ml_dtypes."""
    from hypothesis import strategies as st

    text = st.text(st.characters(exclude_categories=()))
    zones = st.sampled_from(
        [None, dt.UTC, dt.timezone(dt.timedelta(hours=-3, seconds=7)), zoneinfo.ZoneInfo("Europe/Berlin")]
    )
    return st.one_of(
        *(st.none(), st.booleans(), st.integers(), st.integers(-(2**80), 2**80), st.just(2**9999)),
        *(
            st.floats(),
            st.complex_numbers(),
            st.integers(0, 2**64 - 1).map(lambda n: np.uint64(n).view(np.float64).item()),
        ),
        *(
            text,
            st.binary(),
            st.just("x" * 5000),
            st.just(b"x" * 5000),
            st.sampled_from(["$part", "\ud83d\ude00", "\n"]),
        ),
        *(st.dates(), st.datetimes(timezones=zones), st.times(), st.timedeltas(), st.decimals()),
        st.builds(uuid.UUID, int=st.integers(0, 2**128 - 1), is_safe=st.sampled_from(uuid.SafeUUID)),
        *(text.map(np.str_), st.binary().map(np.bytes_)),
        arrays(repeated=False).filter(lambda array: array.size and array.dtype.kind not in "SU").map(_first),
    )


def _first(array: Any) -> Any:
    return array.reshape(-1)[0]


def records() -> SearchStrategy[Any]:
    """Give what the items of a bag often are: small dicts of text and numbers."""
    from hypothesis import strategies as st

    return st.dictionaries(
        st.text(max_size=5), st.text(max_size=9) | st.integers() | st.floats() | st.none(), max_size=5
    )


def structures(leaves: SearchStrategy[Any] | None = None) -> SearchStrategy[Any]:
    """Give lists, tuples and dicts of single values and of arrays, nested in each other.

    Parameters
    ----------
    leaves
        What else may stand in them.
    """
    from hypothesis import strategies as st

    single = scalars()
    keys = st.one_of(
        *(st.text(st.characters(exclude_categories=()), max_size=3), st.integers(), st.floats(), st.none()),
        *(st.tuples(st.integers(), st.text(max_size=2)), st.sampled_from(["$", "$part", "$dict", "a"])),
    )
    parts = single | records() | arrays() | masked_arrays()
    return st.recursive(
        parts if leaves is None else parts | leaves,
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.lists(inner, max_size=3).map(tuple)
            | st.dictionaries(keys, inner, max_size=3)
        ),
        max_leaves=8,
    )
