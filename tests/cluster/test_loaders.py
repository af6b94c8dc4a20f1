"""Who can load: workers that report, that do not, that join and go while keys wait."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from dask_resilient.errors import StoreError
from dask_resilient.plugin import Resilience
from dask_resilient.scheduler import members, watch
from dask_resilient.worker import side as side_module
from dask_resilient.worker.side import Side
from tests.support.cluster import Cluster, cluster_test
from tests.support.waiting import until

CHAIN = {"D": [], "K": ["D"]}


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Give a list of worker names whose sides never report."""
    names: list[str] = []
    hello = Side.hello
    monkeypatch.setattr(Side, "hello", lambda self: None if self.worker.name in names else hello(self))
    return names


@cluster_test(workers=1)
async def test_no_load_goes_to_a_worker_that_has_not_reported(x: Cluster, silent: list[str]) -> None:
    """Though it is the only one that runs."""
    silent.append("new")
    await x.stored(CHAIN, "K")
    await x.join(name="new", nthreads=8)
    x.pause(x.workers[0])
    (k,) = x.persist(CHAIN, "K")
    await until(lambda: x.task("K").state == "no-worker")
    x.pause(x.workers[0], paused=False)
    await x.loads("K")
    assert x.world.loads == [("K", x.workers[0].address)]
    await x.right(CHAIN, k)
    assert x.task("K").worker_restrictions is None


@cluster_test(workers=1)
async def test_loads_under_way_when_a_worker_joins(x: Cluster, silent: list[str]) -> None:
    """Queued loads, which may go anywhere, are bound to those that reported when another worker joins."""
    keys = [f"kk-{i}" for i in range(6)]
    spec = {key: [] for key in keys}
    await x.stored(spec, *keys)
    x.world.hold(*(f"load {key}" for key in keys))
    futures = x.persist(spec, *keys)
    await until(lambda: sum(x.task(key).state == "queued" for key in keys) >= 3)
    silent.append("new")
    await x.join(name="new", nthreads=8)
    x.world.free()
    await x.right(spec, *futures)
    assert {worker for _, worker in x.world.loads} == {x.workers[0].address}
    assert not x.world.runs
    assert all(x.task(key).worker_restrictions is None for key in keys)


@cluster_test(workers=1)
async def test_a_load_in_no_worker_when_workers_join_and_report(x: Cluster, silent: list[str]) -> None:
    """The only loader is paused: a new worker does not take the load, until it reports."""
    await x.stored(CHAIN, "K")
    x.pause(*x.workers)
    silent.append("new")
    (k,) = x.persist(CHAIN, "K")
    await until(lambda: x.task("K").state == "no-worker")
    assert "K" in x.parked
    new = await x.join(name="new")
    assert x.task("K").state == "no-worker"
    silent.clear()
    await until(lambda: x.side(new).store)
    x.side(new).hello()
    await x.right(CHAIN, k)
    assert x.world.loads == [("K", new.address)]
    assert not x.world.runs


@cluster_test(workers=1)
async def test_other_workers_allowed_does_not_mean_unready_ones(x: Cluster, silent: list[str]) -> None:
    """K's pin is loose, and the only loader is paused: the load still does not go to a worker that has not reported."""
    (a,) = x.workers
    x.mark("K")
    (k,) = x.persist({"K": []}, "K", workers=[a.address], allow_other_workers=True)
    await x.done(k)
    await x.durable("K")
    silent.append("new")
    await x.join(name="new")
    x.pause(a)
    x.scheduler.transitions({"K": "released"}, "test-lost")
    assert x.task("K").state == "no-worker"
    x.pause(a, paused=False)
    await x.right({"K": []}, k)
    assert x.world.loads == [("K", a.address)]
    assert x.task("K").loose_restrictions
    assert x.task("K").worker_restrictions == {a.address}


@cluster_test(workers=1)
async def test_the_first_worker_after_a_total_loss_runs_no_lineage(x: Cluster) -> None:
    """Loads are held until it has reported, a moment later."""
    await x.stored(CHAIN, "K")
    await x.lose(x.workers[0].address)
    (k,) = x.persist(CHAIN, "K")
    await until(lambda: x.task("K").state == "no-worker")
    await x.join(name="new")
    await x.right(CHAIN, k)
    assert x.world.loaded("K") == 1
    assert not {"D", "K"} & set(x.world.counts())


@cluster_test(workers=1)
async def test_loads_are_not_held_for_ever(x: Cluster, silent: list[str], monkeypatch: Any) -> None:
    """The only worker never reports: once its time is over, Dask recomputes."""
    monkeypatch.setattr(members, "HOLD_SECONDS", 0.2)
    monkeypatch.setattr(watch, "HOLD_SECONDS", 0.2)
    await x.stored(CHAIN, "K")
    await x.lose(x.workers[0].address)
    (k,) = x.persist(CHAIN, "K")
    silent.append("new")
    await x.join(name="new")
    await x.right(CHAIN, k)
    assert x.world.loaded("K") == 0
    counts = x.world.counts()
    assert (counts["D"], counts["K"]) == (1, 1)


