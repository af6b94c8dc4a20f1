"""Hypothesis strategies for sparse arrays: unsorted, with duplicates, with room to grow, with either index dtype."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from dask_resilient.testing.strategies import filled

if TYPE_CHECKING:
    from hypothesis.strategies import DrawFn, SearchStrategy

__all__ = ["pydata_arrays", "scipy_arrays"]

_DTYPES = ("?", "i1", "u2", "i4", "i8", "f4", "f8", "c16", "g")


def scipy_arrays() -> SearchStrategy[Any]:
    """Give arrays and matrices of `scipy.sparse` in CSR, CSC, COO, BSR and DIA."""
    from hypothesis import strategies as st

    @st.composite
    def arrays(draw: DrawFn) -> Any:
        import scipy.sparse

        kind, form = draw(st.sampled_from(sorted(_MAKE))), draw(st.sampled_from(["array", "matrix"]))
        axes = (1, 4) if (kind, form) == ("coo", "array") else (1, 2) if (kind, form) == ("csr", "array") else (2, 2)
        shape = tuple(draw(st.lists(st.integers(1, 5), min_size=axes[0], max_size=axes[1])))
        parts = _MAKE[kind](draw, shape, draw(st.sampled_from([np.int32, np.int64])))
        blocks = {"blocksize": parts["data"].shape[1:]} if kind == "bsr" else {}
        array = getattr(scipy.sparse, f"{kind}_{form}")(shape, **blocks)
        for name, part in parts.items():
            setattr(array, name, part)
        if kind in ("csr", "csc", "bsr") and draw(st.booleans()):
            bool(array.has_canonical_format)
        if kind == "coo" and draw(st.booleans()):
            array.sum_duplicates()
        return array

    return arrays()


def _data(draw: DrawFn, shape: tuple[int, ...], dtypes: tuple[str, ...] = _DTYPES) -> Any:
    from hypothesis import strategies as st

    return filled(draw, np.dtype(draw(st.sampled_from(dtypes))), shape)


def _index(draw: DrawFn, length: int, n: int, dtype: Any) -> Any:
    return (filled(draw, np.dtype(np.uint8), (length,)) % n).astype(dtype)


def _rows(draw: DrawFn, rows: int, columns: int, dtype: Any) -> dict[str, Any]:
    from hypothesis import strategies as st

    counts = np.array(draw(st.lists(st.integers(0, 3), min_size=rows, max_size=rows)), dtype)
    indptr = np.concatenate([[0], np.cumsum(counts)]).astype(dtype)
    return {"indptr": indptr, "indices": _index(draw, int(indptr[-1]), columns, dtype)}


def _csr(draw: DrawFn, shape: tuple[int, ...], dtype: Any) -> dict[str, Any]:
    rows, columns = (1, *shape) if len(shape) == 1 else shape
    parts = _rows(draw, rows, columns, dtype)
    return parts | {"data": _data(draw, parts["indices"].shape)}


def _csc(draw: DrawFn, shape: tuple[int, ...], dtype: Any) -> dict[str, Any]:
    return _csr(draw, shape[::-1], dtype)


def _bsr(draw: DrawFn, shape: tuple[int, ...], dtype: Any) -> dict[str, Any]:
    from hypothesis import strategies as st

    block = tuple(draw(st.sampled_from([i for i in range(1, n + 1) if n % i == 0])) for n in shape)
    parts = _rows(draw, shape[0] // block[0], shape[1] // block[1], dtype)
    return parts | {"data": _data(draw, (*parts["indices"].shape, *block))}


def _coo(draw: DrawFn, shape: tuple[int, ...], dtype: Any) -> dict[str, Any]:
    from hypothesis import strategies as st

    nnz = draw(st.integers(0, 6))
    return {"coords": tuple(_index(draw, nnz, n, dtype) for n in shape), "data": _data(draw, (nnz,))}


def _dia(draw: DrawFn, shape: tuple[int, ...], dtype: Any) -> dict[str, Any]:
    from hypothesis import strategies as st

    offsets = draw(st.lists(st.integers(1 - shape[0], shape[1] - 1), unique=True, max_size=4))
    return {"offsets": np.array(offsets, dtype), "data": _data(draw, (len(offsets), draw(st.integers(0, sum(shape)))))}


_MAKE = {"csr": _csr, "csc": _csc, "bsr": _bsr, "coo": _coo, "dia": _dia}


def pydata_arrays() -> SearchStrategy[Any]:
    """Give `sparse.COO` and `sparse.GCXS` with any fill value and compressed axes."""
    from hypothesis import strategies as st

    @st.composite
    def arrays(draw: DrawFn) -> Any:
        import sparse

        shape = tuple(draw(st.lists(st.integers(1, 4), max_size=4)))
        nnz = draw(st.integers(0, 6)) if shape else 1
        data = _data(draw, (nnz,), ("f8",))  # for each dtype more, numba compiles for seconds
        coords = np.array([_index(draw, nnz, n, np.intp) for n in shape], np.intp).reshape(len(shape), nnz)
        fill = filled(draw, data.dtype, (1,))[0]
        array = sparse.COO(coords, data, shape=shape, fill_value=fill)
        if draw(st.booleans()) or len(shape) <= 1:
            return array
        axes = draw(st.lists(st.integers(0, len(shape) - 1), min_size=1, max_size=len(shape) - 1, unique=True))
        return array.asformat("gcxs", compressed_axes=tuple(sorted(axes)))

    return arrays()
