"""Asking the plugin from a client: the call, and what goes with it."""

from __future__ import annotations

import logging
from typing import Any

from distributed.protocol.pickle import dumps

from dask_resilient.core.messages import one_line
from dask_resilient.errors import SettingError
from dask_resilient.plugin import NAME

logger = logging.getLogger("dask_resilient")


def who() -> str:
    """Say who asks, for the row: the user and the machine."""
    import getpass
    import socket

    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # a user without a name, as in some containers
        user = "somebody"
    return f"{user}@{socket.gethostname()}"


def checked(name: str, value: object) -> str:
    """Give a text as it is sent: an operator may have put anything there, of any size."""
    if not isinstance(value, str):
        raise SettingError(f"{name} = {one_line(repr(value), 100)} must be a text, not {type(value).__name__}")
    return one_line(value)


async def ask(client: Any, method: str, **kwargs: Any) -> Any:
    """Call a method of the plugin; None if none is installed.

    Dask answers None to an operation that nobody serves, but writes a traceback to the scheduler's log: so it is looked
    for first.
    """
    if client.scheduler is None:
        return None
    try:
        found = await client.scheduler.run_function(function=dumps(_has_handler), args=dumps(()), kwargs=dumps({}))
        if found.get("result") is False:
            return None
    except Exception:
        logger.debug("cannot look for the handler", exc_info=True)
    return await client.scheduler.resilience(method=method, **kwargs)


def _has_handler(dask_scheduler: Any) -> bool:
    return NAME in dask_scheduler.handlers
