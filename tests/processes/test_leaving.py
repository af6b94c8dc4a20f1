"""Installing, leaving, and being away: nothing is left behind, and nobody else is disturbed."""

from __future__ import annotations

import asyncio
import threading
import time

import dask
import pytest
from distributed import Client, LocalCluster, wait

import dask_resilient as dr
from dask_resilient.errors import NotInstalledError, ResilienceWarning
from dask_resilient.plugin import NAME
from tests.processes.jobs import Job, UserError
from tests.support.leftovers import threads
from tests.support.waiting import wait_until


def test_uninstalling_while_loads_are_under_way(x):
    """Loads that hang are taken off the detour: the keys are computed anew, and no trace is left."""
    x.install(recover__timeout=2)
    job = Job(x, 9, above="")
    job.hold_milestone()
    x.hold("load")
    victim = job.holders()[0]
    job.look([victim])
    x.kill(victim)
    x.until(lambda: len(x.watch.detour.parked) == len(job.lost), what="all that was lost is being loaded")
    assert x.handle.uninstall(wait=0.1) is False
    x.check_undone()
    wait(job.futures(), 30)
    job.right()
    assert job.repeated() == dict.fromkeys("abc", job.lost)


def test_leaving_waits_for_saves(x):
    """What was being saved when the block ended is durable when it is left."""
    handle = x.install()
    x.hold("save")
    job = Job(x, 9, above="")
    job.held = job.persist(job.milestone)
    wait(job.futures(), 30)
    x.until(lambda: x.watch.ledger.saving() == 9)
    watch = x.watch
    leaving = threading.Thread(target=handle.__exit__, args=(None, None, None))
    leaving.start()
    x.until(lambda: not watch.detour.on, what="leaving has begun")
    assert not list(x.store.glob("commit/*/*.json"))
    x.free("save")
    leaving.join(20)
    assert not leaving.is_alive()
    assert len(list(x.store.glob("commit/*/*.json"))) == 9
    assert list(x.store.glob("runs/*/complete.json"))
    x.check_undone()


def test_an_exception_passes_unchanged(x):
    """What the user's code raises inside the block arrives as it is; the run is not marked complete."""
    error = UserError("mine")
    with pytest.raises(UserError) as caught, x.install():
        raise error
    assert caught.value is error
    assert caught.value.__context__ is None
    assert not list(x.store.glob("runs/*/complete.json"))
    x.check_undone()


@pytest.fixture
def own(tmp_path):
    """A cluster that the test may close, without workers."""
    with (
        LocalCluster(n_workers=0, threads_per_worker=1, host="127.0.0.1", silence_logs=False) as cluster,
        Client(cluster) as client,
    ):
        client.store = tmp_path / "store"
        yield cluster, client


def test_a_cluster_without_workers(own):
    """Installed before any worker is there; those that join are protected."""
    cluster, client = own
    with dr.install(client, store=client.store) as res:
        assert res.workers() == []
        assert "No worker is connected" in str(res.report())
        cluster.scale(1)
        client.wait_for_workers(1)
        assert client.submit(int, "3").result() == 3
        while not all(row["protected"] for row in res.workers()):
            assert not any("failed" in row["reason"] for row in res.workers())
        assert len(res.workers()) == 1
    wait_until(lambda: not threads(), what="the thread of the store ends")


@pytest.mark.parametrize("fails", [False, True], ids=["in peace", "with an error"])
@pytest.mark.parametrize("first", ["client", "cluster"])
def test_a_cluster_that_is_closed_inside_the_block(own, fails, first):
    """Leaving gives no traceback of its own, hides none, and does not wait for what is gone."""
    cluster, client = own
    seen = []
    begun = time.monotonic()
    try:
        with dr.install(client, store=client.store):
            if first == "client":
                client.close()
            cluster.close()
            if fails:
                raise UserError("mine")
    except UserError as e:
        seen.append(e)
    assert time.monotonic() - begun < 10
    assert [error.args for error in seen] == ([("mine",)] if fails else [])


def test_switched_off(x):
    """``resilience.enabled: false``: no handler, no plugin, no row, no thread, no directory; the job runs."""
    with dask.config.set({"resilience.enabled": False}), dr.install(x.client, store=x.store) as res:
        x.check_undone()
        handler = x.scheduler.stream_handlers.get(NAME)
        assert not hasattr(handler, "__self__"), (
            "only a function that ignores late messages may be left of earlier tests"
        )
        assert set(x.client.run(lambda dask_worker: "resilience" in dask_worker.plugins).values()) == {False}
        job = Job(x, 9, above="")
        job.held = job.persist(job.milestone)
        job.right()
        assert (res.workers(), res.incidents(), res.checkpoints()) == ([], [], [])
        assert "switched off" in str(res.report())
        assert not x.store.exists()


def test_an_asynchronous_client(x):
    """Every method can be awaited, and the handle is an asynchronous context manager."""

    async def use():
        async with Client(x.scheduler.address, asynchronous=True, set_as_default=False) as client:
            async with await dr.install(client, store=x.store) as res:
                rows = await res.workers()
                assert len(rows) == x.n
                assert (await res.incidents(), await res.checkpoints()) == ([], [])
                assert "3 workers are protected" in str(await res.report())
                again = await dr.connect(client)
                assert len(await again.workers()) == x.n
                assert await res.complete()
                assert await res.complete()
            with pytest.raises(NotInstalledError):
                await res.workers()

    asyncio.run(use())
    x.check_undone()


def test_two_clients(x):
    """A second client gets the same plugin; when the first has uninstalled it, the other is told so."""
    with pytest.raises(NotInstalledError, match=r"no dask-resilient plugin runs on the scheduler tcp://.*: call"):
        dr.connect(x.client)
    first = x.install()
    with Client(x.cluster, set_as_default=False) as client:
        with pytest.warns(ResilienceWarning, match="installed already and keeps its store") as caught:
            second = dr.install(client, store=x.where / "other")
        assert len(caught) == 1
        connected = dr.connect(client)
        # Without their health, which may change between two calls.
        who = [[(row["worker"], row["device"]) for row in each.workers()] for each in (first, second, connected)]
        assert who[0] == who[1] == who[2]
        assert first.uninstall()
        for call in (second.workers, second.incidents, second.checkpoints, connected.report, connected.complete):
            with pytest.raises(NotInstalledError, match="any more"):
                call()
        assert second.uninstall()
    assert NAME not in x.scheduler.plugins