@cluster_test(workers=1)
async def test_all_workers_unready_means_no_detour(x: Cluster, silent: list[str], monkeypatch: Any) -> None:
    """The last loader is lost, and the worker that is left should have reported long ago: computed, at once."""
    monkeypatch.setattr(members, "HOLD_SECONDS", 0)
    await x.stored(CHAIN, "K")
    silent.append("new")
    await x.join(name="new")
    x.world.hold("load K")
    (k,) = x.persist(CHAIN, "K")
    await x.loads("K")
    await x.lose(x.workers[0].address)
    assert "K" not in x.parked
    await x.right(CHAIN, k)
    assert x.world.counts() == {"D": 1, "K": 1}
    assert x.world.loaded("K") == 1
    x.world.free()


@pytest.mark.parametrize(("state", "n"), [("no-worker", 1), ("queued", 6)])
@cluster_test(workers=1)
async def test_a_waiting_load_leaves_when_its_last_loader_goes(
    x: Cluster, silent: list[str], state: str, n: int
) -> None:
    """It is computed by the worker that is left and has not reported."""
    keys = [f"kk-{i}" for i in range(n)]
    spec = {key: [] for key in keys}
    await x.stored(spec, *keys)
    if state == "no-worker":
        x.pause(*x.workers)
    x.world.hold(*(f"load {key}" for key in keys))
    futures = x.persist(spec, *keys)
    await until(lambda: sum(x.task(key).state == state for key in keys) >= (n + 1) // 2)
    silent.append("new")
    await x.join(name="new")
    await x.lose(x.workers[0].address)
    x.world.free()
    await x.right(spec, *futures)
    assert not x.parked
    assert len(x.world.runs) == n


@cluster_test(workers=1)
async def test_the_only_worker_is_replaced(x: Cluster) -> None:
    """Nobody can load when the value is lost; the worker that comes loads it as soon as it has reported."""
    spec = {"A": [], "D": ["A"], "K": ["D"]}
    x.mark("K")
    (k,) = x.persist(spec, "K")
    await x.done(k)
    await x.durable("K")
    await x.lose(x.workers[0].address)
    x.world.hold("A")  # its run on one thread must not keep the load from the other
    await x.join(ready=True, nthreads=2)
    await x.loads("K")
    x.world.free()
    await x.right(spec, k)
    assert x.world.ran("K") == 1
    assert x.world.loaded("K") == 1


@cluster_test(workers=2, install=False)
async def test_a_worker_that_joins_while_the_plugin_is_registered(x: Cluster, monkeypatch: Any) -> None:
    """It is known, can load, and is protected, though no hook told of it; those that went are gone."""
    entered, go = asyncio.Event(), asyncio.Event()
    opened = Resilience._open_store

    async def slowly(self: Resilience) -> Any:
        token = await opened(self)
        entered.set()
        await go.wait()
        return token

    monkeypatch.setattr(Resilience, "_open_store", slowly)
    installing = asyncio.ensure_future(x.install())
    await entered.wait()
    gone = await x.join()
    await x.join()
    await x.lose(gone.address)
    await x.lose(x.workers[0].address)
    go.set()
    await installing
    here = {w.address for w in x.workers} - {gone.address, x.workers[0].address}
    await until(lambda: {r["worker"] for r in x.watch.members.rows() if r["protected"]} == here)
    assert x.watch.members.loaders(set(), time.time()) is None


@cluster_test(workers=1)
async def test_no_load_goes_to_a_worker_without_the_store(x: Cluster, monkeypatch: Any) -> None:
    """It has reported, and would end every load as unreachable."""

    def no_store(*args: Any, **kwargs: Any) -> None:
        raise StoreError("not mounted here")

    monkeypatch.setattr(side_module, "open_store", no_store)
    await x.stored(CHAIN, "K")
    await x.join(name="blind", nthreads=8)
    await until(lambda: any("not mounted" in row["reason"] for row in x.watch.members.rows()))
    x.pause(x.workers[0])
    (k,) = x.persist(CHAIN, "K")
    await until(lambda: x.task("K").state == "no-worker")
    x.pause(x.workers[0], paused=False)
    await x.right(CHAIN, k)
    assert x.world.loads == [("K", x.workers[0].address)]


@cluster_test()
async def test_a_worker_whose_side_fails_is_unprotected(x: Cluster, monkeypatch: Any) -> None:
    """It is shown with the reason, gets no loads, and does the rest."""
    monkeypatch.setattr(Side, "start", lambda self: 1 / 0)
    await x.join(name="broken")
    await until(lambda: any("ZeroDivisionError" in row["reason"] for row in x.watch.members.rows()))
    row = next(row for row in x.watch.members.rows() if row["name"] == "broken")
    assert not row["protected"]
    assert x.watch.members.loaders(set(), time.time()) == {w.address for w in x.workers[:2]}
    (k,) = x.persist({"K": []}, "K", workers=[x.workers[2].address])
    await x.right({"K": []}, k)
