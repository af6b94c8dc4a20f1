"""cuDF tables and indexes, by way of Arrow: each column one IPC stream at a 64-byte boundary of the payload.

**Not yet run on a GPU.** That every name of cuDF, pylibcudf and CuPy that is called here exists, with these parameters,
is checked against the real packages without a driver; what the calls do, with a double on the CPU.

A table is copied to the host inside its task. While that goes on its buffers are held, so that cuDF's spill manager
moves none of them, and the whole device is synchronised first. A table of which a buffer lies on the host already,
spilled, is refused: reading it through cuDF would move it back to a device that was full. What comes back lies on the
device that is current in the task that loads it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from dask_resilient.core.outcome import Declined
from dask_resilient.errors import Foreign, LoadError, Unreachable
from dask_resilient.partitions import labels
from dask_resilient.partitions.buffers import Packer, Unpacker, stage_bytes
from dask_resilient.partitions.cudf_columns import Spec, buffers_of, pack_column, read_column, same_dtype
from dask_resilient.partitions.indexes import pack_freq, pack_index, unpack_index
from dask_resilient.partitions.inexact import Inexact
from dask_resilient.protocols import Payload, Staged

__all__ = ["CudfCodec"]

_INDEXES = ("Index", "DatetimeIndex", "TimedeltaIndex", "CategoricalIndex", "IntervalIndex")
"""Indexes of one column, by the name of their type."""


class CudfCodec:
    """Stages and restores `cudf.DataFrame`, `cudf.Series` and `cudf.Index`."""

    name = "cudf"

    def stage(self, value: Any) -> Staged | Declined:
        """Copy a table to the host and stage it, or say what in it cannot be exact."""
        out = Packer()
        try:
            with _held(value):
                schema = _pack(value, out)
        except Inexact as e:
            return Declined(str(e))
        return stage_bytes(self.name, schema, out.buffers)

    def restore(self, schema: Mapping[str, Any], payload: Payload) -> Any:
        """Give the table back on the device that is current in this thread.

        Raises
        ------
        Foreign
            If the schema describes no table of this size.
        Unreachable
            If cuDF, the device or memory on it is missing here, or cuDF makes something else of the columns.
        """
        data = Unpacker(payload)
        host = _read(schema, data)
        data.finish()
        try:
            return _build(schema, host)
        except LoadError:
            raise
        except Exception as e:
            # The payload is intact and describes a table: whatever fails now is missing on this worker.
            raise Unreachable(f"cuDF could not make a table of {payload.nbytes:,} bytes here: {e!r}") from e


@contextlib.contextmanager
def _held(value: Any) -> Iterator[None]:
    """Keep every buffer of a table where it is, after all work on the device has ended.

    Raises
    ------
    Inexact
        If one lies on the host: cuDF has spilled it.
    """
    import cupy

    columns = list(_columns(value))
    with contextlib.ExitStack() as held:
        for column in columns:
            held.enter_context(column.access(mode="read", scope="internal"))
        # Asked only now: a held buffer cannot be spilled between the question and the copy. Holding moves nothing.
        if any(getattr(buffer.owner, "is_spilled", False) for column in columns for buffer in buffers_of(column)):
            raise Inexact("has a buffer that cuDF has spilled to the host; it is not moved back to be saved")
        cupy.cuda.runtime.deviceSynchronize()
        yield


def _columns(value: Any) -> Iterator[Any]:
    """Give all columns of a table, those of its index and of its categories included."""
    kind = type(value).__name__
    if kind in ("DataFrame", "Series"):
        yield from _columns(value.index)
    if kind == "RangeIndex":  # asking for its column would make one
        return
    for column in value._columns:
        yield column
        if type(column.dtype).__name__ == "CategoricalDtype":
            yield from _columns(column.dtype.categories)


def _pack(value: Any, out: Packer) -> Spec:
    kind = type(value).__name__
    if kind not in ("DataFrame", "Series"):
        return {"alone": _named("the index", _pack_index, value, out)}
    if not value.flags.allows_duplicate_labels:
        raise Inexact("has the flag allows_duplicate_labels = False, which cuDF cannot be given back")
    schema: Spec = {"index": _named("the index", _pack_index, value.index, out)}
    schema["attrs"] = (
        _named("attrs", lambda attrs, _: out.add(labels.dumps(attrs)), value.attrs, out) if value.attrs else None
    )
    if kind == "Series":
        schema["name"] = _named("the name of the series", lambda name, _: labels.to_json(name), value.name, out)
        names = [f"series {value.name!r}"]
    else:
        schema["columns"] = _named("the columns", pack_index, value.columns, out)
        names = [f"column {name!r}" for name in value.columns]
    schema["data"] = [_named(n, pack_column, column, out) for n, column in zip(names, value._columns, strict=True)]
    return schema


def _pack_index(index: Any, out: Packer) -> Spec:
    kind = type(index).__name__
    if kind == "RangeIndex":
        return {"range": [index.start, index.stop, index.step], "name": labels.to_json(index.name)}
    if kind == "MultiIndex":
        if index._levels is not None:
            raise Inexact("is a MultiIndex whose levels were given or asked for, and may have unused ones; reset it")
        names = [labels.to_json(name) for name in index.names]
        return {"levels": [pack_column(column, out) for column in index._columns], "names": names}
    if kind not in _INDEXES:
        raise Inexact(f"is a cudf.{kind}")
    freq = pack_freq(index.freq) if kind == "DatetimeIndex" else None  # cuDF has none for a TimedeltaIndex
    [column] = index._columns
    return {"kind": kind, "column": pack_column(column, out), "freq": freq, "name": labels.to_json(index.name)}


def _named(what: str, pack: Any, value: Any, out: Packer) -> Any:
    try:
        return pack(value, out)
    except Inexact as e:
        raise Inexact(f"{what} {e}") from e


def _read(schema: Mapping[str, Any], data: Unpacker) -> dict[str, Any]:
    """Read all that lies on the host, and check that it makes a table."""
    if "alone" in schema:
        return _read_index(schema["alone"], data)
    host: dict[str, Any] = {"index": _read_index(schema["index"], data)}
    host["data"] = [read_column(spec, data) for spec in schema["data"]]
    host["attrs"] = labels.loads(data.take(schema["attrs"]).tobytes()) if schema["attrs"] else {}
    if "columns" in schema:
        host["columns"] = unpack_index(schema["columns"], data)
    else:
        host["name"] = labels.from_json(schema["name"])
    width = len(host["columns"]) if "columns" in schema else 1
    lengths = {len(array) for array in host["data"]}
    if len(host["data"]) != width or lengths - {host["index"]["rows"]} or type(host["attrs"]) is not dict:
        raise Foreign(f"{len(host['data'])} columns of {sorted(lengths)} rows do not fit {width} labels and the index")
    return host


def _read_index(spec: Mapping[str, Any], data: Unpacker) -> dict[str, Any]:
    if "range" in spec:
        start, stop, step = spec["range"]
        if any(type(number) is not int for number in (start, stop, step)):
            raise Foreign(f"{spec['range']!r} is no range")
        rows = len(range(start, stop, step))
        return {"range": (start, stop, step), "name": labels.from_json(spec["name"]), "rows": rows}
    if "levels" in spec:
        names = [labels.from_json(name) for name in spec["names"]]
        levels = [read_column(each, data) for each in spec["levels"]]
        if len({len(level) for level in levels}) != 1 or len(names) != len(levels):
            raise Foreign(f"{len(levels)} levels of different length, or with {len(names)} names, are no index")
        return {"levels": levels, "names": names, "rows": len(levels[0])}
    array = read_column(spec["column"], data)
    if spec["kind"] not in _INDEXES:
        raise Foreign(f"{spec['kind']!r} is no kind of index")
    return {"array": array, "name": labels.from_json(spec["name"]), "rows": len(array)}


def _build(schema: Mapping[str, Any], host: Mapping[str, Any]) -> Any:
    import cudf

    if "alone" in schema:
        return _build_index(schema["alone"], host)
    every = [_build_series(array, spec) for array, spec in zip(host["data"], schema["data"], strict=True)]
    index = _build_index(schema["index"], host["index"])
    if "columns" not in schema:
        [table] = every
        table.index, table.name = index, host["name"]
    else:
        # The index is set afterwards: given to the constructor, cuDF would look for its labels in the columns.
        table = cudf.DataFrame(dict(enumerate(every))) if every else cudf.DataFrame(index=index)
        table.index = index
        table.columns = host["columns"]
    table.attrs = host["attrs"]
    return table


def _build_series(array: Any, spec: Mapping[str, Any]) -> Any:
    import cudf

    series = cudf.Series.from_arrow(array)
    same_dtype(series.dtype, spec)
    return series


def _build_index(spec: Mapping[str, Any], host: Mapping[str, Any]) -> Any:
    import cudf

    if "range" in host:
        start, stop, step = host["range"]
        return cudf.RangeIndex(start, stop, step, name=host["name"])
    if "levels" in host:
        every = [_build_series(array, each) for array, each in zip(host["levels"], spec["levels"], strict=True)]
        return cudf.MultiIndex.from_frame(cudf.DataFrame(dict(enumerate(every))), names=host["names"])
    index = cudf.Index.from_arrow(host["array"])
    if spec["freq"] is not None:
        index.freq = spec["freq"]
    index.name = host["name"]
    same_dtype(index.dtype, spec["column"])
    if type(index).__name__ != spec["kind"]:
        raise Unreachable(f"cuDF {cudf.__version__} makes a {type(index).__name__} here of a {spec['kind']}")
    return index
