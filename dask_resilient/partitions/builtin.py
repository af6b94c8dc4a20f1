"""The codecs that come with the package, one row each."""

from __future__ import annotations

from dask_resilient.partitions.table import register
from dask_resilient.protocols import Codec

__all__: list[str] = []


def _arrays() -> Codec:
    from dask_resilient.partitions.arrays import ArrayCodec

    return ArrayCodec()


def _tables() -> Codec:
    from dask_resilient.partitions.frames import TableCodec

    return TableCodec()


register("numpy.ndarray", _arrays, [("numpy", "ndarray")])
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
