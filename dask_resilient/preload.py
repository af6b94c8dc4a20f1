"""What ``--preload dask_resilient.preload`` loads: the plugin on a scheduler, the device's identity on a worker.

A scheduler that loads it is protected from its start, with the store of the setting ``resilience.store``. A worker that
loads it says when it joins which GPU it has, before it gets its first task; without it that is known a moment later.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from dask_resilient.errors import ResilienceError
from dask_resilient.plugin import NAME, Resilience
from dask_resilient.probes import device as probes

logger = logging.getLogger("dask_resilient")

IDENTITY_SECONDS = 5.0
"""Longest that a worker waits to know its device; it then joins without, as if it had not loaded this."""

_acquired: set[str] = set()
"""Ids of the workers in this process that hold the gauge."""


async def dask_setup(server: Any) -> None:
    """Set up a scheduler or a worker; never fails or holds up its start. A nanny needs nothing: the plugin cares."""
    from distributed import Scheduler, Worker

    try:
        if isinstance(server, Scheduler):
            await _scheduler(server)
        elif isinstance(server, Worker):
            await _worker(server)
    except ResilienceError as e:
        logger.error("dask-resilient does not run, so this cluster is unprotected: %s", e)  # noqa: TRY400 - the sentence says it all
    except Exception:
        logger.exception("dask-resilient does not run; Dask goes on without it")


async def dask_teardown(server: Any) -> None:
    """Let go of what a worker holds."""
    if server.id in _acquired:
        _acquired.discard(server.id)
        probes.release()


async def _scheduler(scheduler: Any) -> None:
    plugin = Resilience()
    if plugin.default_store and plugin.settings.enabled:
        logger.warning(
            "dask-resilient: no store was set, so partitions go to %r: that survives the loss of a worker, not of this "
            "machine; set resilience.store (DASK_RESILIENCE__STORE) to a path that every machine sees",
            plugin.settings.store,
        )
    await scheduler.register_scheduler_plugin(plugin, idempotent=True)


async def _worker(worker: Any) -> None:
    if worker.monitor.gpu_name is None:
        return
    gauge = probes.acquire(gpu=True)
    _acquired.add(worker.id)
    device = await asyncio.to_thread(gauge.wait, IDENTITY_SECONDS)
    if device is None:
        logger.warning("dask-resilient: the GPU of this worker is not known yet: %s", gauge.reason)
    worker.startup_information[NAME] = lambda _: gauge.device.to_dict() if gauge.device is not None else None
