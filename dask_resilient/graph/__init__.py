"""The collections side: how a milestone is marked in a graph."""

from __future__ import annotations

from dask_resilient.graph.mark import checkpoint

__all__ = ["checkpoint"]
