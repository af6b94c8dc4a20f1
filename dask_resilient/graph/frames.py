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

from dask_resilient.core.fingerprints import combine
from dask_resilient.graph.ancestors import names_in_operands
from dask_resilient.graph.content import Digester
from dask_resilient.graph.describe import describe_frame
from dask_resilient.graph.fingerprint import digest_collection
from dask_resilient.graph.identity import Identity
from dask_resilient.graph.milestone import Mark, prefix
from dask_resilient.tasks import SaveTask

_PLANNED = ("new_divisions", "computed_divisions")
"""Operands of lowered expressions that hold such limits."""


class Checkpoint(Expr):
    """A milestone in an expression tree: the same partitions, meta and divisions, one node a partition.

    It is not blockwise, so neither side is fused with it, and it has no rule by which a projection or a filter could
    move below it: all of what was marked is stored.
    """

    _parameters = ["frame", "label", "version", "keep", "identity"]  # noqa: RUF012  the form that Dask's own expressions have

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # Dask hands out the living expression of the same name, unless a class has an __init__. Names do not depend on
        # `keep`, so a second mark with keep=True would silently be the first one, without it.
        pass

    def __dask_tokenize__(self) -> str:
        if not self._determ_token:
            parts = (self.label, self.version, self.frame._name, self.identity.fingerprint)
            token = tokenize("dask-resilient", *parts)
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
        mark, identity = Mark(self.label, self.version, self.keep), self.identity
        described = describe_frame(mark, self._meta, self.divisions, identity.reasons, _planned(self.frame))
        return mark.nodes(pairs, n, description=described.raw, **identity.facts(mark, described.shape))


def mark_frame(x: Any, mark: Mark, identity: Identity) -> Any:
    """Mark a dataframe, series, index or scalar of dask.dataframe."""
    expr = Checkpoint(x.expr, mark.name, mark.version, mark.keep, identity)
    identity.remember(mark, expr._name)
    return new_collection(expr)


def _planned(expr: Any) -> str:
    """Give the digest of the limits of partitions that were computed from data while the expression was lowered.

    They are drawn from a sample that differs from process to process, and what stands above need not show them.
    """
    digester, found, stack, seen = Digester(digest_collection), [], [expr], set()
    while stack:
        node = stack.pop()
        if isinstance(node, list | tuple):
            stack.extend(node)
        elif isinstance(node, Expr) and node._name not in seen:
            seen.add(node._name)
            named = zip(node._parameters, node.operands, strict=False)
            found += [digester.digest(operand) for name, operand in named if name in _PLANNED]
            stack.extend(node.operands)
    return combine(sorted(found))


def names_in_expression(expr: Any) -> Iterator[str]:
    """Give the names of the milestones in an expression tree and in the graphs that it carries."""
    seen: set[int] = set()
    for node in expr.walk():
        if isinstance(node, Checkpoint):
            yield node.label
        yield from names_in_operands([op for op in node.operands if not isinstance(op, Expr)], seen)
