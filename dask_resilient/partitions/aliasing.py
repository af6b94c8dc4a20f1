"""Whether two parts of one value share memory.

Restored they would not, so that a change of one would no longer show in the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from dask_resilient.partitions.parts import bytes_of
from dask_resilient.protocols import Staged

__all__ = ["shared"]

Span = tuple[int, int, int, bool]
"""First byte, end, number of the part, and whether the part is a table that copies before it changes."""


def shared(parts: Sequence[tuple[str, Any, Staged]], records: Sequence[Any]) -> str | None:
    """Say which two parts share memory, or None.

    Parameters
    ----------
    parts
        Codec, value, and the staged value of each.
    records
        Single records of NumPy beside them: they are views of the arrays that they were taken from.
    """
    if sum(codec == "cudf" for codec, _, _ in parts) > 1:
        return "holds two cuDF objects, which may share memory; return them from two tasks"
    values = [value for _, value, _ in parts] + list(records)
    places = enumerate(map(np.asarray, records), len(parts))
    spans = sorted(
        [span for i, part in enumerate(parts) for span in _spans(i, *part)]
        + [(*_bounds(record), i, False) for i, record in places if record.nbytes]
    )
    group: set[tuple[int, bool]] = set()
    end = 0
    for start, stop, i, copies in spans:
        if start >= end:
            group = set()
        group.add((i, copies))
        end = max(end, stop)
        if len(group) > 1 and not all(each for _, each in group):
            one, other = (type(values[part]).__qualname__ for part, _ in sorted(group)[:2])
            return f"holds two parts whose memory overlaps (a {one} and a {other}); copy one of them"
    return None


def _spans(part: int, codec: str, value: Any, staged: Staged) -> Iterator[Span]:
    copies = False
    if isinstance(value, np.ndarray) or codec in _ARRAYS:
        found = [_bounds(array) for array in _arrays(codec, value)]
    elif codec in _DEVICE_ARRAYS:
        found = [_on_device(value)]
    else:
        found = [_bounds(np.frombuffer(buffer, np.uint8)) for buffer in bytes_of(staged) if len(buffer)]
        copies = codec == "pandas" and _copies_on_write()
    return ((start, stop, part, copies) for start, stop in found if stop > start)


_DEVICE_ARRAYS = frozenset({"cupy.ndarray", "numba.cuda"})
"""Codecs whose values have `__cuda_array_interface__`; a table of cuDF is not asked, which would cost a copy."""

_ARRAYS = {
    "numpy.ma": ("mask",),
    "scipy.sparse": ("data", "indices", "indptr", "coords", "offsets"),
    "sparse": ("data", "indices", "indptr", "coords"),
}
"""Attributes that are arrays, or tuples of them, of the values of some codecs."""


def _arrays(codec: str, value: Any) -> Iterable[np.ndarray[Any, Any]]:
    every = [value, *(getattr(value, name, None) for name in _ARRAYS.get(codec, ()))]
    flat = (array for each in every for array in (each if isinstance(each, tuple) else (each,)))
    return (array for array in flat if isinstance(array, np.ndarray) and array.nbytes)


def _bounds(array: np.ndarray[Any, Any]) -> tuple[int, int]:
    return np.lib.array_utils.byte_bounds(array)


def _on_device(value: Any) -> tuple[int, int]:
    from dask_resilient.partitions.device import span

    if 0 in value.shape:
        return 0, 0
    before, nbytes = span(value.shape, value.strides, value.dtype.itemsize)
    start = int(value.__cuda_array_interface__["data"][0]) - before
    return start, start + nbytes


def _copies_on_write() -> bool:
    """Whether tables of pandas that share memory do not show each other's changes."""
    import pandas as pd

    return int(pd.__version__.partition(".")[0]) >= 3 or bool(pd.options.mode.copy_on_write)  # noqa: PLR2004
