"""cuDF columns as Arrow streams on the host, and back. Not yet run on a GPU; see the codec in `cudf_tables`.

Which dtypes are exact stands here, in one function. What is stored is what `to_arrow` gives; the dtype is stored beside
it, and a restored column with any other is refused: Arrow and cuDF change their minds from release to release.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from dask_resilient.errors import Foreign, Unreachable
from dask_resilient.partitions.buffers import Packer, Unpacker
from dask_resilient.partitions.dtypes import dtype_from_json, dtype_to_json
from dask_resilient.partitions.inexact import Inexact
from dask_resilient.partitions.streams import pack_stream, unpack_stream

__all__ = ["buffers_of", "describe", "pack_column", "read_column", "same_dtype"]

Spec = dict[str, Any]
"""Description of one column, JSON types only."""

_NUMBERS = frozenset(
    np.dtype(name).str
    for name in (
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32", "float64"),
        *(f"{kind}[{unit}]" for kind in ("M8", "m8") for unit in ("s", "ms", "us", "ns")),
    )
)

_DECIMALS = ("Decimal32Dtype", "Decimal64Dtype", "Decimal128Dtype")


def pack_column(column: Any, out: Packer) -> Spec:
    """Copy a column to the host, describe it, and append its stream.

    Raises
    ------
    Inexact
        If its dtype, or what Arrow makes of it, would not come back the same.
    """
    dtype = describe(column.dtype)
    values = column.to_arrow()
    if "interval" in dtype:
        values = values.storage
    if "decimal" in dtype and values.type != column.dtype.to_arrow():
        raise Inexact(f"has dtype {column.dtype!r}, and Arrow makes {values.type} of it")
    if _has_null_type(values.type):
        raise Inexact(f"has dtype {column.dtype!r} and holds only nulls, or no rows, somewhere: Arrow forgets of what")
    return {"dtype": dtype, **pack_stream(values, out)}


def read_column(spec: Mapping[str, Any], data: Unpacker) -> Any:
    """Give the Arrow array of a column, on the host; chunks joined, because cuDF reads dictionaries of chunks anew.

    Raises
    ------
    Foreign
        If there is no such column.
    """
    import pyarrow as pa

    chunks = unpack_stream(spec, data).chunks
    if len(chunks) != 1:
        raise Foreign(f"the stream of a column holds {len(chunks)} batches")
    closed = spec["dtype"].get("closed") if "interval" in spec["dtype"] else None
    if closed is None:
        return chunks[0]
    import cudf

    kind = cudf.IntervalDtype(dtype_from_json(spec["dtype"]["interval"]), closed).to_arrow()
    return pa.ExtensionArray.from_storage(kind, chunks[0])


def describe(dtype: Any) -> Spec:
    """Describe a dtype whose columns come back exactly, in JSON types.

    Raises
    ------
    Inexact
        If they do not, or nobody knows.
    """
    import cudf

    name = type(dtype).__name__
    if isinstance(dtype, np.dtype):
        if dtype.str in _NUMBERS:
            return {"numpy": dtype_to_json(dtype)}
    elif name in _DECIMALS:
        return {"decimal": name, "precision": int(dtype.precision), "scale": int(dtype.scale)}
    elif name in ("ListDtype", "StructDtype"):
        return {"nested": repr(dtype)}
    elif name == "StringDtype" and dtype == cudf.dtype("str"):
        return {"string": repr(dtype)}
    elif name == "CategoricalDtype" and dtype.ordered is not None:
        return {"categories": describe(dtype.categories.dtype), "ordered": bool(dtype.ordered)}
    elif name == "IntervalDtype" and isinstance(dtype.subtype, np.dtype) and dtype.closed is not None:
        return {"interval": describe(dtype.subtype)["numpy"], "closed": dtype.closed}
    raise Inexact(f"has dtype {dtype!r}")


def same_dtype(found: Any, spec: Mapping[str, Any]) -> None:
    """Check that a restored column has the dtype that was stored.

    Raises
    ------
    Unreachable
        If cuDF makes another one of it here.
    """
    import cudf

    try:
        described: Any = describe(found)
    except Inexact:
        described = repr(found)
    if described != spec["dtype"]:
        raise Unreachable(
            f"cuDF {cudf.__version__} makes dtype {described!r} here of a column that was {spec['dtype']!r}; "
            "load it with the cuDF that stored it"
        )


def buffers_of(column: Any) -> Iterator[Any]:
    """Give the buffers of a column of cuDF and of its children, without a look at where they are."""
    yield from _buffers(column.plc_column)


def _buffers(column: Any) -> Iterator[Any]:
    yield from (buffer for buffer in (column.data(), column.null_mask()) if buffer is not None)
    for child in column.children():
        yield from _buffers(child)


def _has_null_type(kind: Any) -> bool:
    import pyarrow as pa

    if pa.types.is_null(kind):
        return True
    if pa.types.is_dictionary(kind):
        return _has_null_type(kind.value_type)
    return any(_has_null_type(kind.field(i).type) for i in range(kind.num_fields))
