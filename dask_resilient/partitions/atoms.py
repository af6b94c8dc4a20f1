"""Single values as JSON, exactly: numbers, text, bytes, dates, and the scalars of NumPy and pandas.

What JSON itself holds stands for itself: None, true, false, text, whole numbers of up to 64 bits, finite numbers.
Everything else is an object with one key, its kind, which begins with ``$``. Lists, tuples and dicts are made of these
in :mod:`~dask_resilient.partitions.structures`.
"""

from __future__ import annotations

import datetime as dt
import functools
import struct
import uuid
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from dask_resilient.errors import Foreign
from dask_resilient.partitions.mltypes import ML_DTYPES
from dask_resilient.partitions.zones import zone_from_json, zone_to_json

__all__ = ["FROM_JSON", "KINDS", "TO_JSON", "number_to_json", "text_to_json"]


def text_to_json(value: str) -> Any:
    """Describe text; two lone surrogates side by side, which JSON would join, included."""
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            return {"$utf8": value.encode("utf-8", "surrogatepass").hex()}
    return value


def number_to_json(value: int) -> Any:
    """Describe a whole number of any size."""
    return value if -(2**63) <= value < 2**64 else {"$int": hex(value)}


def _bits(value: float) -> str:
    return struct.pack(">d", value).hex()


def _from_bits(text: str) -> float:
    value: float = struct.unpack(">d", bytes.fromhex(text))[0]
    return value


def _datetime_to_json(value: dt.datetime) -> list[Any]:
    return [value.replace(tzinfo=None).isoformat(), value.fold, zone_to_json(value.tzinfo)]


def _datetime_from_json(spec: Any) -> dt.datetime:
    return dt.datetime.fromisoformat(spec[0]).replace(fold=spec[1], tzinfo=zone_from_json(spec[2]))


def _time_from_json(spec: Any) -> dt.time:
    return dt.time.fromisoformat(spec[0]).replace(fold=spec[1], tzinfo=zone_from_json(spec[2]))


@functools.cache
def _native_dtype(kind: Any) -> Any:
    """Give the JSON of the dtype of a number of NumPy's: such a scalar is always in native order."""
    import numpy as np

    from dask_resilient.partitions.dtypes import dtype_to_json

    return dtype_to_json(np.dtype(kind))


def _numpy_to_json(value: Any) -> list[Any]:
    from dask_resilient.partitions.dtypes import dtype_to_json

    kind: Any = type(value)
    dtype = dtype_to_json(value.dtype) if value.dtype.char in "mMV" else _native_dtype(kind)
    return [dtype, value.tobytes().hex()]


@functools.lru_cache(64)
def _named_dtype(text: str) -> Any:
    from dask_resilient.partitions.dtypes import dtype_from_json

    return dtype_from_json(text)


def _numpy_from_json(spec: Any) -> Any:
    import numpy as np

    from dask_resilient.partitions.dtypes import dtype_from_json

    dtype = _named_dtype(spec[0]) if type(spec[0]) is str else dtype_from_json(spec[0])
    raw = bytearray.fromhex(spec[1])
    if dtype.kind in "SU" or dtype.itemsize != len(raw):
        raise Foreign(f"{spec!r} is no scalar")
    return np.ndarray((), dtype, raw or None)[()]


def _numpy_text(text: Any) -> Any:
    import numpy as np

    if type(text) is not str:
        raise Foreign(f"{text!r} is no text")
    return np.str_(text)


def _numpy_bytes(text: str) -> Any:
    import numpy as np

    return np.bytes_(bytes.fromhex(text))


def _pandas_to_json(value: Any) -> Any:
    from dask_resilient.partitions import labels

    return labels.to_json(value)


def _pandas_from_json(spec: Any) -> Any:
    from dask_resilient.partitions import labels

    return labels.from_json(spec)


Pack = Callable[[Any], Any]

_ROWS: dict[str, tuple[Pack, Pack]] = {
    "$utf8": (text_to_json, lambda text: bytes.fromhex(text).decode("utf-8", "surrogatepass")),
    "$int": (hex, lambda text: int(text, 16)),
    "$float": (_bits, _from_bits),
    "$complex": (
        lambda value: [_bits(value.real), _bits(value.imag)],
        lambda spec: complex(_from_bits(spec[0]), _from_bits(spec[1])),
    ),
    "$bytes": (bytes.hex, bytes.fromhex),
    "$date": (dt.date.isoformat, dt.date.fromisoformat),
    "$datetime": (_datetime_to_json, _datetime_from_json),
    "$time": (
        lambda value: [value.replace(tzinfo=None).isoformat(), value.fold, zone_to_json(value.tzinfo)],
        _time_from_json,
    ),
    "$timedelta": (
        lambda value: [value.days, value.seconds, value.microseconds],
        lambda spec: dt.timedelta(spec[0], spec[1], spec[2]),
    ),
    "$decimal": (str, Decimal),
    "$uuid": (
        lambda value: [value.hex, value.is_safe.name],
        lambda spec: uuid.UUID(hex=spec[0], is_safe=uuid.SafeUUID[spec[1]]),
    ),
    "$numpy": (_numpy_to_json, _numpy_from_json),
    "$numpy.str": (lambda value: text_to_json(str.__str__(value)), _numpy_text),  # its own cuts off trailing NULs
    "$numpy.bytes": (bytes.hex, _numpy_bytes),
    "$pandas": (_pandas_to_json, _pandas_from_json),
}

TO_JSON: dict[str, Pack] = {name: row[0] for name, row in _ROWS.items()}
FROM_JSON: dict[str, Pack] = {name: row[1] for name, row in _ROWS.items()}

_NUMPY = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "intc", "uintc", "long"),
    *("ulong", "longlong", "ulonglong", "float16", "float32", "float64", "longdouble", "complex64", "complex128"),
    *("clongdouble", "datetime64", "timedelta64", "void"),
)

KINDS: dict[tuple[str, str], str] = {
    ("builtins", "NoneType"): "",
    ("builtins", "bool"): "",
    ("builtins", "int"): "$int",
    ("builtins", "str"): "$utf8",
    ("builtins", "float"): "$float",
    ("builtins", "complex"): "$complex",
    ("builtins", "bytes"): "$bytes",
    ("datetime", "date"): "$date",
    ("datetime", "datetime"): "$datetime",
    ("datetime", "time"): "$time",
    ("datetime", "timedelta"): "$timedelta",
    ("decimal", "Decimal"): "$decimal",
    ("uuid", "UUID"): "$uuid",
    ("numpy", "str_"): "$numpy.str",
    ("numpy", "bytes_"): "$numpy.bytes",
    **{("numpy", name): "$numpy" for name in _NUMPY},
    **{("ml_dtypes", name): "$numpy" for name in ML_DTYPES},
    # pandas 2 names the defining modules.
    **{("pandas", name): "$pandas" for name in ("Timestamp", "Timedelta")},
    ("pandas.api.typing", "NaTType"): "$pandas",
    ("pandas.api.typing", "NAType"): "$pandas",
    ("pandas._libs.tslibs.timestamps", "Timestamp"): "$pandas",
    ("pandas._libs.tslibs.timedeltas", "Timedelta"): "$pandas",
    ("pandas._libs.tslibs.nattype", "NaTType"): "$pandas",
    ("pandas._libs.missing", "NAType"): "$pandas",
}
"""Of each type of a single value, by module and name, its kind; the empty one = JSON itself."""
