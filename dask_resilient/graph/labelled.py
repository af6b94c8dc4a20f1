"""Milestones of xarray objects: each variable that is a Dask collection is marked, the rest passes through.

Only public methods of the object are used and xarray is never imported: whoever has such an object has xarray.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from dask.base import is_dask_collection, tokenize

from dask_resilient.errors import UnsupportedType
from dask_resilient.graph.identity import Identity, identify, together
from dask_resilient.graph.milestone import Mark, keys_of

_KINDS = frozenset({"Dataset", "DataArray", "Variable"})


class MarkVariable(Protocol):
    """Marks the Dask collection of one variable."""

    def __call__(self, data: Any, identity: Identity, npartitions: int, part: Part) -> Any:
        """Give what stands in its place; `npartitions` are those of the whole object."""


@dataclass(frozen=True, slots=True)
class Part:
    """Which part of an xarray object a collection is."""

    variable: str
    dims: tuple[str, ...]
    group: tuple[str, int]
    """What all variables of the object share, and how many they are."""


def mark_xarray(x: Any, mark: Mark, mark_array: MarkVariable) -> tuple[Any, list[str]]:
    """Give a shallow copy whose Dask-backed variables, coordinates included, are replaced.

    Also gives why any of them is for this run only.

    Parameters
    ----------
    x
        A Dataset, DataArray or Variable.
    mark
        What was asked for.
    mark_array
        Called for each variable that is a Dask collection.

    Raises
    ------
    UnsupportedType
        If no variable is a Dask collection, or the object is of another class of xarray.
    """
    if not _KINDS & {cls.__name__ for cls in type(x).__mro__}:
        raise UnsupportedType(f"xarray's {type(x).__name__} cannot be marked; mark its datasets one by one")
    copy = x.copy(deep=False)
    # The variable is asked, not its data: that would read a variable which is not loaded yet.
    variables = {name: v for name, v in _variables(copy) if is_dask_collection(v)}
    if not variables:
        raise UnsupportedType(
            f"this {type(x).__name__} has no variable that is a Dask collection, so there is nothing to keep; "
            "call .chunk() on it first"
        )
    npartitions = len({key for v in variables.values() for key in keys_of(v.data)})
    identities = {name: identify(mark, v.data) for name, v in variables.items()}
    first = {name: keys_of(v.data)[:1] for name, v in variables.items()}
    group = together(identities.values(), lambda: tokenize(first)), len(variables)
    for name, variable in variables.items():
        # Setting the data of the copied variable keeps its name, dims, attrs, encoding and index untouched, which
        # assigning a new variable would not do for coordinates of custom indexes.
        part = Part(name, tuple(map(str, variable.dims)), group)
        variable.data = mark_array(variable.data, identities[name], npartitions, part)
    return copy, [reason for identity in identities.values() for reason in identity.reasons]


def _variables(x: Any) -> Iterator[tuple[str, Any]]:
    """Give the names and variables that an xarray object holds, not copies of them."""
    if hasattr(x, "variables"):  # Dataset
        yield from ((str(name), variable) for name, variable in x.variables.items())
    elif hasattr(x, "variable"):  # DataArray
        yield str(x.name or "data"), x.variable
        for name, coord in x.coords.items():
            yield str(name), coord.variable
    else:
        yield "data", x
