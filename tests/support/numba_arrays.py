"""Arrays of `numba.cuda` on a fake GPU: in any layout, and read back without the code under test or numba's own.

The memory of a fake device is memory of this process, so `image` looks at it directly.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

ALIGNED = np.dtype([("a", "<i2"), ("b", "f8")], align=True)
NESTED = np.dtype([("p", ALIGNED, (2, 3)), ("s", "S3"), ("raw", "V5")])

LAYOUTS = {
    "C": lambda: np.arange(24.0).reshape(2, 3, 4),
    "F": lambda: np.arange(6).reshape(2, 3, order="F"),
    "axes exchanged": lambda: np.arange(24).reshape(2, 3, 4).transpose(1, 2, 0),
    "0-d": lambda: np.array(1.5),
    "one item": lambda: np.ones((1, 1, 1), "f2"),
    "zero length": lambda: np.zeros((0, 3), "f4"),
    "zero length, F": lambda: np.zeros((3, 0, 2), "i8", order="F"),
    "every other": lambda: np.arange(24).reshape(4, 6)[::2, ::3],
    "every other, F": lambda: np.arange(24).reshape(4, 6)[::2, ::3].T,
    "backwards": lambda: np.arange(24).reshape(4, 6)[::-1, ::-2],
    "one axis backwards": lambda: np.arange(24).reshape(4, 6)[:, ::-1],
    "unaligned": lambda: np.frombuffer(bytes(range(33)), "u1")[1:].view("f8"),
    "repeated": lambda: np.broadcast_to(np.arange(3.0), (10**6, 3)),
    "repeated, 0-d": lambda: np.broadcast_to(np.array(2.5), (2, 3)),
    "repeated backwards": lambda: np.broadcast_to(np.arange(6)[::-2], (4, 3)),
    "NaN payloads and -0.0": lambda: np.array([0x7FF8_0000_0000_1234, 0x8000_0000_0000_0000], "u8").view("f8"),
    "aligned fields": lambda: np.ones(3, ALIGNED),
    "nested fields": lambda: np.zeros((2, 2), NESTED),
    "a field of each": lambda: np.arange(12, dtype="i4").view([("a", "i4"), ("b", "i4")])["b"],
}

DTYPES = [
    *("?", "i1", "i2", "i4", "i8", "q", "u1", "u2", "u4", "u8", "Q", "f2", "f4", "f8", "c8", "c16", "g", "G"),
    *(">i4", ">f8", "S3", "U2", "V7", "M8[25s]", "m8[ns]", "M8"),
]


def on_device(host: np.ndarray[Any, Any]) -> Any:
    """Give an array of numba in the same layout: strides, gaps, and offset of the first item included."""
    from numba import cuda
    from numba.cuda.cudadrv.devicearray import DeviceNDArray

    if not host.nbytes:
        return DeviceNDArray(host.shape, host.strides, host.dtype)
    low, high = np.lib.array_utils.byte_bounds(host)
    memory = np.frombuffer((ctypes.c_ubyte * (high - low)).from_address(low), np.uint8)
    whole = cuda.to_device(memory)  # numba frees memory that no array has while a view of it is made
    return DeviceNDArray(host.shape, host.strides, host.dtype, gpu_data=whole.gpu_data.view(host.ctypes.data - low))


def pointer(array: Any) -> int:
    """Give the address of the first item."""
    return int(array.__cuda_array_interface__["data"][0])


def image(array: Any) -> np.ndarray[Any, Any]:
    """Show the memory of an array, with its own shape, dtype and strides."""
    if not array.size * array.dtype.itemsize:
        return np.ndarray(array.shape, array.dtype)
    reach = [stride * (n - 1) for n, stride in zip(array.shape, array.strides, strict=True)]
    before = -sum(r for r in reach if r < 0)
    nbytes = before + sum(r for r in reach if r > 0) + array.dtype.itemsize
    memory = (ctypes.c_ubyte * nbytes).from_address(pointer(array) - before)
    return np.ndarray(array.shape, array.dtype, memory, before, array.strides)


def assert_same(restored: Any, original: Any) -> None:
    """Fail unless two arrays are equal bit by bit, of the same type and dtype, with their axes in the same order."""
    from numba.cuda.cudadrv.devicearray import DeviceNDArray

    assert type(restored) is DeviceNDArray
    assert restored.dtype == original.dtype
    assert repr(restored.dtype) == repr(original.dtype)
    assert restored.dtype.char == original.dtype.char
    assert restored.shape == original.shape
    mine, its = image(restored), image(original)
    assert np.ascontiguousarray(mine).tobytes() == np.ascontiguousarray(its).tobytes()
    if original.size:
        assert [s == 0 for s in restored.strides] == [s == 0 for s in original.strides]
        steps = [i for i, n in enumerate(original.shape) if n > 1]
        assert sorted(steps, key=lambda i: -abs(restored.strides[i])) == sorted(
            steps, key=lambda i: -abs(original.strides[i])
        )
