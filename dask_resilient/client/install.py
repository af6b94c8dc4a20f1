"""Installing the plugin from a client, and connecting to one that is installed."""

from __future__ import annotations

import asyncio
import os
import warnings
from collections.abc import Mapping
from time import time
from typing import Any

from distributed.versions import get_versions

from dask_resilient.client.handle import Handle, ask
from dask_resilient.errors import NotInstalledError, ResilienceWarning
from dask_resilient.plugin import Resilience
from dask_resilient.scheduler.members import WAITING

DISTRIBUTION = "dask-resilient"

SHOWN = 5
"""Nodes that a message names."""

REPORT_SECONDS = 5.0
"""Longest that installing waits for the workers to report."""


def install(client: Any, store: str | os.PathLike[str] | None = None) -> Any:
    """Install the plugin on the client's cluster and give its handle.

    Parameters
    ----------
    client
        A `distributed.Client`.
    store
        Path or ``file://`` URL of the store, made absolute here; the scheduler and every worker must see it. None takes
        the setting ``resilience.store``, and without that ``./dask-resilient-store`` with a warning.

    Returns
    -------
    Handle
        Also a context manager: leaving it without an exception marks the run complete; leaving it waits for saves under
        way and uninstalls. For an asynchronous client an awaitable of a handle that is an asynchronous context manager.

    Raises
    ------
    NotInstalledError
        If the scheduler or a worker lacks this package; the message says who. Nothing was changed then.
    SettingError
        If a setting or `store` cannot work.

    Notes
    -----
    Installing again, also from another client, gives a handle of the plugin that is there. Where the store cannot be
    used, or a side cannot be set up, the job runs unprotected, with a `ResilienceWarning` that says why.
    """
    plugin = Resilience(store)
    if not plugin.settings.enabled:
        return client.sync(_disabled, client)
    return client.sync(_install, client, plugin)


def connect(client: Any) -> Any:
    """Give the handle of the plugin that is installed on the client's cluster.

    Raises
    ------
    NotInstalledError
        If none is.
    """
    return client.sync(_connect, client)


async def _disabled(client: Any) -> Handle:
    return Handle(client, enabled=False)


async def _connect(client: Any) -> Handle:
    handle = Handle(client)
    if await ask(client, "status") is None:
        address = client.scheduler.address if client.scheduler is not None else "?"
        raise NotInstalledError(
            f"no dask-resilient plugin runs on the scheduler {address}: call dask_resilient.install(client) first"
        )
    return handle


async def _install(client: Any, plugin: Resilience) -> Handle:
    await _compare_versions(client)
    try:
        await client.register_plugin(plugin)
    except ModuleNotFoundError as e:  # run from source here, and not there
        raise NotInstalledError(f"the scheduler cannot import the plugin ({e}): install dask-resilient there") from e
    status = await ask(client, "status")
    if status is None:
        raise NotInstalledError("dask-resilient could not start on the scheduler: its log says why")
    _warn(plugin, status)
    await _reported(client)
    return Handle(client)


async def _reported(client: Any) -> None:
    """Wait a little until every worker has said whether it protects, so that what is computed next is saved."""
    deadline = time() + REPORT_SECONDS
    while time() < deadline:
        rows = await client.scheduler.resilience(method="workers")
        if not any(row["reason"] == WAITING for row in rows):
            return
        await asyncio.sleep(0.02)


async def _compare_versions(client: Any) -> None:
    """Say in one line who lacks the package, or has another version of it, before anything is changed."""
    mine = _version(await asyncio.to_thread(get_versions, [DISTRIBUTION]))
    if mine is None:
        return  # not installed as a distribution even here (run from source): nothing to compare by
    nodes = {"the scheduler": await client.scheduler.versions(packages=[DISTRIBUTION])}
    nodes |= await client.scheduler.broadcast(msg={"op": "versions", "packages": [DISTRIBUTION]}, on_error="ignore")
    found = {name: _version(node) for name, node in nodes.items() if isinstance(node, Mapping)}
    lacking = [name for name, version in found.items() if version is None]
    if lacking:
        text = f"dask-resilient {mine} is missing on {_some(lacking)}: install it there; nothing was changed"
        raise NotInstalledError(text)
    other = [f"{name} ({version})" for name, version in found.items() if version != mine]
    if other:
        text = f"this client has dask-resilient {mine}, another is on {_some(other)}: use one version everywhere"
        warnings.warn(text, ResilienceWarning, stacklevel=2)


def _version(node: Mapping[str, Any]) -> str | None:
    return node["packages"].get(DISTRIBUTION)  # type: ignore[no-any-return]


def _some(names: list[str]) -> str:
    return ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")


def _warn(plugin: Resilience, status: Mapping[str, Any]) -> None:
    if status["store_reason"]:
        text = f"nothing is saved: {status['store_reason']}"
    elif status["store"] != plugin.settings.store:
        text = f"the plugin was installed before and keeps its store {status['store']!r}, not {plugin.settings.store!r}"
    elif plugin.default_store:
        text = (
            f"no store was given, so partitions go to {status['store']!r}: that survives the loss of a worker, not of "
            "this machine; give store= or set resilience.store to a path that every machine sees"
        )
    else:
        return
    warnings.warn(text, ResilienceWarning, stacklevel=2)
