"""What ``--preload dask_resilient.preload`` does to a scheduler, also to one that is set up badly."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import dask
import pytest
from distributed import Client, Scheduler, Worker

import dask_resilient as dr
from dask_resilient import preload
from dask_resilient.plugin import NAME
from dask_resilient.probes import device
from dask_resilient.probes.device import Device


def with_scheduler(check, **settings):
    """Start a scheduler with the preload, a worker and a client, and check something."""

    async def run():
        options = {"host": "127.0.0.1", "port": 0, "dashboard_address": ":0", "preload": ["dask_resilient.preload"]}
        async with (
            Scheduler(**options) as scheduler,
            Worker(scheduler.address, dashboard_address=":0") as worker,
            Client(scheduler.address, asynchronous=True) as client,
        ):
            await check(scheduler, worker, client)

    with dask.config.set({f"resilience.{name}": value for name, value in settings.items()}):
        asyncio.run(run())


def test_scheduler_is_protected_from_its_start(tmp_path):
    """Its workers are, and a client connects to what runs, with the store of the setting."""

    async def check(scheduler, worker, client):
        handle = await dr.connect(client)
        (row,) = await handle.workers()
        assert row["protected"]
        assert (await handle.report()).status["store"] == str(tmp_path / "store")

    with_scheduler(check, store=str(tmp_path / "store"))


def test_scheduler_starts_with_a_wrong_setting(caplog):
    """One sentence in the log says what is wrong; the job runs as if we were not there."""

    async def check(scheduler, worker, client):
        assert NAME not in scheduler.plugins
        assert await client.submit(sum, [1, 2]) == 3

    with_scheduler(check, stoer="here")
    (line,) = [r.getMessage() for r in caplog.records if r.name == "dask_resilient"]
    assert line.startswith("dask-resilient does not run, so this cluster is unprotected: there is no setting")
    assert line.endswith("resilience.stoer; did you mean resilience.store?")


def test_scheduler_without_a_store_says_where_partitions_go(tmp_path, monkeypatch, caplog):
    """The default survives a worker only: on a cluster that deserves a warning."""
    monkeypatch.chdir(tmp_path)

    async def check(scheduler, worker, client):
        assert NAME in scheduler.plugins

    with_scheduler(check)
    assert str(tmp_path / "dask-resilient-store") in caplog.text
    assert "DASK_RESILIENCE__STORE" in caplog.text


def test_disabled_plugin_is_not_started(caplog):
    """``resilience.enabled: false`` leaves the scheduler as it is."""

    async def check(scheduler, worker, client):
        assert NAME not in scheduler.handlers

    with_scheduler(check, enabled=False)


@pytest.mark.parametrize("known", [True, False], ids=["known", "not known in time"])
def test_worker_registers_with_its_device(known, monkeypatch, caplog):
    """As soon as it is known; until then it joins without, with a warning."""
    found = Device("GPU-1", "A", 80, True) if known else None
    gauge = SimpleNamespace(device=found, wait=lambda _: found, reason="NVML hangs")
    held = []
    monkeypatch.setattr(device, "acquire", lambda **_: held.append(1) or gauge)
    monkeypatch.setattr(device, "release", held.pop)

    async def run():
        async with Scheduler(host="127.0.0.1", port=0, dashboard_address=":0") as scheduler:
            worker = Worker(scheduler.address, dashboard_address=":0", preload=["dask_resilient.preload"])
            worker.monitor.gpu_name = "A"
            monkeypatch.setattr(worker.monitor, "update", dict)
            async with worker:
                assert held
                (ws,) = scheduler.workers.values()
                assert ws.extra["resilience"] == (found.to_dict() if known else None)
            assert not held

    asyncio.run(run())
    assert ("NVML hangs" in caplog.text) is not known


def test_nanny_needs_nothing_of_it():
    """`preload_nanny` with it does no harm."""
    asyncio.run(preload.dask_setup(SimpleNamespace(id="nanny")))
    asyncio.run(preload.dask_teardown(SimpleNamespace(id="nanny")))
