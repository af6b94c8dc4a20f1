"""Labels, names and attrs as JSON, with their exact types.

Text, whole numbers, booleans and None stand for themselves; everything else is an object with one key, its kind.
"""

from __future__ import annotations

import datetime as dt
import json
import struct
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from dask_resilient.errors import Foreign
from dask_resilient.partitions.dtypes import dtype_from_json, dtype_to_json
from dask_resilient.partitions.inexact import Inexact
from dask_resilient.partitions.zones import zone_from_json, zone_to_json

__all__ = ["dumps", "from_json", "loads", "to_json"]


def dumps(value: Any) -> memoryview:
    """Give a value as the bytes of strict JSON; raises `Inexact` as `to_json` does."""
    return memoryview(json.dumps(to_json(value), allow_nan=False).encode())


def loads(raw: bytes) -> Any:
    """Read what `dumps` gave."""
    return from_json(json.loads(raw))


def to_json(value: Any) -> Any:
    """Describe a label, a name, or lists and dicts of them, in JSON types.

    Raises
    ------
    Inexact
        If its type has no exact form here.
    """
    kind = type(value)
    if kind is str:
        return value if _is_text(value) else {"utf8": value.encode("utf-8", "surrogatepass").hex()}
    if value is None or kind is bool or (kind is int and -(2**63) <= value < 2**64):
        return value
    name = _KIND_OF.get(kind)
    if name is None and isinstance(value, np.generic):
        name = "scalar"
    if name is None:
        raise Inexact(f"has the label {value!r} of type {kind.__module__}.{kind.__qualname__}, which JSON cannot hold")
    return {name: _KINDS[name][0](value)}


def from_json(spec: Any) -> Any:
    """Read what `to_json` gave.

    Raises
    ------
    Foreign
        If this describes no label.
    """
    if spec is None or isinstance(spec, bool | int | str):
        return spec
    if not isinstance(spec, Mapping) or len(spec) != 1:
        raise Foreign(f"{spec!r} describes no label")
    [(name, value)] = spec.items()
    if name not in _KINDS:
        raise Foreign(f"{name!r} is no kind of label")
    return _KINDS[name][1](value)


def _is_text(value: str) -> bool:
    """Whether JSON keeps it: two lone surrogates side by side would come back as one character."""
    return value.isascii() or not any("\ud800" <= char <= "\udfff" for char in value)


def _pack_float(value: float) -> str:
    text = value.hex()
    if struct.pack("<d", float.fromhex(text)) != struct.pack("<d", value):
        raise Inexact("has a label that is NaN with a payload")
    return text


def _pack_scalar(value: Any) -> list[Any]:
    if value.dtype.kind not in "biufcmM" or type(value) is not value.dtype.type:
        raise Inexact(f"has the label {value!r} of type {type(value).__qualname__}, which JSON cannot hold")
    return [dtype_to_json(value.dtype), value.tobytes().hex()]


def _unpack_scalar(spec: Any) -> Any:
    raw = np.frombuffer(bytes.fromhex(spec[1]), np.uint8)
    return raw.view(dtype_from_json(spec[0])).reshape(())[()]


def _pack_timestamp(value: pd.Timestamp) -> list[Any]:
    spec = [*_pack_instant(value.asm8), zone_to_json(value.tz)]
    if _unpack_timestamp(spec).fold != value.fold:
        raise Inexact(f"has the label {value!r} with a fold that its time does not have")
    return spec


def _unpack_timestamp(spec: Any) -> pd.Timestamp:
    stamp, zone = pd.Timestamp(np.datetime64(spec[0], spec[1])), zone_from_json(spec[2])
    return stamp if zone is None else stamp.tz_localize("UTC").tz_convert(zone)


def _pack_instant(value: Any) -> list[Any]:
    return [int(value.view("i8")), np.datetime_data(value.dtype)[0]]


_KINDS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "utf8": (lambda text: text, lambda text: bytes.fromhex(text).decode("utf-8", "surrogatepass")),
    "float": (_pack_float, float.fromhex),
    "tuple": (lambda items: [to_json(each) for each in items], lambda items: tuple(from_json(each) for each in items)),
    "list": (lambda items: [to_json(each) for each in items], lambda items: [from_json(each) for each in items]),
    "dict": (
        lambda items: [[to_json(key), to_json(value)] for key, value in items.items()],
        lambda items: {from_json(key): from_json(value) for key, value in items},
    ),
    "date": (dt.date.isoformat, dt.date.fromisoformat),
    "timestamp": (_pack_timestamp, _unpack_timestamp),
    "timedelta": (
        lambda value: _pack_instant(value.asm8),
        lambda spec: pd.Timedelta(np.timedelta64(spec[0], spec[1])),
    ),
    "missing": (
        lambda value: "NaT" if value is pd.NaT else "NA",
        lambda name: {"NaT": pd.NaT, "NA": pd.NA}[name],
    ),
    "scalar": (_pack_scalar, _unpack_scalar),
}

_KIND_OF: dict[type, str] = {
    float: "float",
    tuple: "tuple",
    list: "list",
    dict: "dict",
    dt.date: "date",
    pd.Timestamp: "timestamp",
    pd.Timedelta: "timedelta",
    type(pd.NaT): "missing",
    type(pd.NA): "missing",
}
