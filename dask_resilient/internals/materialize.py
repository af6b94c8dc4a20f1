"""Hears of every graph before the scheduler makes tasks of it, off its event loop.

Dask materialises a graph in a thread (`distributed.scheduler._materialize_graph`, handed to ``offload``) and only then,
on the loop, makes tasks. What has to be known about a graph's keys before the first of them is scheduled, and needs
I/O, is found out there: whoever sent the graph, and however it was made. The function is a global of its module, so one
wrapper serves all schedulers of a process, and tells all that listen.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

logger = logging.getLogger("dask_resilient")

NAME = "_materialize_graph"

Hear = Callable[[Mapping[Any, Any]], None]

_hearers: list[Hear] = []
_original: Any = None


def listen(hear: Hear) -> bool:
    """Have a function called with each graph; says whether this Dask can do that.

    It is called in a thread, one graph at a time, and the scheduler's messages wait as long as it takes.
    """
    global _original  # noqa: PLW0603 - as global as what it shadows
    import distributed.scheduler as module

    if _original is None:
        if not callable(getattr(module, NAME, None)):
            return False
        _original = getattr(module, NAME)
        setattr(module, NAME, _materialize)
    _hearers.append(hear)
    return True


def unlisten(hear: Hear) -> None:
    """Call a function no more; the last one to leave gives Dask its own function back."""
    global _original  # noqa: PLW0603
    import distributed.scheduler as module

    if hear in _hearers:
        _hearers.remove(hear)
    if not _hearers and _original is not None and getattr(module, NAME, None) is _materialize:
        setattr(module, NAME, _original)
        _original = None


def _materialize(*args: Any, **kwargs: Any) -> Any:
    result = _original(*args, **kwargs)
    for hear in tuple(_hearers):
        try:
            hear(result[0])
        except Exception:
            logger.exception("dask-resilient: could not look at a graph; it is computed as if nothing were stored")
    return result
