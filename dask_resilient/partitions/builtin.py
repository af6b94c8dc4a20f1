"""The codecs that come with the package, one row each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dask_resilient.partitions.atoms import KINDS
from dask_resilient.partitions.table import register
from dask_resilient.protocols import Codec

__all__ = ["DEVICE_CODECS", "device_nbytes"]

DEVICE_CODECS = frozenset({"cudf", "cupy.ndarray", "numba.cuda"})
"""Codecs whose values take memory on a device when they are restored."""


def device_nbytes(codec: str, schema: Mapping[str, Any], nbytes: int) -> int:
    """Give how many bytes of device memory restoring a partition takes; never more than it has bytes.

    Parameters
    ----------
    codec, schema, nbytes
        As they stand in the receipt: a damaged schema gives a number too.
    """
    if codec in DEVICE_CODECS:
        return nbytes
    parts = schema.get("parts") if codec == "python" else None
    if not isinstance(parts, list):
        return 0
    sizes = [part.get("nbytes") for part in parts if isinstance(part, dict) and str(part.get("codec")) in DEVICE_CODECS]
    return min(nbytes, sum(size for size in sizes if type(size) is int and size > 0))


def _arrays() -> Codec:
    from dask_resilient.partitions.arrays import ArrayCodec

    return ArrayCodec()


def _numba() -> Codec:
    from dask_resilient.partitions.device import NUMBA, DeviceArrayCodec

    return DeviceArrayCodec(NUMBA)


def _cupy() -> Codec:
    from dask_resilient.partitions.device import CUPY, DeviceArrayCodec

    return DeviceArrayCodec(CUPY)


def _cudf() -> Codec:
    from dask_resilient.partitions.cudf_tables import CudfCodec

    return CudfCodec()


def _spilled() -> Codec:
    from dask_resilient.partitions.spilled import SpilledCodec

    return SpilledCodec()


def _masked() -> Codec:
    from dask_resilient.partitions.masked import MaskedCodec

    return MaskedCodec()


def _scipy() -> Codec:
    from dask_resilient.partitions.scipy_sparse import ScipySparseCodec

    return ScipySparseCodec()


def _pydata() -> Codec:
    from dask_resilient.partitions.pydata_sparse import PydataSparseCodec

    return PydataSparseCodec()


def _structures() -> Codec:
    from dask_resilient.partitions.structures import StructureCodec

    return StructureCodec()


def _tables() -> Codec:
    from dask_resilient.partitions.frames import TableCodec

    return TableCodec()


_INDEXES = {
    "Index": "base",
    "RangeIndex": "range",
    "MultiIndex": "multi",
    "DatetimeIndex": "datetimes",
    "TimedeltaIndex": "timedeltas",
    "PeriodIndex": "period",
    "IntervalIndex": "interval",
    "CategoricalIndex": "category",
}
"""The indexes of pandas, and in which module pandas 2 defines each."""

register("numpy.ndarray", _arrays, [("numpy", "ndarray")])
register("numpy.ma", _masked, [("numpy.ma", "MaskedArray"), ("numpy.ma.core", "MaskedArray")])
register(
    "scipy.sparse",
    _scipy,
    [
        (f"scipy.sparse._{kind}", f"{kind}_{form}")
        for kind in ("csr", "csc", "coo", "bsr", "dia", "dok", "lil")
        for form in ("array", "matrix")
    ],
)
register(
    "sparse",
    _pydata,
    [
        ("sparse.numba_backend._coo.core", "COO"),
        ("sparse.numba_backend._compressed.compressed", "GCXS"),
        ("sparse.numba_backend._dok", "DOK"),
        # Before sparse 0.16.
        ("sparse._coo.core", "COO"),
        ("sparse._compressed.compressed", "GCXS"),
        ("sparse._dok", "DOK"),
    ],
)
register("python", _structures, [*KINDS, ("builtins", "list"), ("builtins", "tuple"), ("builtins", "dict")])
register("numba.cuda", _numba, [("numba.cuda.cudadrv.devicearray", "DeviceNDArray")])
# Recent CuPy names the public module, older ones the defining one.
register("cupy.ndarray", _cupy, [("cupy", "ndarray"), ("cupy._core.core", "ndarray")])
register("dask_cuda.spilled", _spilled, [("dask_cuda.device_host_file", "DeviceSerialized")])
register(
    "pandas",
    _tables,
    # pandas 2 names the defining module, pandas 3 the public one.
    [
        *(("pandas", name) for name in ("DataFrame", "Series", *_INDEXES)),
        ("pandas.core.frame", "DataFrame"),
        ("pandas.core.series", "Series"),
        *((f"pandas.core.indexes.{module}", name) for name, module in _INDEXES.items()),
    ],
)
register(
    "cudf",
    _cudf,
    [
        ("cudf.core.dataframe", "DataFrame"),
        ("cudf.core.series", "Series"),
        ("cudf.core.multiindex", "MultiIndex"),
        *(("cudf.core.index", name) for name in _INDEXES if name not in ("MultiIndex", "PeriodIndex")),
    ],
)
