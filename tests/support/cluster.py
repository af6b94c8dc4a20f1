"""Tests of the recovery mechanism on a cluster in this process.

`cluster_test` makes a test of a coroutine function. Dask validates itself throughout, and when the test ends everything
is checked: both sides' invariants, that nothing is left once every future is released, that Dask logged no failed
transition, and that uninstalling leaves no trace.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import warnings
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dask
from distributed.client import _global_clients

from dask_resilient.scheduler import copies as copies_module
from dask_resilient.worker import loader as loader_module
from tests.support.in_process import Cluster, threads
from tests.support.world import World

__all__ = ["Cluster", "cluster_test", "threads"]

SECONDS = 30.0
"""Longest that one test may take; a hang is a failure."""

CONFIG = {
    "distributed.scheduler.validate": True,
    "distributed.worker.validate": True,
    "distributed.worker.profile.enabled": False,
    "distributed.admin.tick.interval": "500 ms",
    "distributed.admin.system-monitor.gil.enabled": False,
    "distributed.comm.timeouts.connect": "5s",
    "distributed.scheduler.active-memory-manager.start": False,
    # A process a cluster, and nothing of what is tested here; tests of health switch it on.
    "resilience.probe.enabled": False,
}


def cluster_test(
    workers: int = 2, threads: int = 1, *, install: bool = True, check: bool = True, **config: Any
) -> Callable[[Callable[..., Awaitable[None]]], Callable[..., None]]:
    """Make a test of a coroutine function whose first argument is a `Cluster`; pytest gives the others as fixtures.

    Parameters
    ----------
    workers, threads
        Size of the cluster.
    install
        Whether the plugin is installed before the test.
    check
        Whether everything is checked when the test ends.
    config
        Settings, ``__`` for a dot and ``_`` for a dash.
    """
    settings = {key.replace("__", ".").replace("_", "-"): value for key, value in config.items()}

    def decorate(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
        @functools.wraps(test)
        def wrapped(tmp_path: Path, **fixtures: Any) -> None:
            with dask.config.set({**CONFIG, **settings}):
                asyncio.run(_run(test, Cluster(tmp_path / "store", threads), workers, install, check, fixtures))

        parameters = list(inspect.signature(test).parameters.values())[1:]
        first = inspect.Parameter("tmp_path", inspect.Parameter.KEYWORD_ONLY)
        wrapped.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [first, *(p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in parameters)]
        )
        return wrapped

    return decorate


async def _run(
    test: Callable[..., Awaitable[None]], x: Cluster, workers: int, install: bool, check: bool, fixtures: dict[str, Any]
) -> None:
    loggers = [logging.getLogger("distributed"), logging.getLogger("dask_resilient")]
    for logger in loggers:
        logger.addHandler(x.log)
    try:
        with _counted(x.world), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Creating scratch directories")  # a slow disk is no failure
            await x.start(workers, install)
            try:
                await asyncio.wait_for(test(x, **fixtures), SECONDS)
                if check:
                    await x.check()
            except TimeoutError:
                raise AssertionError(f"a hang: {x.story()}; {x.log.bad()}") from None
            finally:
                # An actor's worker makes a client of its own the default of this process, and nobody closes it.
                for client in list(_global_clients.values()):
                    if client.asynchronous and client.status != "closed":
                        await client.close()
                await x.stop()
        assert not x.log.bad()
    finally:
        for logger in loggers:
            logger.removeHandler(x.log)


@contextmanager
def _counted(world: World) -> Iterator[None]:
    """Let a world hear of every load, and of every second read as ``"second read"``."""
    read, verify = loader_module.Loader._read, loader_module.verify_and_revoke

    def load(self: Any, ticket: Any) -> Any:
        world.load(ticket["dask_key"], self._side.worker.address)
        return read(self, ticket)

    def second(*args: Any) -> Any:
        world.pass_("second read")
        return verify(*args)

    loader_module.Loader._read = load  # type: ignore[method-assign]
    loader_module.verify_and_revoke = copies_module.verify_and_revoke = second  # type: ignore[assignment]
    try:
        yield
    finally:
        loader_module.Loader._read = read  # type: ignore[method-assign]
        loader_module.verify_and_revoke = copies_module.verify_and_revoke = verify
