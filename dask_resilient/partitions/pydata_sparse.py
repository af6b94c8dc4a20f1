"""Sparse arrays of PyData's `sparse`, COO and GCXS: the arrays that they are made of, and the fill value.

Its compiled code checks no bounds, so every index is checked before an instance is made. DOK is a dict of Python
objects and is not stored.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_resilient.core.outcome import Declined
from dask_resilient.errors import Foreign
from dask_resilient.partitions.buffers import Packer, Unpacker, stage_bytes
from dask_resilient.partitions.compressed import bad_coordinates, bad_rows, repeats, shape_from_json, too_large
from dask_resilient.partitions.inexact import Inexact
from dask_resilient.partitions.parts import pack_array, unpack_array, unpack_dense
from dask_resilient.protocols import Payload, Staged

__all__ = ["PydataSparseCodec"]

Arrays = Mapping[str, npt.NDArray[Any]]

_INDEX = {"COO": ("coords",), "GCXS": ("indices", "indptr")}
"""Index arrays of each class that is stored."""

_STATE = frozenset({"coords", "data", "fill_value", "indices", "indptr", "shape", "_cache", "_compressed_axes"})
"""What `sparse` itself keeps in an instance; the cache holds nothing that could not be found out again."""

_KINDS = "biufcmM"


class PydataSparseCodec:
    """Stages and restores `sparse.COO` and `sparse.GCXS`."""

    name = "sparse"

    def stage(self, value: Any) -> Staged | Declined:
        """Stage a sparse array, or say why that cannot be exact."""
        kind = type(value).__name__
        if kind not in _INDEX:
            return Declined(f"a sparse {kind} is made of Python objects; convert it with asformat('coo')")
        out = Packer()
        try:
            schema = _pack(kind, value, out)
        except Inexact as e:
            return Declined(f"the sparse array {e}")
        return stage_bytes(self.name, schema, out.buffers)

    def restore(self, schema: Mapping[str, Any], payload: Payload) -> Any:
        """Give the sparse array back; its parts are views of the payload.

        Raises
        ------
        Foreign
            If the schema describes none, or an index would point out of it.
        """
        data = Unpacker(payload)
        kind, shape = schema["class"], shape_from_json(schema["shape"])
        if kind not in tuple(_INDEX):
            raise Foreign(f"{kind!r} is no class of a sparse array")
        arrays = {name: unpack_dense(schema["arrays"][name], data) for name in _INDEX[kind]}
        arrays["data"] = unpack_array(schema["arrays"]["data"], data)
        fill = unpack_array(schema["arrays"]["fill_value"], data)
        data.finish()
        axes = _axes(schema["axes"], len(shape) if kind == "GCXS" else 0)
        problem = _problem(arrays, shape, axes) if kind == "GCXS" else _bad_coo(arrays, shape)
        if fill.shape != () or fill.dtype != arrays["data"].dtype:
            problem = f"a fill value of {fill.dtype}"
        if problem or type(schema["axes_are_numpy"]) is not bool:
            raise Foreign(f"the sparse array has {problem or 'no flag axes_are_numpy'}")
        if kind == "COO":
            return _make_coo(arrays, shape, fill[()])
        return _make_gcxs(arrays, shape, tuple(map(np.intp, axes)) if schema["axes_are_numpy"] else axes, fill[()])


def _pack(kind: str, value: Any, out: Packer) -> dict[str, Any]:
    if own := sorted(vars(value).keys() - _STATE):
        raise Inexact(f"has attributes of its own ({', '.join(own)})")
    arrays = {name: getattr(value, name) for name in (*_INDEX[kind], "data")}
    if any(type(array) is not np.ndarray for array in arrays.values()):
        raise Inexact("has parts that are no plain arrays")
    if any(repeats(arrays[name]) for name in _INDEX[kind]):
        raise Inexact("has index arrays that repeat items")
    names = list(arrays)
    if any(np.may_share_memory(arrays[a], arrays[b]) for i, a in enumerate(names) for b in names[:i]):
        raise Inexact("has two parts in the same memory; copy one")
    shape, axes = value.shape, value.compressed_axes if kind == "GCXS" else ()
    kinds = {type(axis) for axis in axes}
    if any(type(n) is not int for n in shape) or kinds not in ({int}, {np.intp}, set()):
        raise Inexact(f"has the shape {shape!r} and the compressed axes {axes!r}, not all of them int")
    fill = value.fill_value
    if arrays["data"].dtype.kind not in _KINDS or type(fill) is not arrays["data"].dtype.type:
        raise Inexact(f"has the fill value {fill!r} for items of {arrays['data'].dtype}")
    order = tuple(map(int, axes))
    if problem := _problem(arrays, shape, order) if kind == "GCXS" else _bad_coo(arrays, shape):
        raise Inexact(f"has {problem}")
    arrays["fill_value"] = np.asarray(fill, arrays["data"].dtype)
    return {
        "class": kind,
        "shape": list(shape),
        "axes": list(order),
        "axes_are_numpy": np.intp in kinds,
        "arrays": {name: pack_array(array, out) for name, array in arrays.items()},
    }


def _axes(axes: Any, ndim: int) -> tuple[int, ...]:
    if not isinstance(axes, list) or any(type(axis) is not int or not 0 <= axis < ndim for axis in axes):
        raise Foreign(f"{axes!r} are no axes of {ndim}")
    return tuple(axes)


def _bad_data(data: npt.NDArray[Any], shape: tuple[int, ...]) -> str | None:
    if data.ndim != 1 or data.dtype.kind not in _KINDS:
        return f"items of {data.dtype} in {data.ndim} axes"
    return f"the shape {shape!r}, whose items cannot be counted" if too_large(shape) else None


def _bad_coo(arrays: Arrays, shape: tuple[int, ...]) -> str | None:
    coords, data = arrays["coords"], arrays["data"]
    if coords.ndim != 2:  # noqa: PLR2004
        return f"coordinates in {coords.ndim} axes"
    return _bad_data(data, shape) or bad_coordinates(tuple(coords), shape, len(data))


def _problem(arrays: Arrays, shape: tuple[int, ...], axes: tuple[int, ...]) -> str | None:
    """Judge a GCXS: rows are the items of the compressed axes, in their order, and columns those of the others."""
    if len(set(axes)) != len(axes) or (len(shape) > 1 and not 0 < len(axes) < len(shape)) or (axes and len(shape) < 2):  # noqa: PLR2004
        return f"compressed axes {axes!r} for {len(shape)} axes"
    rows = math.prod(shape[axis] for axis in axes)
    columns = math.prod(n for axis, n in enumerate(shape) if axis not in axes)
    return _bad_data(arrays["data"], shape) or bad_rows(
        arrays["indptr"], arrays["indices"], arrays["data"], rows, columns
    )


def _make_coo(arrays: Arrays, shape: tuple[int, ...], fill: Any) -> Any:
    import sparse

    made = sparse.COO(arrays["coords"], arrays["data"], shape=shape, has_duplicates=False, sorted=True, fill_value=fill)
    made.coords = arrays["coords"]  # without items the constructor takes others
    return made


def _make_gcxs(arrays: Arrays, shape: tuple[int, ...], axes: tuple[Any, ...], fill: Any) -> Any:
    import sparse

    parts = arrays["data"], arrays["indices"], arrays["indptr"]
    return sparse.GCXS(parts, shape=shape, compressed_axes=axes, fill_value=fill)
