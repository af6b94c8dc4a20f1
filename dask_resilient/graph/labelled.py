"""Milestones of xarray objects: each variable that is a Dask collection is marked, the rest passes through.

Only public methods of the object are used and xarray is never imported: whoever has such an object has xarray.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from dask.base import is_dask_collection

from dask_resilient.errors import UnsupportedType
from dask_resilient.graph.milestone import keys_of

_KINDS = frozenset({"Dataset", "DataArray", "Variable"})


def is_xarray(x: object) -> bool:
    """Say whether an object is of xarray, by the modules of its classes."""
    return any(cls.__module__.partition(".")[0] == "xarray" for cls in type(x).__mro__)


def mark_xarray(x: Any, mark_array: Callable[[Any, int], Any]) -> Any:
    """Give a shallow copy whose Dask-backed variables, coordinates included, are replaced.

    Parameters
    ----------
    x
        A Dataset, DataArray or Variable.
    mark_array
        Called with a collection and the number of partitions of the whole object; gives what stands in its place.

    Raises
    ------
    UnsupportedType
        If no variable is a Dask collection, or the object is of another class of xarray.
    """
    if not _KINDS & {cls.__name__ for cls in type(x).__mro__}:
        raise UnsupportedType(f"xarray's {type(x).__name__} cannot be marked; mark its datasets one by one")
    copy = x.copy(deep=False)
    # The variable is asked, not its data: that would read a variable which is not loaded yet.
    variables = [v for v in _variables(copy) if is_dask_collection(v)]
    if not variables:
        raise UnsupportedType(
            f"this {type(x).__name__} has no variable that is a Dask collection, so there is nothing to keep; "
            "call .chunk() on it first"
        )
    npartitions = len({key for v in variables for key in keys_of(v.data)})
    for variable in variables:
        # Setting the data of the copied variable keeps its name, dims, attrs, encoding and index untouched, which
        # assigning a new variable would not do for coordinates of custom indexes.
        variable.data = mark_array(variable.data, npartitions)
    return copy


def _variables(x: Any) -> Iterator[Any]:
    """Give the variables that an xarray object holds, not copies of them."""
    if hasattr(x, "variables"):  # Dataset
        yield from x.variables.values()
    elif hasattr(x, "variable"):  # DataArray
        yield x.variable
        for coord in x.coords.values():
            yield coord.variable
    else:
        yield x
