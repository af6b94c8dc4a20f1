"""Arrays on a CUDA device, of any library that is in the table below.

A value is copied to the host inside its task, in one copy of the memory that it spans, and from there on it is a NumPy
array with the same items and strides: what can be stored, and how, is decided in
:mod:`~dask_resilient.partitions.arrays`. It comes back as an array of the library that it came from, on the device that
is current in the task that loads it, with the same order of the axes. Never a host array instead.

The copies are made by the CUDA driver, the same way for every library; a library only allocates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from dask_resilient.core.outcome import Declined
from dask_resilient.errors import Unreachable
from dask_resilient.partitions import driver
from dask_resilient.partitions.arrays import restore_array, stage_array
from dask_resilient.partitions.inexact import Inexact
from dask_resilient.partitions.pinned import POOL
from dask_resilient.protocols import Payload, Staged

__all__ = ["CUPY", "NUMBA", "DeviceArrayCodec", "Library", "span"]

SPARSE = 2
"""A span this many times larger than the items in it is not copied as a whole, if it is larger than `SMALL` too."""

SMALL = 2**20
"""A span of up to this many bytes is copied, however sparse it is."""


class DeviceArray(Protocol):
    """What the arrays of all libraries in the table have."""

    __cuda_array_interface__: Mapping[str, Any]
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    """In full, where the interface would only say that it has fields."""
    strides: tuple[int, ...]
    """In bytes. The interface of numba-cuda 0.30 names none for an array that repeats its items along an axis."""


@dataclass(frozen=True, slots=True)
class Library:
    """How one library makes arrays on the device that is current."""

    codec: str
    """Name of its codec."""
    empty: Callable[[tuple[int, ...], np.dtype[Any], tuple[int, ...], int], DeviceArray]
    """Allocate an array of a shape, dtype, strides, and bytes of memory."""
    compact: Callable[[DeviceArray], DeviceArray] | None
    """Copy an array on its device, without gaps and in the same order of the axes; None = needs a compiler."""


def _numba(shape: tuple[int, ...], dtype: np.dtype[Any], strides: tuple[int, ...], nbytes: int) -> DeviceArray:  # noqa: ARG001
    from numba import cuda

    array: DeviceArray = cuda.device_array(shape, dtype, strides)
    return array


def _cupy(shape: tuple[int, ...], dtype: np.dtype[Any], strides: tuple[int, ...], nbytes: int) -> DeviceArray:
    import cupy

    array: DeviceArray = cupy.ndarray(shape, dtype, cupy.cuda.alloc(nbytes), strides)
    return array


def _cupy_compact(value: Any) -> DeviceArray:
    array: DeviceArray = value.copy(order="K")
    return array


NUMBA = Library("numba.cuda", _numba, None)
CUPY = Library("cupy.ndarray", _cupy, _cupy_compact)


class DeviceArrayCodec:
    """Stages and restores the arrays of one library.

    Parameters
    ----------
    library
        Which.
    """

    def __init__(self, library: Library) -> None:
        self.name = library.codec
        self._library = library

    def stage(self, value: DeviceArray) -> Staged | Declined:
        """Copy an array to the host and stage it, or say why that cannot be done, or not exactly."""
        try:
            return stage_array(self.name, self._to_host(value))
        except Inexact as e:
            return Declined(f"the array {e}")
        except driver.DriverError as e:
            return Declined(f"the array could not be copied from its device: {e}")

    def _to_host(self, value: DeviceArray) -> npt.NDArray[Any]:
        pointer = _pointer(value)
        shape, dtype, strides = value.shape, value.dtype, value.strides
        if not math.prod(shape) * dtype.itemsize:
            return np.ndarray(shape, dtype)
        before, nbytes = span(shape, strides, dtype.itemsize)
        if nbytes > SMALL and nbytes > SPARSE * _distinct(shape, strides) * dtype.itemsize:
            return self._to_host(self._compact(value, nbytes))
        device = driver.device_of(pointer)
        memory = POOL.take(nbytes, device)
        driver.read(device, pointer - before, memory)
        return np.ndarray(shape, dtype, memory, before, strides)

    def _compact(self, value: DeviceArray, nbytes: int) -> DeviceArray:
        sparse = (
            f"is a view that spans {nbytes:,} bytes for the {_distinct(value.shape, value.strides):,} items it shows"
        )
        if self._library.compact is None or 0 in value.strides:
            raise Inexact(f"{sparse}; copy it in the task that returns it")
        compact = self._library.compact(value)
        if span(compact.shape, compact.strides, compact.dtype.itemsize)[1] >= nbytes:
            raise Inexact(f"{sparse}, and its copy is no smaller; make it contiguous in the task that returns it")
        return compact

    def restore(self, schema: Mapping[str, Any], payload: Payload) -> DeviceArray:
        """Give the array back on the device that is current in this thread.

        Raises
        ------
        Foreign
            If the schema describes no array of this size.
        Unreachable
            If the library, the device or memory on it is missing here.
        """
        host = restore_array(schema, payload)
        array = None
        try:
            array = self._library.empty(host.shape, host.dtype, host.strides, payload.nbytes)
            if payload.nbytes:
                pointer = _pointer(array)
                driver.write(driver.device_of(pointer), pointer, payload)
        except Exception as e:
            array = None  # the traceback would keep its memory
            # The payload is intact and describes an array: whatever fails now is missing on this worker.
            raise Unreachable(f"no array of {self.name!r} could be made of {payload.nbytes:,} bytes here: {e}") from e
        return array


def span(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> tuple[int, int]:
    """Give how many bytes before its first item the memory of an array begins, and how many it spans."""
    reach = [stride * (n - 1) for n, stride in zip(shape, strides, strict=True)]
    before = -sum(r for r in reach if r < 0)
    return before, before + sum(r for r in reach if r > 0) + itemsize


def _distinct(shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    return math.prod(n for n, stride in zip(shape, strides, strict=True) if stride)


def _pointer(value: DeviceArray) -> int:
    """Read the interface of an array: where its first item is.

    Raises
    ------
    Inexact
        If the interface says more than is understood here, or something else than the array.
    """
    interface = value.__cuda_array_interface__
    if interface["version"] < 2:  # noqa: PLR2004
        raise Inexact(
            f"has version {interface['version']!r} of __cuda_array_interface__; version 2 says strides clearly"
        )
    if interface.get("mask") is not None:
        raise Inexact("has a mask; fill it in the task that returns it")
    said = tuple(interface["shape"]), interface["typestr"]
    if said != (tuple(value.shape), value.dtype.str):
        raise Inexact(f"of shape {value.shape!r} and dtype {value.dtype} calls itself {said!r}")
    return int(interface["data"][0])
