"""The collections side: how a milestone is marked in a graph, and opened again from a store."""

from __future__ import annotations

from dask_resilient.graph.mark import checkpoint
from dask_resilient.graph.stored import open_milestone

__all__ = ["checkpoint", "open_milestone"]
