"""NumPy dtypes as JSON, exactly: a dtype that would come back different in any way is refused.

Only the scalar types of NumPy itself and those of ml_dtypes are known here, by tables, so that no text in a receipt can
bring in another library or an object dtype.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dask_resilient.errors import Foreign, Unreachable
from dask_resilient.partitions.inexact import Inexact
from dask_resilient.partitions.mltypes import ML_DTYPES

__all__ = ["dtype_from_json", "dtype_to_json"]

_CHARS = "?bBhHiIlLqQpPefdgFDGMmSUV"
_SCALARS = frozenset(np.dtype(char).type for char in _CHARS)
_LONG = (np.longdouble, np.clongdouble)


def dtype_to_json(dtype: np.dtype[Any]) -> Any:
    """Describe a dtype in JSON types.

    Raises
    ------
    Inexact
        If it holds Python objects, belongs to another library, carries metadata, or cannot be described in full.
    """
    spec = _describe(dtype)
    if not _identical(dtype_from_json(spec), dtype):
        raise Inexact(f"has dtype {dtype!r}, which JSON cannot describe in full")
    return spec


def dtype_from_json(spec: Any) -> np.dtype[Any]:
    """Read what `dtype_to_json` gave.

    Raises
    ------
    Foreign
        If this is no description of such a dtype.
    Unreachable
        If the format of long double on this machine is another one, or ml_dtypes or its type is missing here.
    """
    dtype = _build(spec)
    if dtype.hasobject or not _is_known(dtype.type):
        raise Foreign(f"{spec!r} describes no dtype that a partition can have")
    return dtype


def _is_known(kind: type) -> bool:
    return kind in _SCALARS or (kind.__module__ == "ml_dtypes" and kind.__name__ in ML_DTYPES)


def _describe(dtype: np.dtype[Any]) -> Any:
    if dtype.hasobject or not _is_known(dtype.type):
        raise Inexact(f"has dtype {dtype}")
    if dtype.metadata:
        raise Inexact(f"has a dtype with metadata ({dict(dtype.metadata)!r})")
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        return {"base": _describe(base), "shape": list(shape)}
    if dtype.names is not None:
        return _describe_fields(dtype)
    if dtype.type not in _SCALARS:
        return {"ml_dtypes": dtype.type.__name__}
    if issubclass(dtype.type, _LONG):
        # 16 bytes hold an 80-bit number on x86-64 and a 128-bit one on ARM.
        return {"long": dtype.char, "str": dtype.str, "mantissa": _mantissa()}
    if np.dtype(dtype.str).char != dtype.char:  # long long beside long: equal, yet another scalar type
        return {"char": dtype.char, "str": dtype.str}
    return dtype.str


def _describe_fields(dtype: np.dtype[Any]) -> dict[str, Any]:
    names = list(dtype.names or ())
    fields = [dtype.fields[name] for name in names] if dtype.fields else []
    titles = [(*field, None)[2] for field in fields]
    if any(title is not None and type(title) is not str for title in titles):
        raise Inexact(f"has field titles that are no strings ({titles!r})")
    spec: dict[str, Any] = {
        "names": names,
        "formats": [_describe(field[0]) for field in fields],
        "offsets": [field[1] for field in fields],
        "itemsize": dtype.itemsize,
        "aligned": dtype.isalignedstruct,
    }
    return spec | {"titles": titles} if any(title is not None for title in titles) else spec


def _build(spec: Any) -> np.dtype[Any]:
    if isinstance(spec, str):
        return _plain(spec)
    if not isinstance(spec, Mapping):
        raise Foreign(f"{spec!r} describes no dtype")
    if "names" in spec:
        return _build_fields(spec)
    if "base" in spec:
        return np.dtype((dtype_from_json(spec["base"]), tuple(spec["shape"])))
    if "ml_dtypes" in spec:
        return _ml_dtype(spec["ml_dtypes"])
    return _build_by_char(spec)


def _build_by_char(spec: Mapping[str, Any]) -> np.dtype[Any]:
    if "long" in spec and spec["mantissa"] != _mantissa():
        raise Unreachable(f"long double has {spec['mantissa']!r} bits of mantissa there and {_mantissa()} here")
    char, text = spec["long" if "long" in spec else "char"], spec["str"]
    if char not in tuple(_CHARS):
        raise Foreign(f"{char!r} is no character of a dtype")
    native: np.dtype[Any] = np.dtype(char)
    dtype: np.dtype[Any] = native if native.str == text else native.newbyteorder(text[0])
    if dtype.str != text:
        raise Foreign(f"{text!r} and {char!r} describe different dtypes")
    return dtype


def _build_fields(spec: Mapping[str, Any]) -> np.dtype[Any]:
    parts: Any = {key: spec[key] for key in ("names", "offsets", "itemsize", "titles") if key in spec}
    parts["formats"] = [dtype_from_json(each) for each in spec["formats"]]
    if not parts["names"]:
        return _plain(f"|V{parts['itemsize']}") if parts["itemsize"] else np.dtype([])
    dtype: np.dtype[Any] = np.dtype(parts, align=bool(spec["aligned"]))
    return dtype


def _ml_dtype(name: Any) -> np.dtype[Any]:
    if name not in tuple(ML_DTYPES):
        raise Foreign(f"{name!r} is no type of ml_dtypes that is known here")
    try:
        import ml_dtypes

        dtype: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
    except (ImportError, AttributeError) as e:
        raise Unreachable(f"dtype {name!r} is missing here: {e}; install or update ml_dtypes on every worker") from e
    return dtype


def _plain(text: str) -> np.dtype[Any]:
    dtype = np.dtype(text)
    if dtype.str != text:  # "f4,f4", "O", aliases: nothing that `dtype_to_json` writes
        raise Foreign(f"{text!r} is no exact name of a dtype")
    return dtype


def _mantissa() -> int:
    return int(np.finfo(np.longdouble).nmant)


def _identical(one: np.dtype[Any], other: np.dtype[Any]) -> bool:
    """Whether two dtypes agree also in what ``==`` overlooks: scalar type, alignment, titles."""
    if one != other or _facts(one) != _facts(other):
        return False
    if one.subdtype is not None and other.subdtype is not None:
        return _identical(one.subdtype[0], other.subdtype[0])
    if one.fields is None or other.fields is None:
        return one.fields is other.fields
    return all(
        mine[1:] == its[1:] and _identical(mine[0], its[0])
        for mine, its in zip(one.fields.values(), other.fields.values(), strict=True)
    )


def _facts(dtype: np.dtype[Any]) -> tuple[Any, ...]:
    return (
        dtype.type,
        dtype.char,
        dtype.str,
        dtype.itemsize,
        dtype.alignment,
        dtype.isalignedstruct,
        dtype.names,
        dtype.shape,
        tuple(dtype.fields or ()),
    )
