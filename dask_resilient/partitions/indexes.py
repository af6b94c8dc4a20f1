"""pandas indexes, and the arrays that are made of indexes: categoricals and intervals.

`pack_array` and `unpack_array` are the way in for every column. Loaded lazily, with pandas.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from pandas.tseries.frequencies import to_offset

from dask_resilient.errors import Foreign
from dask_resilient.partitions import labels
from dask_resilient.partitions.buffers import Packer, Unpacker
from dask_resilient.partitions.columns import KIND_OF, KINDS, Pack, Spec, Unpack
from dask_resilient.partitions.inexact import Inexact

__all__ = ["pack_array", "pack_freq", "pack_index", "unpack_array", "unpack_index"]


def pack_array(array: Any, out: Packer) -> Spec:
    """Describe the array of a column, and append its buffers.

    Raises
    ------
    Inexact
        If its dtype has no exact form here.
    """
    bare = isinstance(array.dtype, np.dtype) or type(array) is pd.arrays.NumpyExtensionArray
    kind = ("object" if array.dtype.kind == "O" else "numpy") if bare else _KIND_OF.get(type(array.dtype))
    if kind is None:
        raise Inexact(f"has dtype {array.dtype}")
    return {"kind": kind, **_KINDS[kind][0](array, out)}


def unpack_array(spec: Mapping[str, Any], data: Unpacker) -> Any:
    """Give the array of a column back."""
    return _KINDS[spec["kind"]][1](spec, data)


def pack_index(index: Any, out: Packer) -> Spec:
    """Describe an index, and append its buffers.

    Raises
    ------
    Inexact
        If its type, dtype, labels, names or frequency have no exact form here.
    """
    if type(index) is pd.MultiIndex:
        return _pack_multi(index, out)
    spec: Spec = {"name": labels.to_json(index.name)}
    if type(index) is pd.RangeIndex:
        return spec | {"range": [index.start, index.stop, index.step]}
    if type(index) not in _INDEXES:
        raise Inexact(f"is a {type(index).__module__}.{type(index).__qualname__}")
    if index.dtype == object:
        return spec | {"labels": out.add(labels.dumps(index.tolist()))}
    freq = getattr(index, "freq", None) if isinstance(index, pd.DatetimeIndex | pd.TimedeltaIndex) else None
    return spec | {"array": pack_array(index.array, out), "freq": pack_freq(freq)}


def unpack_index(spec: Mapping[str, Any], data: Unpacker) -> Any:
    """Give an index back."""
    if "levels" in spec:
        return _unpack_multi(spec, data)
    name = labels.from_json(spec["name"])
    if "range" in spec:
        start, stop, step = _integers(spec["range"], 3)
        return pd.RangeIndex(start, stop, step, name=name)
    if "labels" in spec:
        values = labels.loads(data.take(spec["labels"]).tobytes())
        return pd.Index(values, dtype=object, name=name, tupleize_cols=False)
    array = unpack_array(spec["array"], data)
    index = pd.Index(array, dtype=array.dtype, name=name, copy=False)
    if spec["freq"] is not None:
        index.freq = to_offset(spec["freq"])
    return index


_INDEXES = (pd.Index, pd.DatetimeIndex, pd.TimedeltaIndex, pd.PeriodIndex, pd.IntervalIndex, pd.CategoricalIndex)


def _pack_multi(index: Any, out: Packer) -> Spec:
    return {
        "names": [labels.to_json(name) for name in index.names],
        # A level carries the name of the index; without it two levels of one name would be told apart.
        "levels": [pack_index(level.rename(None), out) for level in index.levels],
        "codes": [KINDS["numpy"][0](np.asarray(codes), out) for codes in index.codes],
        "sortorder": index.sortorder,
    }


def _unpack_multi(spec: Mapping[str, Any], data: Unpacker) -> Any:
    return pd.MultiIndex(
        levels=[unpack_index(each, data) for each in spec["levels"]],
        codes=[KINDS["numpy"][1](each, data) for each in spec["codes"]],
        names=[labels.from_json(each) for each in spec["names"]],
        sortorder=spec["sortorder"],
        verify_integrity=True,
    )


def pack_freq(freq: Any) -> str | None:
    """Give the name of the frequency of an index.

    Raises
    ------
    Inexact
        If the name does not say all of it.
    """
    if freq is None:
        return None
    try:
        exact = to_offset(freq.freqstr) == freq
    except ValueError:
        exact = False
    if not exact:
        raise Inexact(f"has the frequency {freq!r}, which has no exact name")
    return str(freq.freqstr)


def _integers(numbers: Any, count: int) -> list[int]:
    if not isinstance(numbers, list) or len(numbers) != count or any(type(n) is not int for n in numbers):
        raise Foreign(f"{numbers!r} are not {count} integers")
    return numbers


def _pack_categorical(array: Any, out: Packer) -> Spec:
    return {
        "ordered": bool(array.ordered),
        "categories": pack_index(array.categories, out),
        "codes": KINDS["numpy"][0](array.codes, out),
    }


def _unpack_categorical(spec: Mapping[str, Any], data: Unpacker) -> Any:
    dtype = pd.CategoricalDtype(unpack_index(spec["categories"], data), ordered=bool(spec["ordered"]))
    return pd.Categorical.from_codes(KINDS["numpy"][1](spec["codes"], data), dtype=dtype)


def _pack_interval(array: Any, out: Packer) -> Spec:
    left, right = pack_array(array.left.array, out), pack_array(array.right.array, out)
    return {"closed": array.closed, "left": left, "right": right}


def _unpack_interval(spec: Mapping[str, Any], data: Unpacker) -> Any:
    left, right = unpack_array(spec["left"], data), unpack_array(spec["right"], data)
    # Zoned times come out of an index, whose array is read-only; the user may assign to the column.
    return pd.arrays.IntervalArray.from_arrays(left, right, closed=spec["closed"], copy=True)


_KINDS: dict[str, tuple[Pack, Unpack]] = {
    **KINDS,
    "categorical": (_pack_categorical, _unpack_categorical),
    "interval": (_pack_interval, _unpack_interval),
}

_KIND_OF: dict[type, str] = {**KIND_OF, pd.CategoricalDtype: "categorical", pd.IntervalDtype: "interval"}
