"""Parts of Dask's graphs that `dask.task_spec` does not name: containers of tasks, and how an old graph becomes new."""

from __future__ import annotations

import re
from typing import Any

from dask._expr import ProhibitReuse
from dask._task_spec import Dict, NestedContainer, Set, Task, convert_legacy_graph

__all__ = ["Dict", "NestedContainer", "Set", "convert_legacy_graph", "is_renamed", "unwrapped"]

_SUFFIX = re.compile(r"-[0-9a-f]{32}")


def unwrapped(node: Any) -> Any:
    """Give what Dask has wrapped under a new key: the graph of a collection that is an argument of a delayed call."""
    if type(node) is Task and node.func is ProhibitReuse._identity and len(node.args) == 1:
        return node.args[0]
    return node


def is_renamed(key: Any, before: Any) -> bool:
    """Say whether a key is another one with the suffix that Dask gives it there."""
    new, old = (each if isinstance(each, tuple) and each else (each,) for each in (key, before))
    if new[1:] != old[1:] or not (isinstance(new[0], str) and isinstance(old[0], str)):
        return False
    return new[0].startswith(old[0]) and _SUFFIX.fullmatch(new[0][len(old[0]) :]) is not None
