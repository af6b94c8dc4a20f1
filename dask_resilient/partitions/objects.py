"""Object columns of immutable values, each stored as text beside its kind: no pickle, and no guess.

pandas 2 keeps strings in such columns, None, NaN and NA side by side. A value whose exact type is not among those of
:mod:`~dask_resilient.partitions.atoms`, or that could be changed in place, as a list, makes the column refused. Loaded
lazily, with pandas.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from dask_resilient.errors import Foreign
from dask_resilient.partitions.atoms import FROM_JSON, KINDS, TO_JSON
from dask_resilient.partitions.buffers import Packer, Unpacker
from dask_resilient.partitions.inexact import Inexact
from dask_resilient.partitions.texts import pack_texts, unpack_texts

__all__ = ["pack_objects", "unpack_objects"]

_SINGLE: dict[str, Any] = {"None": None, "NaN": np.nan, "NA": pd.NA, "NaT": pd.NaT, "True": True, "False": False}
"""Values that need no text."""

_NAMES = ("str", *_SINGLE, "json")
"""Kinds of values; a receipt lists those of its column. ``json`` is the form of an atom."""

_NAN = struct.pack("<d", np.nan)


def pack_objects(array: Any, out: Packer) -> dict[str, Any]:
    """Describe the values of an object column, and append their kinds and texts.

    Raises
    ------
    Inexact
        If a value is of a type that has no exact form here; the first one is named.
    """
    values = np.asarray(array, dtype=object).tolist()
    if set(map(type, values)) <= {str}:
        coded, texts = bytearray(len(values)), values
    else:
        coded, texts = bytearray(), []
        for row, value in enumerate(values):
            kind, text = _pack_value(value, row)
            coded.append(_NAMES.index(kind))
            texts.append(text)
    used, codes = np.unique(np.frombuffer(coded, np.uint8), return_inverse=True)
    kinds = [_NAMES[each] for each in used]
    return {"kinds": kinds, "codes": out.add_array(codes.astype(np.uint8)), **pack_texts(texts, out)}


def unpack_objects(spec: Mapping[str, Any], data: Unpacker) -> Any:
    """Give the values of an object column back.

    Raises
    ------
    Foreign
        If the kinds do not fit the texts.
    """
    kinds, texts = spec["kinds"], unpack_texts(spec, data)
    codes = data.take_array(spec["codes"], np.dtype(np.uint8))
    if len(codes) != len(texts) or any(kind not in _NAMES for kind in kinds) or (codes >= len(kinds)).any():
        raise Foreign(f"{len(texts)} values have {len(codes)} kinds out of {kinds!r}")
    values = np.empty(len(texts), dtype=object)
    values[:] = texts
    for code, kind in enumerate(kinds):
        rows = codes == code
        if kind in _SINGLE:
            values[rows] = _SINGLE[kind]
        elif kind == "json":
            for row in np.flatnonzero(rows):
                values[row] = _unpack_atom(texts[row])
    return values


def _pack_value(value: Any, row: int) -> tuple[str, str]:
    kind = type(value)
    if kind is str:
        return "str", value
    if kind is bool or value is None or value is pd.NA or value is pd.NaT:
        return _NAME_OF[id(value)], ""
    if kind is float and struct.pack("<d", value) == _NAN:
        return "NaN", ""
    name = KINDS.get((kind.__module__, kind.__qualname__))
    if not name or kind is np.void:  # a void can be changed in place
        raise Inexact(f"has dtype object and in row {row} a {kind.__module__}.{kind.__qualname__}, which stays unsaved")
    return "json", json.dumps({name: TO_JSON[name](value)})


_NAME_OF = {id(value): name for name, value in _SINGLE.items()}


def _unpack_atom(text: str) -> Any:
    [(name, value)] = json.loads(text).items()
    return FROM_JSON[name](value)
