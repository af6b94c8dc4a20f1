"""Sparse arrays and matrices of SciPy: the arrays that they are made of, untouched.

Their constructors would change the type of index arrays, so that the parts are put into an empty instance. DOK and LIL
are dicts and lists of Python objects and are not stored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_resilient.core.outcome import Declined
from dask_resilient.errors import Foreign
from dask_resilient.partitions.buffers import Packer, Unpacker, stage_bytes
from dask_resilient.partitions.compressed import bad_coordinates, bad_rows, false_claim, repeats, shape_from_json
from dask_resilient.partitions.inexact import Inexact
from dask_resilient.partitions.parts import pack_array, unpack_array, unpack_dense
from dask_resilient.protocols import Payload, Staged

__all__ = ["ScipySparseCodec"]

Array = npt.NDArray[Any]
Arrays = Mapping[str, Array]
Shape = tuple[int, ...]

_KINDS = "biufc"
"""Kinds of numbers that SciPy computes with."""


def _bad_csr(arrays: Arrays, shape: Shape) -> str | None:
    rows, columns = (1, *shape) if len(shape) == 1 else shape
    return bad_rows(arrays["indptr"], arrays["indices"], arrays["data"], rows, columns) or _flat(arrays)


def _bad_csc(arrays: Arrays, shape: Shape) -> str | None:
    rows, columns = shape
    return bad_rows(arrays["indptr"], arrays["indices"], arrays["data"], columns, rows) or _flat(arrays)


def _bad_bsr(arrays: Arrays, shape: Shape) -> str | None:
    data, (rows, columns) = arrays["data"], shape
    if data.ndim != 3 or 0 in data.shape[1:] or rows % data.shape[1] or columns % data.shape[2]:  # noqa: PLR2004
        return f"blocks of {data.shape[1:]!r} for the shape {shape!r}"
    if max(shape) > np.iinfo(np.int32).max and arrays["indices"].dtype.itemsize < 8:  # noqa: PLR2004
        return f"the shape {shape!r}, which {arrays['indices'].dtype} cannot index"
    return bad_rows(arrays["indptr"], arrays["indices"], data, rows // data.shape[1], columns // data.shape[2])


def _bad_coo(arrays: Arrays, shape: Shape) -> str | None:
    coordinates = [arrays[f"coords.{axis}"] for axis in range(len(shape))]
    return bad_coordinates(coordinates, shape, len(arrays["data"])) or _flat(arrays)


def _bad_dia(arrays: Arrays, shape: Shape) -> str | None:
    data, offsets, (rows, columns) = arrays["data"], arrays["offsets"], shape
    # Where there are no diagonals, their length could be any number without taking a byte.
    if data.ndim != 2 or offsets.shape != data.shape[:1] or data.shape[1] > rows + columns:  # noqa: PLR2004
        return f"diagonals of {data.shape!r} at {offsets.shape!r} offsets"
    inside = offsets.dtype.kind == "i" and bool(((offsets > -rows) & (offsets < columns)).all())
    most = np.iinfo(offsets.dtype).max if offsets.dtype.kind == "i" else 0
    if not inside or rows + columns > most or len(np.unique(offsets)) != len(offsets):
        return "offsets twice or out of its shape"
    return None


def _flat(arrays: Arrays) -> str | None:
    return None if arrays["data"].ndim == 1 else f"items of {arrays['data'].ndim} axes"


@dataclass(frozen=True, slots=True)
class _Format:
    arrays: Callable[[int], tuple[str, ...]]
    """The index arrays by name, for a number of axes."""
    bad: Callable[[Arrays, Shape], str | None]
    axes: tuple[int, int] = (2, 2)
    """Least and most."""
    flags: tuple[str, ...] = ()
    """What it has found out about its items: kept in the instance once it was asked for."""


_ROWS = ("indices", "indptr")
_KNOWN = ("_has_sorted_indices", "_has_canonical_format")
_FORMATS = {
    "csr": _Format(lambda _: _ROWS, _bad_csr, (1, 2), _KNOWN),
    "csc": _Format(lambda _: _ROWS, _bad_csc, flags=_KNOWN),
    "bsr": _Format(lambda _: _ROWS, _bad_bsr, flags=_KNOWN),
    "coo": _Format(
        lambda ndim: tuple(f"coords.{axis}" for axis in range(ndim)), _bad_coo, (1, 64), ("has_canonical_format",)
    ),
    "dia": _Format(lambda _: ("offsets",), _bad_dia),
}


class ScipySparseCodec:
    """Stages and restores the sparse arrays and matrices of `scipy.sparse`."""

    name = "scipy.sparse"

    def stage(self, value: Any) -> Staged | Declined:
        """Stage a sparse array, or say why that cannot be exact."""
        if value.format not in _FORMATS:
            return Declined(
                f"a sparse array in format {value.format!r} is made of Python objects; convert it with tocsr() in the "
                "task that returns it"
            )
        out = Packer()
        try:
            schema = _pack(value, out)
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
        kind, shape = schema["format"], shape_from_json(schema["shape"])
        if kind not in _FORMATS or type(schema["matrix"]) is not bool or type(schema["maxprint"]) is not int:
            raise Foreign(f"{kind!r} is no format of a sparse array")
        form = _FORMATS[kind]
        if not form.axes[0] <= len(shape) <= form.axes[1] or (schema["matrix"] and len(shape) != 2):  # noqa: PLR2004
            raise Foreign(f"a sparse array in format {kind!r} has no shape {shape!r}")
        arrays: dict[str, Array] = {}
        for name in form.arrays(len(shape)):
            spec = schema["arrays"][name]
            arrays[name] = arrays[spec["as"]] if "as" in spec else unpack_dense(spec, data)
        arrays["data"] = unpack_array(schema["arrays"]["data"], data)
        data.finish()
        flags = schema["flags"]
        if any(flag not in form.flags or type(known) is not bool for flag, known in flags.items()):
            raise Foreign(f"{flags!r} are no flags of format {kind!r}")
        if problem := _problem(form, arrays, shape, flags):
            raise Foreign(f"the sparse array has {problem}")
        sparse = _make(kind, schema["matrix"], shape, arrays, schema["maxprint"])
        vars(sparse).update(flags)
        return sparse


def _pack(value: Any, out: Packer) -> dict[str, Any]:
    form, shape = _FORMATS[value.format], tuple(map(int, value.shape))
    own = sorted(name for name in vars(value) if not name.startswith("_") and name not in _PUBLIC)
    if own:
        raise Inexact(f"has attributes of its own ({', '.join(own)})")
    if type(value.maxprint) is not int:
        raise Inexact(f"has maxprint={value.maxprint!r}")
    arrays = {name: _part(value, name) for name in (*form.arrays(len(shape)), "data")}
    if wrong := [
        name for name, array in arrays.items() if type(array) is not np.ndarray or (name != "data" and repeats(array))
    ]:
        raise Inexact(f"has {', '.join(wrong)} that repeat items or are no plain arrays")
    # Not by the properties: they would find out and remember what a task may still change.
    flags = {flag: bool(vars(value)[flag]) for flag in form.flags if flag in vars(value)}
    if problem := _problem(form, arrays, shape, flags):
        raise Inexact(f"has {problem}")
    return {
        "format": value.format,
        "matrix": type(value).__name__.endswith("_matrix"),
        "shape": list(shape),
        "maxprint": value.maxprint,
        "arrays": _pack_arrays(arrays, out),
        "flags": flags,
    }


def _pack_arrays(arrays: Arrays, out: Packer) -> dict[str, Any]:
    """Pack each array once: rows and columns of a diagonal are often one array, and stay one."""
    specs: dict[str, Any] = {}
    for name, array in arrays.items():
        near = [other for other in specs if np.may_share_memory(arrays[other], array)]
        if any(arrays[other] is not array for other in near) or (near and name == "data"):
            raise Inexact(f"has {name} and {near[0]} in the same memory; copy one")
        specs[name] = {"as": near[0]} if near else pack_array(array, out)
    return specs


_PUBLIC = frozenset({"coords", "data", "has_canonical_format", "indices", "indptr", "maxprint", "offsets"})
"""What SciPy itself keeps in an instance."""


def _part(value: Any, name: str) -> Any:
    kind, _, axis = name.partition(".")
    return getattr(value, kind)[int(axis)] if axis else getattr(value, name)


def _problem(form: _Format, arrays: Arrays, shape: Shape, flags: Mapping[str, bool]) -> str | None:
    if arrays["data"].ndim == 0 or arrays["data"].dtype.kind not in _KINDS:
        return f"items of {arrays['data'].dtype}"
    odd = {array.dtype for name, array in arrays.items() if name != "data"} - {np.dtype("i4"), np.dtype("i8")}
    if problem := f"index arrays of {odd.pop()}" if odd else form.bad(arrays, shape):
        return problem
    return false_claim(arrays["indptr"], arrays["indices"], flags) if "indptr" in arrays and flags else None


def _make(kind: str, matrix: bool, shape: Shape, arrays: Arrays, maxprint: int) -> Any:
    import scipy.sparse

    make = getattr(scipy.sparse, f"{kind}_{'matrix' if matrix else 'array'}")
    blocks = {"blocksize": arrays["data"].shape[1:]} if kind == "bsr" else {}
    sparse = make(shape, **blocks)
    coords = tuple(arrays[f"coords.{axis}"] for axis in range(len(shape) if kind == "coo" else 0))
    for name, array in arrays.items():
        if "." not in name:
            setattr(sparse, name, array)
    if coords:
        sparse.coords = coords
    sparse.maxprint = maxprint
    return sparse
