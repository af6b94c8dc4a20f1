"""The codecs that come with the package, one row each."""

from __future__ import annotations

from dask_resilient.partitions.table import register
from dask_resilient.protocols import Codec

__all__ = ["DEVICE_CODECS"]

DEVICE_CODECS = frozenset({"cupy.ndarray", "numba.cuda"})
"""Codecs whose values take memory on a device when they are restored."""


def _arrays() -> Codec:
    from dask_resilient.partitions.arrays import ArrayCodec

    return ArrayCodec()


def _numba() -> Codec:
    from dask_resilient.partitions.device import NUMBA, DeviceArrayCodec

    return DeviceArrayCodec(NUMBA)


def _cupy() -> Codec:
    from dask_resilient.partitions.device import CUPY, DeviceArrayCodec

    return DeviceArrayCodec(CUPY)


def _spilled() -> Codec:
    from dask_resilient.partitions.spilled import SpilledCodec

    return SpilledCodec()


def _tables() -> Codec:
    from dask_resilient.partitions.frames import TableCodec

    return TableCodec()


register("numpy.ndarray", _arrays, [("numpy", "ndarray")])
register("numba.cuda", _numba, [("numba.cuda.cudadrv.devicearray", "DeviceNDArray")])
# Recent CuPy names the public module, older ones the defining one.
register("cupy.ndarray", _cupy, [("cupy", "ndarray"), ("cupy._core.core", "ndarray")])
register("dask_cuda.spilled", _spilled, [("dask_cuda.device_host_file", "DeviceSerialized")])
register(
    "pandas",
    _tables,
    # pandas 2 names the defining module, pandas 3 the public one.
    [
        ("pandas", "DataFrame"),
        ("pandas", "Series"),
        ("pandas.core.frame", "DataFrame"),
        ("pandas.core.series", "Series"),
    ],
)
