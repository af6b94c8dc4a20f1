"""Hears of every graph before the scheduler makes tasks of it, off its event loop.

Dask materialises a graph in a thread (`distributed.scheduler._materialize_graph`, handed to ``offload``) and only then,
on the loop, makes tasks. What has to be known about a graph's keys before the first of them is scheduled, and needs
I/O, is found out there: whoever sent the graph, and however it was made. The function is a global of its module, so one
wrapper serves all schedulers of a process; which of them a graph was sent to is told by a context variable, which the
handler of ``update-graph`` sets: what is handed to ``offload`` runs in a copy of the context.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any

logger = logging.getLogger("dask_resilient")

NAME = "_materialize_graph"

Hear = Callable[[Mapping[Any, Any]], None]

_OP = "update-graph"

_hearers: dict[Any, tuple[Hear, Any, Any]] = {}
"""By scheduler: who hears, Dask's handler of the scheduler, and ours."""
_original: Any = None
_sent_to: ContextVar[Any] = ContextVar("dask_resilient_scheduler", default=None)


def listen(scheduler: Any, hear: Hear) -> bool:
    """Have a function called with each graph that is sent to a scheduler; says whether this Dask can do that.

    It is called in a thread, one graph at a time, and the scheduler's messages wait as long as it takes.
    """
    global _original  # noqa: PLW0603 - as global as what it shadows
    import distributed.scheduler as module

    handler = scheduler.stream_handlers.get(_OP)
    if handler is None or not callable(getattr(module, NAME, None)):
        return False

    async def update_graph(*args: Any, **kwargs: Any) -> Any:
        _sent_to.set(scheduler)  # of the task that handles this message
        return await handler(*args, **kwargs)

    if _original is None:
        _original = getattr(module, NAME)
        setattr(module, NAME, _materialize)
    scheduler.stream_handlers[_OP] = update_graph
    _hearers[scheduler] = (hear, handler, update_graph)
    return True


def unlisten(scheduler: Any) -> None:
    """Have nothing called any more; the last one to leave gives Dask its own function back."""
    global _original  # noqa: PLW0603
    import distributed.scheduler as module

    _, handler, ours = _hearers.pop(scheduler, (None, None, None))
    if ours is not None and scheduler.stream_handlers.get(_OP) is ours:
        scheduler.stream_handlers[_OP] = handler
    if not _hearers and _original is not None and getattr(module, NAME, None) is _materialize:
        setattr(module, NAME, _original)
        _original = None


def _materialize(*args: Any, **kwargs: Any) -> Any:
    result = _original(*args, **kwargs)
    hear, _, _ = _hearers.get(_sent_to.get(), (None, None, None))
    try:
        if hear is not None:
            hear(result[0])
    except Exception:
        logger.exception("dask-resilient: could not look at a graph; it is computed as if nothing were stored")
    return result
