"""Arrow arrays as IPC streams in a payload. Loaded lazily, with pyarrow only where it is used."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dask_resilient.errors import Foreign
from dask_resilient.partitions.buffers import Packer, Unpacker
from dask_resilient.partitions.inexact import Inexact

__all__ = ["pack_stream", "unpack_stream"]

_EXTENSION = "extension<"
"""In the text of a type, also deep inside of it, where another library has a say in it."""


def pack_stream(values: Any, out: Packer) -> dict[str, Any]:
    """Append an Arrow array, or a chunked one, as a stream of one column, and say where it lies.

    Raises
    ------
    Inexact
        If its type is an extension: reading such a type runs code of other libraries.
    """
    import pyarrow as pa

    if _EXTENSION in str(values.type):
        raise Inexact(f"has the Arrow type {values.type}")
    chunks = values.chunks if isinstance(values, pa.ChunkedArray) else [values]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, pa.schema([("", values.type)])) as writer:
        for chunk in chunks:  # also those without rows: the dictionary of a column would be lost with them
            writer.write_batch(pa.RecordBatch.from_arrays([chunk], names=[""]))
    return {"type": str(values.type), "stream": out.add(memoryview(sink.getvalue()).cast("B"))}


def unpack_stream(spec: Mapping[str, Any], data: Unpacker) -> Any:
    """Give the chunked array back, as views of the payload.

    Raises
    ------
    Foreign
        If the stream does not hold one column of the type that the schema says.
    """
    import pyarrow as pa

    table = pa.ipc.open_stream(pa.py_buffer(data.take(spec["stream"]))).read_all()
    table.validate(full=True)
    kind = str(table.column(0).type) if table.num_columns == 1 else None
    if kind is None or kind != spec["type"] or _EXTENSION in kind:
        raise Foreign(f"the Arrow stream does not hold one column of type {spec['type']!r}")
    return table.column(0)
