"""Compares two values in everything that a task could see, and says where they differ.

Stricter than ``==``: types, bits of numbers, the order of dicts, the order of the axes of arrays, data under masks.
Tables are not covered: pandas has its own functions for that.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np

__all__ = ["assert_same", "differences"]


def assert_same(restored: Any, original: Any) -> None:
    """Fail with the first difference of two values, if there is one."""
    for difference in differences(restored, original):
        raise AssertionError(f"restored {difference}")


def differences(one: Any, other: Any, at: str = "value") -> Iterator[str]:
    """Give what is different about the first of two values, one sentence for each place."""
    if type(one) is not type(other):
        yield f"{at} is of {type(one)!r}, not of {type(other)!r}"
        return
    if type(other).__module__.partition(".")[0] in ("scipy", "sparse"):
        yield from _state(one, other, at)
        return
    compare = next((compare for kind, compare in _COMPARE.items() if isinstance(other, kind)), None)
    if compare is not None:
        yield from compare(one, other, at)
    elif _bits(one) != _bits(other):
        yield f"{at} is {one!r}, not {other!r}"


def _dict(one: Any, other: Any, at: str) -> Iterator[str]:
    yield from _list(list(one), list(other), f"keys of {at}")
    yield from _list(list(one.values()), list(other.values()), f"values of {at}")


def _list(one: Any, other: Any, at: str) -> Iterator[str]:
    if len(one) != len(other):
        yield f"{at} has {len(one)} items, not {len(other)}"
    for i, (mine, its) in enumerate(zip(one, other, strict=False)):
        yield from differences(mine, its, f"{at}[{i}]")


def _scalar(one: Any, other: Any, at: str) -> Iterator[str]:
    yield from _array(np.asarray(one), np.asarray(other), at)


def _bits(value: Any) -> Any:
    if isinstance(value, float):
        return struct.pack("<d", value)
    if isinstance(value, complex):
        return struct.pack("<dd", value.real, value.imag)
    if hasattr(value, "as_tuple"):
        return value.as_tuple()
    if hasattr(value, "tzinfo"):  # equal instants in other zones are equal
        return value.isoformat(), value.fold, value.tzinfo
    if type(value).__name__ in ("NaTType", "NAType"):
        return id(value)
    return value


def _array(one: Any, other: Any, at: str) -> Iterator[str]:
    if _dtype(one.dtype) != _dtype(other.dtype) or one.dtype != other.dtype:
        yield f"{at} has dtype {one.dtype!r}, not {other.dtype!r}"
    elif one.shape != other.shape:
        yield f"{at} has shape {one.shape!r}, not {other.shape!r}"
    elif _raw(one) != _raw(other):
        yield f"{at} has other bytes: {one!r}, not {other!r}"
    elif not one.flags.aligned or _order(one) != _order(other):
        yield f"{at} has strides {one.strides!r}, not an order as {other.strides!r}"
    elif not one.flags.writeable and 0 not in other.strides:
        yield f"{at} cannot be written"


def _dtype(dtype: np.dtype[Any]) -> tuple[Any, ...]:
    return repr(dtype), dtype.type, dtype.char, dtype.isalignedstruct, dtype.itemsize, dict(dtype.metadata or {})


def _raw(array: Any) -> bytes:
    """Give the bytes of all items, of records with what lies between their fields."""
    whole = array if array.dtype.names is None or not array.itemsize else array.view(f"V{array.itemsize}")
    raw: bytes = whole.tobytes()
    if array.dtype.char not in "gG":
        return raw
    used = 10 if np.finfo(array.dtype).nmant == 63 else 16  # noqa: PLR2004  (x86-64: six bytes of each number mean nothing)
    return np.frombuffer(raw, np.uint8).reshape(-1, 16)[:, :used].tobytes()


def _order(array: Any) -> Any:
    """Give the order of the axes in memory, as far as it can be told from the items."""
    if array.size == 0 or math.prod(array.shape) == 1:
        return None
    axes = [(abs(stride), n, i) for i, (stride, n) in enumerate(zip(array.strides, array.shape, strict=True)) if n > 1]
    return [(i, stride == 0) for stride, _, i in sorted(axes, key=lambda axis: (-axis[0], axis[2]))]


def _masked(one: Any, other: Any, at: str) -> Iterator[str]:
    yield from _array(np.ma.getdata(one, subok=False), np.ma.getdata(other, subok=False), f"{at}.data")
    yield from _state(one, other, at)


def _state(one: Any, other: Any, at: str) -> Iterator[str]:
    """Compare what two instances of a library's class keep, private attributes included."""
    mine, its = vars(one), vars(other)
    if mine.keys() != its.keys():
        yield f"{at} has the attributes {sorted(mine)!r}, not {sorted(its)!r}"
    for name in mine.keys() & its.keys():
        if isinstance(its[name], type):
            if mine[name] is not its[name]:
                yield f"{at}.{name} is {mine[name]!r}, not {its[name]!r}"
        else:
            yield from differences(mine[name], its[name], f"{at}.{name}")


_COMPARE: dict[Any, Any] = {
    np.ma.MaskedArray: _masked,
    np.ndarray: _array,
    np.generic: _scalar,
    dict: _dict,
    list: _list,
    tuple: _list,
}
