"""Index arrays of sparse arrays: what must hold before native code that checks no bounds may see them.

Each function gives what is wrong, in words that follow "has", or None. All of them are vectorised, and look at no array
before its length is known to be right.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_resilient.errors import Foreign

__all__ = ["bad_coordinates", "bad_rows", "false_claim", "repeats", "shape_from_json", "too_large"]

Array = npt.NDArray[Any]


def shape_from_json(numbers: Any) -> tuple[int, ...]:
    """Read the shape of a sparse array.

    Raises
    ------
    Foreign
        If it is no list of natural numbers, or has more items than fit an index.
    """
    if not isinstance(numbers, list) or any(type(n) is not int or n < 0 for n in numbers):
        raise Foreign(f"{numbers!r} is no shape")
    if max(numbers, default=0) > np.iinfo(np.int64).max:
        raise Foreign(f"the shape {numbers!r} is too large to be indexed")
    return tuple(numbers)


def repeats(array: Array) -> bool:
    """Whether an array shows an item of its memory more than once along an axis."""
    return bool(array.size) and any(stride == 0 and n > 1 for stride, n in zip(array.strides, array.shape, strict=True))


def bad_coordinates(coordinates: Sequence[Array], shape: Sequence[int], nnz: int) -> str | None:
    """Judge one index array for each axis, each with the index of every stored item."""
    if len(coordinates) != len(shape) or any(axis.shape != (nnz,) for axis in coordinates):
        return f"coordinates that do not fit {nnz:,} items in {len(shape)} axes"
    for axis, n in zip(coordinates, shape, strict=True):
        if problem := _bad_index(axis, n):
            return problem
    return None


def bad_rows(indptr: Array, indices: Array, data: Array, rows: int, columns: int) -> str | None:
    """Judge compressed rows: where each begins in `indices`, and the column of each item there."""
    if indptr.ndim != 1 or indices.ndim != 1 or indptr.dtype != indices.dtype or indptr.dtype.kind not in "iu":
        return f"index arrays of {indptr.dtype} and {indices.dtype}"
    if indptr.shape != (rows + 1,) or data.shape[:1] != indices.shape:
        return f"{len(indptr):,} row pointers, {len(indices):,} indices and {data.shape[:1]!r} items for {rows:,} rows"
    if max(rows, columns) > np.iinfo(indptr.dtype).max:
        return f"more rows or columns than {indptr.dtype} counts"
    if indptr[0] != 0 or bool((indptr[1:] < indptr[:-1]).any()):
        return "row pointers that do not run upwards from 0"
    if indptr[-1] != len(indices):
        # SciPy 1.17 converts such ones with indices that it has never set: `tocoo` gives what the memory held.
        return f"{len(indices):,} indices where its rows end at {indptr[-1]:,}; call its prune() in the task"
    return _bad_index(indices, columns)


def false_claim(indptr: Array, indices: Array, claims: Mapping[str, bool]) -> str | None:
    """Judge what rows are said to be: ``_has_sorted_indices``, ``_has_canonical_format``; False may be said of any."""
    steps = np.diff(indices)
    starts = indptr[1:-1]
    between = starts[(starts > 0) & (starts < len(indices))] - 1
    within = np.ones(len(steps), bool)
    within[between] = False
    for claim, least in (("_has_sorted_indices", 0), ("_has_canonical_format", 1)):
        if claims.get(claim) and bool((steps[within] < least).any()):
            return f"{claim[1:]} set where its indices say otherwise"
    return None


def _bad_index(index: Array, n: int) -> str | None:
    if index.dtype.kind not in "iu":
        return f"an index array of {index.dtype}"
    if n > np.iinfo(index.dtype).max:
        return f"an axis of {n:,} that {index.dtype} cannot index"
    if index.size and (index.min() < 0 or index.max() >= n):
        return f"an index out of an axis of {n:,}"
    return None


def too_large(shape: Sequence[int]) -> bool:
    """Whether the items of a dense array of this shape could not be counted by an index."""
    return math.prod(shape) > np.iinfo(np.int64).max
