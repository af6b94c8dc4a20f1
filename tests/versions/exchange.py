"""Writes the awkward tables under one pandas, and tells under another what they have become.

Run: ``python tests/versions/exchange.py write FOLDER`` and, in another environment, ``... read FOLDER``. Reading prints
one JSON object: for each table "same", or the ending with its sentence, or what differs.
"""
# ruff: noqa: T201  (its output is for a test)

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pandas as pd

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[1] / "partitions"))

from awkward_tables import EXACT

from dask_resilient import partitions
from dask_resilient.errors import Foreign, Unreachable
from dask_resilient.testing.codecs import payload_of, staged


def typed(value):
    """Describe a scalar, or a nest of them, with its types."""
    if isinstance(value, dict):
        return ["dict", [[typed(key), typed(each)] for key, each in value.items()]]
    if isinstance(value, list | tuple):
        return [type(value).__name__, [typed(each) for each in value]]
    return [type(value).__name__, repr(value)]


def dtype_text(dtype):
    """Describe a dtype in words that do not change from pandas to pandas."""
    if isinstance(dtype, pd.StringDtype):
        return f"strings in {dtype.storage}, missing is {dtype.na_value!r}"
    zone = getattr(dtype, "tz", None)
    return f"{dtype} {type(zone).__name__ if zone is not None else ''}"


def of_array(array):
    """Describe the array of a column."""
    if isinstance(array.dtype, pd.CategoricalDtype):
        return [np.asarray(array.codes).tolist(), bool(array.ordered), of_index(array.categories)]
    values = np.asarray(array) if type(array) is pd.arrays.NumpyExtensionArray else array
    if isinstance(values, np.ndarray) and values.dtype != object:
        return [values.dtype.str, values.tobytes().hex()]
    return [dtype_text(array.dtype), [typed(each) for each in array]]


def of_index(index):
    """Describe an index."""
    head = [type(index).__name__, typed(list(index.names))]
    if isinstance(index, pd.RangeIndex):
        return [*head, index.start, index.stop, index.step]
    if isinstance(index, pd.MultiIndex):
        return [*head, [of_index(each) for each in index.levels], [np.asarray(each).tolist() for each in index.codes]]
    freq = getattr(index, "freqstr", None) if isinstance(index, pd.DatetimeIndex | pd.TimedeltaIndex) else None
    return [*head, freq, of_array(index.array)]


def describe(value):
    """Describe a table or index in JSON types, in everything that its user can see."""
    if isinstance(value, pd.Index):
        return of_index(value)
    rest = [typed(value.attrs), value.flags.allows_duplicate_labels, of_index(value.index)]
    if isinstance(value, pd.Series):
        return ["series", *rest, typed(value.name), of_array(value.array)]
    arrays = [of_array(value.iloc[:, i].array) for i in range(value.shape[1])]
    return ["frame", *rest, of_index(value.columns), arrays]


def write(folder):
    """Stage every table, and write what it is beside its schema and its bytes."""
    for number, (name, make) in enumerate(EXACT.items()):
        value = make()
        result = staged(value)
        row = {"name": name, "codec": result.codec, "schema": result.schema, "is": describe(value)}
        (folder / f"{number}.json").write_text(json.dumps(row))
        (folder / f"{number}.bytes").write_bytes(payload_of(result).tobytes())


def read(folder):
    """Restore every table, and say how that ended."""
    endings = {}
    for path in sorted(folder.glob("*.json")):
        row = json.loads(path.read_text())
        payload = np.frombuffer(path.with_suffix(".bytes").read_bytes(), np.uint8)
        try:
            found = json.loads(json.dumps(describe(partitions.restore(row["codec"], row["schema"], payload))))
            endings[row["name"]] = "same" if found == row["is"] else f"DIFFERENT: {found} was {row['is']}"
        except (Foreign, Unreachable) as e:
            endings[row["name"]] = f"{type(e).__name__}: {e}"
    return endings


def main():
    mode, folder = sys.argv[1], Path(sys.argv[2])
    if mode == "write":
        write(folder)
    else:
        print(json.dumps(read(folder)))


if __name__ == "__main__":
    main()
