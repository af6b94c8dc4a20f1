"""The lives of keys and of the plugin: what is forgotten, restarted, uninstalled."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from dask_resilient.plugin import NAME
from dask_resilient.scheduler.ledger import Ledger
from tests.support.cluster import Cluster, cluster_test
from tests.support.waiting import until
from tests.support.world import expected

CHAIN = {"D": [], "K": ["D"]}


# -- keys --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("other", [0, 1], ids=["the same function", "another function"])
@cluster_test()
async def test_a_forgotten_key_is_computed_anew(x: Cluster, other: int) -> None:
    """What is stored under its name is of a task that is gone; then the new copy is used."""
    (k,) = await x.saved(CHAIN, "K")
    old = x.place("K")
    k.release()
    await until(lambda: not x.scheduler.tasks)
    x.world.other = other
    (k,) = await x.saved(CHAIN, "K")
    assert await x.value(k) == expected(CHAIN, "K", other)
    assert x.world.ran("K") == 2
    assert not x.world.loads
    assert x.place("K").milestone != old.milestone
    await x.lose(x.holder("K"))
    assert await x.value(k) == expected(CHAIN, "K", other)
    assert x.world.ran("K") == 2
    assert x.world.loaded("K") == 1


def test_an_index_that_comes_back_stands_elsewhere() -> None:
    """A partition is forgotten and submitted anew while others of its collection live: its place is new."""
    ledger = Ledger("run")
    old = [ledger.entry(SimpleNamespace(key=("c", i)), "c", 2) for i in range(2)]
    assert old[0].milestone == old[1].milestone
    ledger.forget(("c", 0))
    new = ledger.entry(SimpleNamespace(key=("c", 0)), "c", 2)
    assert new.milestone != old[0].milestone
    for i in range(2):
        ledger.forget(("c", i))
    assert not ledger._lives


@pytest.mark.parametrize("when", ["before it is computed anew", "while it waits", "after it is durable"])
@cluster_test()
async def test_a_late_commit_of_a_forgotten_task(x: Cluster, when: str) -> None:
    """The attempt of the task that is gone never becomes the copy of the new task, which is another function."""
    spec = {"K": [], "D": [], "L": ["D", "K"]}
    writes = x.hold_writes()
    x.mark("K")
    (k,) = x.persist(spec, "K")
    await x.done(k)
    await until(x.watch.ledger.saving)
    saver = next(x.side(w).saver for w in x.workers if x.side(w).saver.staged)
    await until(lambda: any(item.begun for item in saver._items.values()), what="the write has begun")
    k.release()
    await until(lambda: not x.scheduler.tasks)
    x.world.other = 1
    if when == "before it is computed anew":
        writes.set()
        await until(lambda: not saver.staged)
    spec = {"K": ["D"], "D": []}
    x.world.hold("D")
    (k,) = x.persist(spec, "K")
    await x.runs("D")
    if when == "while it waits":
        writes.set()
        await until(lambda: not saver.staged)
        assert x.task("K").state == "waiting"
    x.world.free()
    await x.done(k)
    writes.set()
    await x.durable("K")
    await x.lose(x.holder("K"))
    assert await x.value(k) == expected(spec, "K", 1)
    assert x.world.loaded("K") == 1


@cluster_test()
async def test_client_restart(x: Cluster) -> None:
    """With a load under way: nothing is left of it, and the same keys are computed anew."""
    await x.stored(CHAIN, "K")
    x.world.hold("load K")
    (k,) = x.persist(CHAIN, "K")
    await x.loads("K")
    x.world.free()
    workers = len(x.workers)
    restarting = asyncio.ensure_future(x.client.restart(timeout=10, wait_for_workers=False))
    await until(lambda: not x.scheduler.tasks)
    assert not x.parked
    assert not x.watch.ledger.entries
    assert not x.watch._reloaded
    await restarting
    await until(lambda: not x.scheduler.workers)
    await x.join(ready=True)
    assert len(x.workers) == workers + 1
    x.world.loads.clear()
    x.world.runs.clear()
    (k,) = x.persist(CHAIN, "K")
    await x.right(CHAIN, k)
    assert x.world.counts() == {"D": 1, "K": 1}
    assert not x.world.loads


# -- uninstalling ------------------------------------------------------------------------------------------------------


@cluster_test(check=False)
async def test_uninstall_with_loads_under_way(x: Cluster) -> None:
    """What is still loading when the time is up is computed by Dask; no trace is left."""
    await x.stored(CHAIN, "K")
    x.world.hold("load K")
    (k,) = x.persist(CHAIN, "K")
    await x.loads("K")
    assert not await x.plugin.uninstall(wait=0.05)
    assert not x.task("K").dependents - {x.task("keep-K")}
    x.world.free()
    await x.right(CHAIN, k)
    await x.check_undone()
    x.scheduler.validate_state()
    await x.lose(x.holder("K"))
    await x.right(CHAIN, k)


@cluster_test(check=False)
async def test_uninstall_waits_for_loads_and_saves(x: Cluster) -> None:
    """Within the time that it is given: nothing is computed, and what was being saved is saved."""
    await x.stored(CHAIN, "K")
    x.mark("S")
    x.world.hold("load K")
    writes = x.hold_writes()
    (k,) = x.persist(CHAIN, "K")
    await x.loads("K")
    (s,) = x.persist({"S": []}, "S")
    await x.done(s)
    await until(x.watch.ledger.saving)
    leaving = asyncio.ensure_future(x.plugin.uninstall(wait=20))
    await until(lambda: not x.watch.detour.on)
    x.world.free()
    await until(lambda: not x.parked)
    assert not leaving.done()
    writes.set()
    assert await leaving
    await x.right(CHAIN, k)
    assert x.world.counts() == {"S": 1}
    assert len(list(x.store.glob("commit/*/*.json"))) == 2
    await x.check_undone()


@pytest.mark.parametrize("at_once", [False, True])
@cluster_test(check=False)
async def test_uninstall_twice(x: Cluster, at_once: bool) -> None:
    """Also from two clients at once: the second finds nothing to do."""
    (k,) = await x.saved(CHAIN, "K")
    other = await x.connect()

    def call(client: Any) -> Any:
        return client.scheduler.resilience(method="uninstall")

    if at_once:
        assert await asyncio.gather(call(x.client), call(other)) == [True, True]
    else:
        assert await call(x.client)
        assert await x.plugin.uninstall()
        assert await call(other) is None  # what Dask answers where there is no handler
    await x.check_undone()
    await x.right(CHAIN, k)


@cluster_test(check=False)
async def test_late_messages_find_a_handler(x: Cluster) -> None:
    """What is under way between the two sides when the plugin leaves closes no connection."""
    (k,) = await x.saved(CHAIN, "K")
    sides = [x.side(w) for w in x.workers]
    await x.plugin.uninstall()
    for worker, side in zip(x.workers, sides, strict=True):
        side.send({"kind": "hello", "protected": True, "reason": "", "token": "x"})
        x.scheduler.worker_send(worker.address, {"op": NAME, "do": "drop", "run": side.run, "attempt": "x"})
    futures = [x.client.submit(abs, -i, workers=[w.address], pure=False) for i, w in enumerate(x.workers)]
    assert await asyncio.gather(*futures) == [0, 1]
    assert len(x.scheduler.workers) == 2
    await x.right(CHAIN, k)
    await x.check_undone()


@cluster_test()
async def test_installed_again_after_uninstall(x: Cluster) -> None:
    """A new run: nothing of the old one is used."""
    (k,) = await x.saved(CHAIN, "K")
    await x.plugin.uninstall()
    await x.check_undone()
    await x.install()
    await x.lose(x.holder("K"))
    await x.right(CHAIN, k)
    assert x.world.ran("K") == 2
    await x.durable("K")
    await x.join(ready=True)
    await x.lose(x.holder("K"))
    await x.right(CHAIN, k)
    assert x.world.ran("K") == 2


@cluster_test(workers=1, threads=1)
async def test_an_overtaken_run_is_not_saved_as_the_new_one(x: Cluster) -> None:
    """K is forgotten while its old function ends, and comes again with another: only the new value is stored."""
    go, first = threading.Event(), []

    def marked(key: str) -> bool:
        if key != "K":
            return False
        if not first:
            first.append(key)
            go.wait(15)  # the old value is made, its save has not begun
        return True

    x.world.marked = marked
    k, _d = x.persist(CHAIN, "K", "D")
    await until(lambda: first)
    k.release()
    await until(lambda: "K" not in x.scheduler.tasks)
    x.world.other = 1
    (k,) = x.persist(CHAIN, "K")
    await until(lambda: "K" in x.scheduler.tasks)
    await x.told("K")
    go.set()
    new = await x.value(k)
    await x.durable("K")
    x.drop("K")
    await until(lambda: x.world.loaded("K"))
    await until(lambda: x.task("K").state == "memory")
    assert await x.value(k) == new
