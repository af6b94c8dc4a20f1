"""Installing the plugin from a client, and connecting to one that is installed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping
from time import time
from typing import Any

from distributed import Client
from distributed.versions import get_versions

from dask_resilient.client.asking import ask
from dask_resilient.client.handle import Handle
from dask_resilient.errors import NotInstalledError, ResilienceWarning, UnsupportedType
from dask_resilient.plugin import Resilience
from dask_resilient.scheduler.members import WAITING

logger = logging.getLogger("dask_resilient")

DISTRIBUTION = "dask-resilient"

SHOWN = 5
"""Nodes that a message names."""

REPORT_SECONDS = 5.0
"""Longest that installing waits for the workers to report."""


def install(
    client: Any,
    store: str | os.PathLike[str] | None = None,
    *,
    probes: Iterable[Any] = (),
    resume: str | None = None,
) -> Any:
    """Install the plugin on the client's cluster and give its handle.

    Parameters
    ----------
    client
        A `distributed.Client`.
    store
        Path or ``file://`` URL of the store, made absolute here; the scheduler and every worker must see it. None takes
        the setting ``resilience.store``, and without that ``./dask-resilient-store`` with a warning.
    probes
        Probes of your own, classes or objects with a ``name`` and a method ``read(device)``, see
        `dask_resilient.protocols.Probe`. They run beside every worker, each in a process of its own.
    resume
        By what partitions of milestones that other runs have stored are known again: by ``"fingerprint"`` of code,
        arguments and inputs, by ``"name"`` and ``version=`` alone, or not at all (``"off"``). Until the handle
        uninstalls, this is the setting ``resilience.resume`` of this process; None leaves that as it is.

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
        If a setting, `store` or a probe cannot work.
    UnsupportedType
        If `client` is no `distributed.Client` that is connected.

    Notes
    -----
    Installing again, also from another client, gives a handle of the plugin that is there. Where the store cannot be
    used, or a side cannot be set up, the job runs unprotected, with a `ResilienceWarning` that says why.
    """
    _check(client)
    plugin = Resilience(store, probes=probes, resume=resume)
    if not plugin.settings.enabled:
        return client.sync(_disabled, client)
    said = None if resume is None else {"resilience.resume": plugin.settings.resume}
    if client.asynchronous:
        return _install_and_warn(client, plugin, said)
    handle, texts = client.sync(_install, client, plugin, said)
    for text in texts:
        warnings.warn(text, ResilienceWarning, stacklevel=2)
    return handle


def connect(client: Any) -> Any:
    """Give the handle of the plugin that is installed on the client's cluster.

    Raises
    ------
    NotInstalledError
        If none is.
    UnsupportedType
        If `client` is no `distributed.Client` that is connected.
    """
    _check(client)
    return client.sync(_connect, client)


def _check(client: Any) -> None:
    if not isinstance(client, Client):
        raise UnsupportedType(
            f"a distributed.Client is needed, not an object of type {type(client).__name__}; "
            "make one with distributed.Client(cluster)"
        )
    if client.status in ("closing", "closed"):
        raise UnsupportedType(f"{client!r} is {client.status}: make a new distributed.Client")


async def _disabled(client: Any) -> Handle:
    return Handle(client, enabled=False)


async def _connect(client: Any) -> Handle:
    if not await _is_installed(client):
        raise NotInstalledError(
            f"no dask-resilient plugin runs on the scheduler {client.scheduler.address}: "
            "call dask_resilient.install(client) first"
        )
    await _reported(client)
    return Handle(client)


async def _is_installed(client: Any) -> bool:
    return await ask(client, "status") is not None


async def _install_and_warn(client: Any, plugin: Resilience, said: Mapping[str, str] | None) -> Handle:
    handle, texts = await _install(client, plugin, said)
    for text in texts:
        warnings.warn(text, ResilienceWarning, stacklevel=2)
    return handle


async def _install(client: Any, plugin: Resilience, said: Mapping[str, str] | None) -> tuple[Handle, list[str]]:
    """Install, and give the handle and what the user should be warned of."""
    texts = await _compare_versions(client)
    try:
        await client.register_plugin(plugin)
    except ModuleNotFoundError as e:  # run from source here, and not there
        raise NotInstalledError(f"the scheduler cannot import the plugin ({e}): install dask-resilient there") from e
    status = await ask(client, "status")
    if status is None:
        raise NotInstalledError("dask-resilient could not start on the scheduler: its log says why")
    await _reported(client)
    return Handle(client, said=said), texts + _warnings(plugin, status)


async def _reported(client: Any) -> None:
    """Wait a little until every worker has said whether it protects, so that what is computed next is saved."""
    deadline = time() + REPORT_SECONDS
    while time() < deadline:
        rows = await client.scheduler.resilience(method="workers")
        if not any(row["reason"] == WAITING for row in rows or ()):
            return
        await asyncio.sleep(0.02)


async def _compare_versions(client: Any) -> list[str]:
    """Say in one line who lacks the package, or has another version of it, before anything is changed."""
    mine = _version(await asyncio.to_thread(get_versions, [DISTRIBUTION]))
    if mine is None:
        return []  # not installed as a distribution even here (run from source): nothing to compare by
    nodes = {"the scheduler": await client.scheduler.versions(packages=[DISTRIBUTION])}
    msg = {"op": "versions", "packages": [DISTRIBUTION]}
    with contextlib.suppress(TimeoutError):  # a worker that hangs: what it has is not known
        nodes |= await asyncio.wait_for(client.scheduler.broadcast(msg=msg, on_error="ignore"), REPORT_SECONDS)
    found = {name: _version(node) for name, node in nodes.items() if isinstance(node, Mapping)}
    lacking = [name for name, version in found.items() if version is None]
    if lacking:
        text = f"dask-resilient {mine} is missing on {_some(lacking)}: install it there; nothing was changed"
        raise NotInstalledError(text)
    other = [f"{name} ({version})" for name, version in found.items() if version != mine]
    if not other:
        return []
    return [f"this client has dask-resilient {mine}, another is on {_some(other)}: use one version everywhere"]


def _version(node: Mapping[str, Any]) -> str | None:
    return node["packages"].get(DISTRIBUTION)  # type: ignore[no-any-return]


def _some(names: list[str]) -> str:
    return ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")


def _kept(plugin: Resilience, status: Mapping[str, Any]) -> Iterator[str]:
    """Say what another installation, which stays, was given else."""
    advice = "call uninstall() on its handle first to change that"
    if status["resume"] != plugin.settings.resume:
        yield f"a plugin is installed already and keeps resume={status['resume']!r}; {advice}"
    for what, mark in plugin.given.items():
        if mark and mark != status.get("given", {}).get(what, mark):
            yield f"a plugin is installed already and keeps its {what}, not those given now; {advice}"


def _warnings(plugin: Resilience, status: Mapping[str, Any]) -> list[str]:
    texts = []
    if status["store"] != plugin.settings.store:
        texts.append(
            f"a plugin is installed already and keeps its store {status['store']!r}, not {plugin.settings.store!r}; "
            "call uninstall() on its handle first to change that"
        )
    elif plugin.default_store:
        texts.append(
            f"no store was given, so partitions go to {status['store']!r}: that survives the loss of a worker, not of "
            "this machine; give store= or set resilience.store to a path that every machine sees"
        )
    texts += _kept(plugin, status)
    if plugin.probes and not plugin.settings.probe_enabled:
        names = ", ".join(name for name, _ in plugin.probes)
        texts.append(f"the probes {names} do not run: resilience.probe.enabled is false")
    if status["store_reason"]:
        texts.append(f"nothing is saved: {status['store_reason']}")
    if status.get("forgets"):
        texts.append(f"{status['forgets']}; see the setting resilience.quarantine.path")
    return texts
