"""pandas tables and indexes: the buffers of all columns in one flat payload, and a schema that says where each lies.

Column by column through the public API of pandas, so that no change of its block layout can change what is stored. A
column whose values lie side by side is not copied. What comes back compares equal in everything that
`pandas.testing.assert_frame_equal` can check, attrs and flags included; its columns are writable views of the payload.
Never stored: sparse columns, and object columns of other than immutable plain values (nothing here is pickled).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from dask_resilient.core.outcome import Declined
from dask_resilient.errors import Foreign
from dask_resilient.partitions import labels
from dask_resilient.partitions.buffers import Packer, Unpacker, stage_bytes
from dask_resilient.partitions.columns import Spec
from dask_resilient.partitions.indexes import pack_array, pack_index, unpack_array, unpack_index
from dask_resilient.partitions.inexact import Inexact
from dask_resilient.protocols import Payload, Staged

__all__ = ["TableCodec"]

_MANY = 100
"""Above so many columns the restored frame is consolidated, else pandas warns at the next new column that it is
fragmented, which the original did not."""


class TableCodec:
    """Stages and restores `pandas.DataFrame`, `pandas.Series` and `pandas.Index`."""

    name = "pandas"

    def stage(self, value: Any) -> Staged | Declined:
        """Stage a table, or say what in it cannot be exact."""
        out = Packer()
        try:
            schema = _pack(value, out)
        except Inexact as e:
            return Declined(str(e))
        return stage_bytes(self.name, schema, out.buffers)

    def restore(self, schema: Mapping[str, Any], payload: Payload) -> Any:
        """Give the table back; its columns are views of the payload."""
        data = Unpacker(payload)
        if "alone" in schema:
            index = unpack_index(schema["alone"], data)
            data.finish()
            return index
        table = _unpack_frame(schema, data) if "columns" in schema else _unpack_series(schema, data)
        table.attrs = labels.loads(data.take(schema["attrs"]).tobytes()) if schema["attrs"] else {}
        data.finish()
        duplicates = schema["allows_duplicate_labels"]
        if type(duplicates) is not bool:
            raise Foreign(f"{duplicates!r} is no flag")
        table.flags.allows_duplicate_labels = duplicates
        return table


def _pack(value: Any, out: Packer) -> Spec:
    if type(value) is pd.DataFrame:
        return _pack_frame(value, out)
    if type(value) is pd.Series:
        return _pack_series(value, out)
    return {"alone": _named("the index", pack_index, value, out)}


def _pack_frame(frame: Any, out: Packer) -> Spec:
    names = [repr(label) for label in frame.columns]
    arrays = [frame.iloc[:, i].array for i in range(len(names))]
    if not _copies_on_write():
        _refuse_twins(names, arrays)
    return {
        "columns": _named("the columns", pack_index, frame.columns, out),
        "data": [_named(f"column {name}", pack_array, array, out) for name, array in zip(names, arrays, strict=True)],
        **_pack_rest(frame, out),
    }


def _copies_on_write() -> bool:
    return int(pd.__version__.partition(".")[0]) >= 3 or bool(pd.options.mode.copy_on_write)  # noqa: PLR2004


def _refuse_twins(names: list[str], arrays: list[Any]) -> None:
    """Raise `Inexact` if two columns are one array: restored, a change of one would no longer show in the other."""
    seen: dict[Any, str] = {}
    for name, array in zip(names, arrays, strict=True):
        values = np.asarray(array) if type(array) is pd.arrays.NumpyExtensionArray else None
        if values is None or not values.nbytes:
            continue
        twin = seen.setdefault((values.ctypes.data, values.strides), name)
        if twin is not name:
            raise Inexact(f"column {name} is the same memory as column {twin}; copy one of them")


def _pack_series(series: Any, out: Packer) -> Spec:
    return {
        "name": _named("the name of the series", lambda name, _: labels.to_json(name), series.name, out),
        "data": [_named(f"series {series.name!r}", pack_array, series.array, out)],
        **_pack_rest(series, out),
    }


def _pack_rest(table: Any, out: Packer) -> Spec:
    return {
        "index": _named("the index", pack_index, table.index, out),
        "attrs": _named("attrs", lambda attrs, out: out.add(labels.dumps(attrs)), table.attrs, out)
        if table.attrs
        else None,
        "allows_duplicate_labels": table.flags.allows_duplicate_labels,
    }


def _named(what: str, pack: Any, value: Any, out: Packer) -> Any:
    try:
        return pack(value, out)
    except Inexact as e:
        raise Inexact(f"{what} {e}") from e


def _unpack_frame(schema: Mapping[str, Any], data: Unpacker) -> Any:
    columns, (index, arrays) = unpack_index(schema["columns"], data), _unpack_rest(schema, data)
    if len(columns) != len(arrays):
        raise Foreign(f"{len(arrays)} columns have {len(columns)} labels")
    series = {i: _typed(array, index) for i, array in enumerate(arrays)}
    frame = pd.DataFrame(series, index=index, copy=False)
    frame.columns = columns
    return frame.copy() if len(arrays) > _MANY else frame


def _unpack_series(schema: Mapping[str, Any], data: Unpacker) -> Any:
    index, [array] = _unpack_rest(schema, data)
    return pd.Series(array, index=index, dtype=array.dtype, name=labels.from_json(schema["name"]), copy=False)


def _typed(array: Any, index: Any) -> Any:
    """Keep pandas from looking into a column of objects for what else it could be."""
    return pd.Series(array, index=index, dtype=object, copy=False) if array.dtype == object else array


def _unpack_rest(schema: Mapping[str, Any], data: Unpacker) -> tuple[Any, list[Any]]:
    index = unpack_index(schema["index"], data)
    arrays = [unpack_array(spec, data) for spec in schema["data"]]
    # Before pandas sees them: it repeats a categorical of one row along any index, and a range of 2**60 costs nothing.
    if any(len(array) != len(index) for array in arrays):
        raise Foreign(f"columns of {sorted({len(array) for array in arrays})!r} rows have an index of {len(index)}")
    return index, arrays
