"""The one door to the CUDA driver: where a pointer lives, blocking copies, pinned host memory.

By ctypes, and not through cupy, numba or cuda-bindings: the arrays of every library then take the same path, none of
them has to be installed for the others, and no version of a CUDA toolkit is asked for. The functions used here have
been the same since CUDA 9. A call gives the GIL back while it runs.

All libraries use the primary context of a device, so that is the one that is made current, and only for the call: a
thread finds its own context again afterwards.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Iterator
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p

import numpy as np
import numpy.typing as npt

from dask_resilient.errors import ResilienceError

__all__ = ["DriverError", "device_of", "free_pinned", "pinned", "read", "write"]

LIBRARY = "libcuda.so.1"

_FUNCTIONS = {
    "cuInit": (c_uint,),
    "cuGetErrorName": (c_int, POINTER(c_char_p)),
    "cuDevicePrimaryCtxRetain": (POINTER(c_void_p), c_int),
    "cuCtxPushCurrent_v2": (c_void_p,),
    "cuCtxPopCurrent_v2": (POINTER(c_void_p),),
    "cuCtxSynchronize": (),
    "cuPointerGetAttribute": (c_void_p, c_int, c_uint64),
    "cuMemcpyDtoH_v2": (c_void_p, c_uint64, c_size_t),
    "cuMemcpyHtoD_v2": (c_uint64, c_void_p, c_size_t),
    "cuMemHostAlloc": (POINTER(c_void_p), c_size_t, c_uint),
    "cuMemFreeHost": (c_void_p,),
}

_DEVICE_ORDINAL = 9
"""CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL."""

_PORTABLE = 1
"""CU_MEMHOSTALLOC_PORTABLE: pinned for every context, not only for the one that is current."""


class DriverError(ResilienceError):
    """The CUDA driver refused a call, or there is none; says which call, the code, and its name."""


def device_of(pointer: int) -> int:
    """Give the ordinal of the device that holds a pointer."""
    ordinal = c_int(-1)
    _call("cuPointerGetAttribute", byref(ordinal), _DEVICE_ORDINAL, pointer)
    return ordinal.value


def read(device: int, pointer: int, into: npt.NDArray[np.uint8]) -> None:
    """Copy from the device into host memory, after all that was queued on the device has ended.

    All, and not only what was queued on the stream that an array names: CuPy names the stream that is current where the
    array is looked at, numba one that the array was bound to; neither has to be the one that writes it now. A stream
    that waits for no other would be missed, and what was there before would be stored as the value. The task holds the
    value, so what is waited for is mostly its own work.
    """
    with _current(device):
        _call("cuCtxSynchronize")
        _call("cuMemcpyDtoH_v2", into.ctypes.data, pointer, into.nbytes)


def write(device: int, pointer: int, data: npt.NDArray[np.uint8]) -> None:
    """Copy host memory to the device; when this returns, every stream sees it.

    The device is synchronised before, because a memory pool may give out memory that a kernel on another stream still
    reads, and after, because a copy from pageable memory may return before it has reached the device.
    """
    with _current(device):
        _call("cuCtxSynchronize")
        _call("cuMemcpyHtoD_v2", pointer, data.ctypes.data, data.nbytes)
        _call("cuCtxSynchronize")


def pinned(device: int, nbytes: int) -> int:
    """Allocate pinned host memory, which a device copies to at full speed, and give its address."""
    address = c_void_p()
    with _current(device):
        _call("cuMemHostAlloc", byref(address), nbytes, _PORTABLE)
    assert address.value is not None
    return address.value


def free_pinned(device: int, address: int) -> None:
    """Free what `pinned` gave for the same device; may be called from any thread."""
    with _current(device):
        _call("cuMemFreeHost", address)


@contextlib.contextmanager
def _current(device: int) -> Iterator[None]:
    _call("cuCtxPushCurrent_v2", _context(device))
    try:
        yield
    finally:
        _call("cuCtxPopCurrent_v2", byref(c_void_p()))


@functools.cache
def _context(device: int) -> int | None:
    """Retain the primary context of a device, once and until the process ends."""
    context = c_void_p()
    _call("cuDevicePrimaryCtxRetain", byref(context), device)
    return context.value


@functools.cache
def _library() -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(LIBRARY)
    except OSError as e:
        raise DriverError(f"{LIBRARY} cannot be loaded ({e}): there is no NVIDIA driver on this machine") from e
    for name, types in _FUNCTIONS.items():
        function = getattr(library, name)
        function.argtypes, function.restype = types, c_int
    _check(library, "cuInit", library.cuInit(0))
    return library


def _call(name: str, *arguments: object) -> None:
    library = _library()
    _check(library, name, getattr(library, name)(*arguments))


def _check(library: ctypes.CDLL, name: str, code: int) -> None:
    if code == 0:
        return
    text = c_char_p()
    library.cuGetErrorName(code, byref(text))
    known = text.value.decode() if text.value else "an error this driver has no name for"
    raise DriverError(f"{name.removesuffix('_v2')} returned {code} ({known})")
