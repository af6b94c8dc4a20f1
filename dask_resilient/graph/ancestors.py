"""Looks for a milestone among the ancestors of a collection, without materialising any layer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from dask.highlevelgraph import HighLevelGraph, Layer, MaterializedLayer

from dask_resilient.tasks import SaveTask


def names_in_graph(graph: Any, seen: set[int] | None = None) -> Iterator[str]:
    """Give the names of the milestones whose nodes stand in a graph.

    Nodes are looked at, not names of layers: a graph that was optimised, or turned into delayed values, has all its
    tasks in one layer of another name. A layer that is not materialised is of another kind and can hold no such node.

    Parameters
    ----------
    graph
        A mapping of keys to tasks, a `HighLevelGraph`, or None.
    seen
        Ids of layers that need no second look: the parts of one collection share theirs.
    """
    seen = set() if seen is None else seen
    layers = graph.layers.values() if isinstance(graph, HighLevelGraph) else [graph]
    for layer in layers:
        if id(layer) in seen:
            continue
        seen.add(id(layer))
        if isinstance(layer, MaterializedLayer) or (isinstance(layer, Mapping) and not isinstance(layer, Layer)):
            for node in layer.values():
                if isinstance(node, SaveTask):
                    yield node.ticket["name"]


def names_in_operands(operands: list[Any], seen: set[int]) -> Iterator[str]:
    """Give the names of the milestones in the graphs that an expression carries: persisted parts, delayed values."""
    for operand in operands:
        if isinstance(operand, Mapping):
            yield from names_in_graph(operand, seen)
        elif isinstance(operand, list | tuple):
            yield from names_in_operands(list(operand), seen)
        elif not isinstance(operand, type) and callable(getattr(operand, "__dask_graph__", None)):
            yield from names_in_graph(operand.__dask_graph__(), seen)
