"""Parts of Dask's graphs that `dask.task_spec` does not name: containers of tasks, and how an old graph becomes new."""

from dask._task_spec import Dict, NestedContainer, Set, convert_legacy_graph

__all__ = ["Dict", "NestedContainer", "Set", "convert_legacy_graph"]
