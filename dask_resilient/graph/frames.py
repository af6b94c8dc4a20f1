"""Milestones of dask.dataframe collections: one expression that no optimisation passes.

Imported only for such collections, since it imports dask.dataframe.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

from dask._collections import new_collection
from dask.base import tokenize
from dask.dataframe.dask_expr._expr import Expr
from dask.typing import Key

from dask_resilient.graph.ancestors import names_in_operands
from dask_resilient.graph.describe import describe_frame
from dask_resilient.graph.milestone import Mark, prefix
from dask_resilient.tasks import SaveTask


class Checkpoint(Expr):
    """A milestone in an expression tree: the same partitions, meta and divisions, one node a partition.

    It is not blockwise, so neither side is fused with it, and it has no rule by which a projection or a filter could
    move below it: all of what was marked is stored.
    """

    _parameters = ["frame", "label", "version", "keep"]  # noqa: RUF012  the form that Dask's own expressions have

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # Dask hands out the living expression of the same name, unless a class has an __init__. Names do not depend on
        # `keep`, so a second mark with keep=True would silently be the first one, without it.
        pass

    def __dask_tokenize__(self) -> str:
        if not self._determ_token:
            token = tokenize("dask-resilient", self.label, self.version, self.frame._name)
            object.__setattr__(self, "_determ_token", token)
        return str(self._determ_token)

    @functools.cached_property
    def _name(self) -> str:
        return f"{prefix(self.label)}-{self.deterministic_token}"

    @functools.cached_property
    def _meta(self) -> Any:
        return self.frame._meta

    def _divisions(self) -> tuple[Any, ...]:
        return tuple(self.frame.divisions)

    def _layer(self) -> dict[Key, SaveTask]:
        name, source, n = self._name, self.frame._name, self.npartitions
        pairs = [((name, i), (source, i)) for i in range(n)]
        mark = Mark(self.label, self.version, self.keep)
        return mark.nodes(pairs, n, description=describe_frame(mark, self._meta, self.divisions))


def mark_frame(x: Any, mark: Mark) -> Any:
    """Mark a dataframe, series, index or scalar of dask.dataframe."""
    return new_collection(Checkpoint(x.expr, mark.name, mark.version, mark.keep))


def names_in_expression(expr: Any) -> Iterator[str]:
    """Give the names of the milestones in an expression tree and in the graphs that it carries."""
    seen: set[int] = set()
    for node in expr.walk():
        if isinstance(node, Checkpoint):
            yield node.label
        yield from names_in_operands([op for op in node.operands if not isinstance(op, Expr)], seen)
