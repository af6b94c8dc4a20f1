"""pandas arrays that are plain buffers: NumPy, time zones, periods, nullable numbers, strings, objects and Arrow.

Each kind is one pair of functions in `KINDS`: array -> spec with references into the payload, and back. Arrays made of
other indexes are in :mod:`dask_resilient.partitions.indexes`. Loaded lazily, with pandas; pyarrow only where it is
used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from dask_resilient.errors import Foreign, Unreachable
from dask_resilient.partitions.buffers import Packer, Unpacker
from dask_resilient.partitions.dtypes import dtype_from_json, dtype_to_json
from dask_resilient.partitions.inexact import Inexact
from dask_resilient.partitions.objects import pack_objects, unpack_objects
from dask_resilient.partitions.streams import pack_stream, unpack_stream
from dask_resilient.partitions.texts import pack_texts, unpack_texts
from dask_resilient.partitions.zones import zone_from_json, zone_to_json

__all__ = ["KINDS", "KIND_OF", "Spec"]

Spec = dict[str, Any]
"""Description of one array or index, JSON types only."""

_UNITS = ("s", "ms", "us", "ns")


def _pack_numpy(array: Any, out: Packer) -> Spec:
    values = np.asarray(array)
    if values.dtype.kind not in "biufcmM":
        raise Inexact(f"has dtype {values.dtype}")
    return {"dtype": dtype_to_json(values.dtype), "values": out.add_array(values)}


def _unpack_numpy(spec: Mapping[str, Any], data: Unpacker) -> Any:
    dtype = dtype_from_json(spec["dtype"])
    if dtype.kind not in "biufcmM":
        raise Foreign(f"{spec['dtype']!r} is no dtype of a column")
    return data.take_array(spec["values"], dtype)


def _pack_zoned(array: Any, out: Packer) -> Spec:
    return {
        "unit": array.dtype.unit,
        "zone": zone_to_json(array.dtype.tz),
        "values": out.add_array(array.view("i8")),
    }


def _unpack_zoned(spec: Mapping[str, Any], data: Unpacker) -> Any:
    if spec["unit"] not in _UNITS:
        raise Foreign(f"{spec['unit']!r} is no unit of a time")
    utc = pd.DatetimeIndex(data.take_array(spec["values"], np.dtype(f"M8[{spec['unit']}]")))
    return utc.tz_localize("UTC").tz_convert(zone_from_json(spec["zone"])).array


def _pack_period(array: Any, out: Packer) -> Spec:
    name = array.dtype.name  # as "period[M]": the name of its frequency alone, "ME", is not understood for periods
    if pd.PeriodDtype(name) != array.dtype:
        raise Inexact(f"has dtype {name}, whose frequency has no exact name")
    return {"name": name, "values": out.add_array(array.view("i8"))}


def _unpack_period(spec: Mapping[str, Any], data: Unpacker) -> Any:
    return pd.arrays.PeriodArray(data.take_array(spec["values"], np.dtype("i8")), dtype=pd.PeriodDtype(spec["name"]))


_NULLABLE: dict[str, tuple[Any, Any]] = {
    dtype.name: (dtype, array)
    for array, dtypes in (
        (pd.arrays.BooleanArray, (pd.BooleanDtype(),)),
        (pd.arrays.FloatingArray, (pd.Float32Dtype(), pd.Float64Dtype())),
        (
            pd.arrays.IntegerArray,
            (
                *(pd.Int8Dtype(), pd.Int16Dtype(), pd.Int32Dtype(), pd.Int64Dtype()),
                *(pd.UInt8Dtype(), pd.UInt16Dtype(), pd.UInt32Dtype(), pd.UInt64Dtype()),
            ),
        ),
    )
    for dtype in dtypes
}


def _pack_nullable(array: Any, out: Packer) -> Spec:
    dtype = array.dtype.numpy_dtype
    values = array.to_numpy(dtype=dtype, na_value=dtype.type(0))  # what lies under the mask is no part of the value
    return {"name": array.dtype.name, "values": out.add_array(values), "missing": out.add_array(array.isna())}


def _unpack_nullable(spec: Mapping[str, Any], data: Unpacker) -> Any:
    dtype, array = _NULLABLE[spec["name"]]
    return array(data.take_array(spec["values"], dtype.numpy_dtype), data.take_array(spec["missing"], np.dtype(bool)))


def _pack_string(array: Any, out: Packer) -> Spec:
    dtype = array.dtype
    if dtype.storage not in ("python", "pyarrow"):
        raise Inexact(f"has dtype {dtype!r}")
    spec: Spec = {"storage": dtype.storage, "missing_is": "NA" if dtype.na_value is pd.NA else "NaN"}
    return spec | (_pack_arrow if dtype.storage == "pyarrow" else _pack_text)(array, out)


def _unpack_string(spec: Mapping[str, Any], data: Unpacker) -> Any:
    storage, missing = spec["storage"], {"NA": pd.NA, "NaN": np.nan}[spec["missing_is"]]
    dtype = _string_dtype(storage, missing)
    if storage == "pyarrow":
        return dtype.__from_arrow__(unpack_stream(spec, data))
    return pd.array(_unpack_text(spec, data, missing), dtype=dtype)


def _string_dtype(storage: str, missing: Any) -> Any:
    make: Any = pd.StringDtype
    if missing is pd.NA:
        return make(storage)
    try:
        return make(storage, na_value=missing)
    except TypeError as e:
        raise Unreachable(f"pandas {pd.__version__} has no strings with NaN: {e}; install pandas 2.3 or newer") from e


def _pack_text(array: Any, out: Packer) -> Spec:
    missing = np.asarray(array.isna())
    values = np.asarray(array, dtype=object)
    if any(type(text) is not str for text in values[~missing]):
        raise Inexact("holds instances of a subclass of str")
    texts = np.where(missing, "", values).tolist() if missing.any() else values.tolist()
    return {**pack_texts(texts, out), "missing": out.add_array(missing)}


def _unpack_text(spec: Mapping[str, Any], data: Unpacker, missing_value: Any) -> Any:
    texts, missing = unpack_texts(spec, data), data.take_array(spec["missing"], np.dtype(bool))
    if len(missing) != len(texts):
        raise Foreign(f"{len(texts)} strings have {len(missing)} marks of what is missing")
    values = np.empty(len(texts), dtype=object)
    values[:] = texts
    values[missing] = missing_value
    return values


def _pack_arrow(array: Any, out: Packer) -> Spec:
    import pyarrow as pa

    return pack_stream(pa.array(array), out)


def _unpack_arrow(spec: Mapping[str, Any], data: Unpacker) -> Any:
    values = unpack_stream(spec, data)
    dtype: Any = pd.ArrowDtype(values.type)
    return dtype.__from_arrow__(values)


Pack = Callable[[Any, Packer], Spec]
Unpack = Callable[[Mapping[str, Any], Unpacker], Any]

KINDS: dict[str, tuple[Pack, Unpack]] = {
    "numpy": (_pack_numpy, _unpack_numpy),
    "object": (pack_objects, unpack_objects),
    "zoned": (_pack_zoned, _unpack_zoned),
    "period": (_pack_period, _unpack_period),
    "nullable": (_pack_nullable, _unpack_nullable),
    "string": (_pack_string, _unpack_string),
    "arrow": (_pack_arrow, _unpack_arrow),
}

KIND_OF: dict[type, str] = {
    pd.DatetimeTZDtype: "zoned",
    pd.PeriodDtype: "period",
    pd.StringDtype: "string",
    pd.ArrowDtype: "arrow",
    **{type(dtype): "nullable" for dtype, _ in _NULLABLE.values()},
}
"""Kind of an array by the exact type of its extension dtype."""
