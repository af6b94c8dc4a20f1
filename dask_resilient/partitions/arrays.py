"""NumPy arrays: their own memory, staged without a copy where it is contiguous in any order of the axes.

What comes back equals the array bit by bit, NaN payloads included, with the same order of the axes in memory. It is
writable and aligned, and does not own its memory. An array that repeats its items along an axis (stride 0, as the
blocks of ``dask.array.ones``) is stored once and comes back as such a read-only view.

Bool, integer, float and complex numbers in C order are stored under their own Zarr data type and shape, so that any
Zarr reader opens them; everything else as flat bytes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_resilient.core.outcome import Declined
from dask_resilient.errors import Foreign
from dask_resilient.partitions.buffers import cut, digest, even_step, flat, stage_bytes
from dask_resilient.partitions.dtypes import dtype_from_json, dtype_to_json
from dask_resilient.partitions.inexact import Inexact
from dask_resilient.protocols import Payload, Staged

__all__ = ["ArrayCodec", "lay_out", "restore_array", "stage_array"]

Array = npt.NDArray[Any]


class ArrayCodec:
    """Stages and restores `numpy.ndarray`."""

    name = "numpy.ndarray"

    def stage(self, value: Array) -> Staged | Declined:
        """Stage an array, or say why that cannot be exact."""
        return stage_array(self.name, value)

    def restore(self, schema: Mapping[str, Any], payload: Payload) -> Array:
        """Give the array back as a view of the payload."""
        return restore_array(schema, payload)


def stage_array(codec: str, value: Array) -> Staged | Declined:
    """Stage an array, or the image of one in host memory, under the name of a codec."""
    try:
        schema, raw = lay_out(value)
    except Inexact as e:
        return Declined(f"the array {e}")
    if not (value.flags.c_contiguous and value.ndim and value.size and value.dtype.str in _ZARR):
        return stage_bytes(codec, schema, [raw])
    row_nbytes = value.nbytes // len(value)
    step = even_step(len(value), row_nbytes)
    chunks = cut([raw], step * row_nbytes)
    grid = (step, *value.shape[1:])
    return Staged(codec, schema, _ZARR[value.dtype.str], value.shape, grid, chunks, digest(chunks), value.nbytes)


def lay_out(value: Array) -> tuple[dict[str, Any], memoryview]:
    """Describe an array for `restore_array`, and show its bytes.

    Raises
    ------
    Inexact
        If it cannot come back exactly.
    """
    dtype = dtype_to_json(value.dtype)
    core = _core(value)
    axes = _memory_order(core)
    ordered = core.transpose(axes)
    schema = {"dtype": dtype, "shape": list(value.shape), "core": list(ordered.shape), "axes": list(axes)}
    return schema, flat(ordered)


def restore_array(schema: Mapping[str, Any], payload: Payload) -> Array:
    """Give an array back as a view of the payload; its strides are those it had, without gaps.

    Raises
    ------
    Foreign
        If the schema describes no array of this size.
    """
    dtype = dtype_from_json(schema["dtype"])
    shape, core, axes = (_naturals(schema[key]) for key in ("shape", "core", "axes"))
    if math.prod(core) * dtype.itemsize != payload.nbytes:
        raise Foreign(f"{payload.nbytes} bytes are no array of shape {core!r} and dtype {dtype}")
    ordered: Array = np.ndarray(core, dtype, buffer=payload)
    array = ordered.transpose(np.argsort(axes)) if sorted(axes) == list(range(len(core))) else None
    if array is None:
        raise Foreign(f"{axes!r} is no order of {len(core)} axes")
    return array if array.shape == shape else np.broadcast_to(array, shape)


_ZARR = {
    np.dtype(name).newbyteorder("<").str: name
    for name in (
        "bool",
        *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
        *("float16", "float32", "float64", "complex64", "complex128"),
    )
}
"""Zarr v3 data types that are exact with little-endian bytes and that every reader knows."""


def _core(array: Array) -> Array:
    """Give the array without repetition along an axis, its items side by side in memory; a copy only if they are not.

    Raises
    ------
    Inexact
        If its items overlap in memory otherwise: the copy could take a hundred times what the worker counts for it.
    """
    core = array
    if array.nbytes:
        core = array[(..., *(slice(0, 1) if stride == 0 else slice(None) for stride in array.strides))]
    order = _memory_order(core)
    if core.transpose(order).flags.c_contiguous:
        return core
    extent = core.itemsize + sum(abs(s) * (n - 1) for n, s in zip(core.shape, core.strides, strict=True))
    if core.nbytes > extent:
        raise Inexact("overlaps itself in memory (a sliding window?); copy it in the task that returns it")
    if core.dtype.names is None:
        return core.copy(order="K")
    # Field by field NumPy would leave the padding between them as it finds the memory: something of somebody else's.
    whole: Array = core.view(f"V{core.itemsize}").copy(order="K")
    return whole.view(core.dtype)


def _memory_order(array: Array) -> tuple[int, ...]:
    """Give the axes from the slowest to the fastest in memory; those of an array in C order as they are."""
    axes = range(array.ndim)
    if array.flags.c_contiguous:
        return tuple(axes)
    return tuple(sorted(axes, key=lambda i: (-abs(array.strides[i]), i)))


def _naturals(numbers: Any) -> tuple[int, ...]:
    if not isinstance(numbers, list) or any(type(n) is not int or n < 0 for n in numbers):
        raise Foreign(f"{numbers!r} is no list of natural numbers")
    return tuple(numbers)
