"""Keys that leave the detour: everything is put back, and a failed load is never the user's error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.support.cluster import Cluster, cluster_test
from tests.support.waiting import until

CHAIN = {"D": [], "K": ["D"]}


def explode(ticket: Mapping[str, Any]) -> None:
    """Be a load that ends as no load may end."""
    raise MemoryError(f"nobody expected this of {ticket['dask_key']}")


@pytest.mark.parametrize("errors", [0, 2])
@cluster_test()
async def test_load_raises(x: Cluster, errors: int) -> None:
    """A load that errs spends no retry of the user's and is not tried again; the key is computed (rules 7 and 8).

    The user's function then fails `errors` times by itself.
    """
    x.mark("K")
    (k,) = x.persist(CHAIN, "K", retries=2)
    await x.done(k)
    await x.durable("K")
    x.watch.detour._load = explode
    x.world.errors["K"] = errors
    await x.lose(x.holder("K"))
    await x.right(CHAIN, k)
    assert x.world.counts() == {"D": 2, "K": 2 + errors}
    assert x.task("K").retries == 2 - errors
    assert [row["state"] for row in x.watch.ledger.rows()] == ["failed"]
    assert not x.tombstones()


@cluster_test(workers=5, distributed__scheduler__allowed_failures=3)
async def test_load_kills_workers(x: Cluster) -> None:
    """A copy whose loads kill their workers costs three of them, then the key is computed, uncharged (rule 8)."""
    await x.stored(CHAIN, "K")
    x.world.hold("load K")
    (k,) = x.persist(CHAIN, "K")
    for times in (1, 2, 3):
        await x.loads("K", times)
        assert "K" in x.parked
        await until(lambda: x.watch.ledger.entries["K"].loading == x.runner("K"), what="it is said to have begun")
        await x.lose(x.runner("K"))
    await x.right(CHAIN, k)
    assert x.world.loaded("K") == 3
    assert x.task("K").suspicious == 0
    x.world.free()


@cluster_test(workers=5)
async def test_workers_that_die_together_do_not_spend_the_attempts(x: Cluster) -> None:
    """Four workers of a host die in a row, each with the load of K that it had not begun: K is loaded all the same."""
    await x.stored(CHAIN, "K")
    busy = {f"B{i}": [] for i in range(5)}
    x.world.hold(*busy)
    x.persist(busy, *busy)
    for key in busy:
        await x.runs(key)
    (k,) = x.persist(CHAIN, "K")
    for _ in range(4):
        await until(lambda: x.task("K").processing_on, what="K is sent to a worker")
        await x.lose(x.runner("K"))
        assert "K" in x.parked
    x.world.free()
    await x.right(CHAIN, k)
    assert x.world.ran("D") == x.world.ran("K") == 0
    assert x.world.loaded("K")


@cluster_test(distributed__scheduler__allowed_failures=0)
async def test_killed_worker_is_not_the_users_error(x: Cluster) -> None:
    """Where no failure is allowed, a worker that dies in a load ends in a computation, not in KilledWorker (rule 8)."""
    await x.stored(CHAIN, "K")
    x.world.hold("load K")
    (k,) = x.persist(CHAIN, "K")
    await x.loads("K")
    await x.lose(x.runner("K"))
    await x.right(CHAIN, k)
    assert x.world.counts() == {"D": 1, "K": 1}
    x.world.free()


@cluster_test()
async def test_pins_are_cleared_and_put_back(x: Cluster) -> None:
    """K is pinned to a worker that is gone: it is loaded elsewhere and stays pinned (rule 9)."""
    a, b = (worker.address for worker in x.workers)
    x.mark("K")
    (k,) = x.persist(CHAIN, "K", workers=lambda key: [a] if key == "K" else [b])
    await x.done(k)
    await x.durable("K")
    await x.lose(a)
    await x.right(CHAIN, k)
    assert x.holder("K") == b
    assert x.task("K").worker_restrictions == {a}
    assert x.world.counts() == {"D": 1, "K": 1}


@cluster_test()
async def test_a_restriction_set_meanwhile_wins(x: Cluster) -> None:
    """Somebody restricts K while it is loaded: that stays (rule 9)."""
    await x.stored(CHAIN, "K")
    x.world.hold("load K")
    (k,) = x.persist(CHAIN, "K")
    await x.loads("K")
    x.scheduler.set_restrictions({"K": [x.workers[1].address]})
    x.world.free()
    await x.right(CHAIN, k)
    assert x.task("K").worker_restrictions == {x.workers[1].address}


@cluster_test()
async def test_resource_kept(x: Cluster) -> None:
    """The only worker with the resource is lost: the load waits for the next one that has it (rule 9)."""
    gpu = await x.join(ready=True, resources={"R": 1})
    x.mark("K")
    (k,) = x.persist(CHAIN, "K", resources=lambda key: {"R": 1} if key == "K" else None)
    await x.done(k)
    await x.durable("K")
    assert x.holder("K") == gpu.address
    await x.lose(gpu.address)
    assert x.task("K").state == "no-worker"
    assert "K" in x.parked
    other = await x.join(ready=True, resources={"R": 1})
    await x.right(CHAIN, k)
    assert x.holder("K") == other.address
    assert x.world.counts() == {"D": 1, "K": 1}


@cluster_test(workers=1)
async def test_p2p_stale_pin(x: Cluster) -> None:
    """K was pinned by P2P to a worker that is gone, the shuffle ends while K is loaded, K's copy is bad (rule 10)."""
    (a,) = x.workers
    x.mark("K")
    (k,) = x.persist(CHAIN, "K", shuffle=0)
    await x.done(k)
    await x.durable("K")
    shuffle = x.scheduler.plugins["shuffle"]
    shuffle._set_restriction(x.task("K"), a.address)
    await x.join(ready=True)
    x.world.hold("load K")
    await x.lose(a.address)
    await x.loads("K")
    for dependent in list(x.task("D").dependents):  # as the shuffle plugin cleans up behind a shuffle
        shuffle._unset_restriction(dependent)
    x.chunk("K").unlink()
    x.world.free()
    await x.right(CHAIN, k)
    assert not x.task("K").worker_restrictions
    assert x.world.ran("K") == 2


@cluster_test()
async def test_durations(x: Cluster) -> None:
    """Loads change nothing about how long Dask believes the task to run (rule 15)."""
    keys = [f"kk-{i}" for i in range(6)]
    spec = {"D": [], **{key: ["D"] for key in keys}}
    x.mark(*keys)
    futures = x.persist(spec, *keys)
    await x.done(*futures)
    await x.durable(*keys)
    prefix = x.scheduler.task_prefixes["kk"]
    prefix.add_duration("compute", 0.0, 1.0)
    before = prefix.duration_average
    await x.lose(x.workers[0].address)
    await x.right(spec, *futures)
    assert x.world.loads
    assert prefix.duration_average == before
    assert "reload" in prefix.all_durations


@cluster_test()
async def test_resubmit_while_loading(x: Cluster) -> None:
    """The same keys are submitted while K is loaded: Dask does not warn of another run_spec (rule 16)."""
    spec = {"D": [], "K": ["D"], "M": ["K", "D"]}
    await x.stored(CHAIN, "K")
    x.world.hold("load K")
    (k,) = x.persist(spec, "K")
    await x.loads("K")
    (m,) = x.persist(spec, "M")
    await until(lambda: "M" in x.scheduler.tasks)
    x.world.free()
    await x.right(spec, k, m)
    assert x.task("K").dependencies == {x.task("D")}
    assert x.task("D").dependents == {x.task("K"), x.task("M")}


@cluster_test()
async def test_release_while_loading(x: Cluster) -> None:
    """Nobody wants K any more while it is loaded: it leaves with its lineage, which can then be forgotten."""
    await x.stored(CHAIN, "K")
    x.world.hold("load K")
    (k,) = x.persist(CHAIN, "K")
    await x.loads("K")
    k.release()
    await until(lambda: "K" not in x.parked)
    assert x.task("K").state == "released"
    assert x.task("K").dependencies == {x.task("D")}
    x.world.free()


@cluster_test()
async def test_cancel_while_loading(x: Cluster) -> None:
    """Cancelled futures of a key that is loaded leave nothing behind."""
    x.mark("K")
    (k,) = x.persist(CHAIN, "K")
    await x.done(k)
    await x.durable("K")
    x.world.hold("load K")
    await x.lose(x.holder("K"))
    await x.loads("K")
    await x.client.cancel([k])
    await until(lambda: not x.scheduler.tasks)
    assert not x.parked
    x.world.free()


@cluster_test(workers=1)
async def test_resume_real_then_load(x: Cluster) -> None:
    """K really runs when the scheduler asks the same worker for a load of it: the value of the run counts."""
    x.mark("K")
    x.world.hold("end K")
    (k,) = x.persist(CHAIN, "K")
    await x.durable("K")
    x.scheduler.transitions({"K": "released"}, "test")
    assert "K" in x.parked
    await x.told("K")
    x.world.free()
    await x.right(CHAIN, k)
    assert x.world.ran("K") == 1


@cluster_test(workers=1, threads=2)
async def test_resume_load_then_real(x: Cluster) -> None:
    """K is loaded when the scheduler asks the same worker to compute it, and the load then ends badly."""
    await x.stored(CHAIN, "K")
    x.world.hold("load K")
    (k,) = x.persist(CHAIN, "K")
    await x.loads("K")
    x.chunk("K").unlink()
    x.watch.ledger.entries["K"].refuse("test")
    x.scheduler.transitions({"K": "released"}, "test")
    assert "K" not in x.parked
    await x.told("K")
    x.world.free()
    await x.right(CHAIN, k)
    assert x.world.ran("K") == 1


@pytest.mark.parametrize("times", [1, 2])
@cluster_test(workers=3)
async def test_the_loading_worker_is_lost(x: Cluster, times: int) -> None:
    """K is loaded by another worker then, and nothing is computed."""
    await x.stored(CHAIN, "K")
    x.world.hold("load K")
    (k,) = x.persist(CHAIN, "K")
    for n in range(1, times + 1):
        await x.loads("K", n)
        await x.lose(x.runner("K"))
    await x.loads("K", times + 1)
    x.world.free()
    await x.right(CHAIN, k)
    assert not x.world.runs


@cluster_test()
async def test_a_second_loss_finds_the_whole_lineage(x: Cluster) -> None:
    """K was loaded and is lost again with a bad copy: D and K run."""
    x.mark("K")
    (k,) = x.persist(CHAIN, "K")
    await x.done(k)
    await x.durable("K")
    await x.join(ready=True)
    await x.lose(x.holder("K"))
    await x.right(CHAIN, k)
    x.chunk("K").unlink()
    await x.lose(x.holder("K"))
    await x.right(CHAIN, k)
    assert x.world.counts() == {"D": 2, "K": 2}


@cluster_test()
async def test_actors_are_left_to_dask(x: Cluster) -> None:
    """An actor is no value that could be loaded (rule 14)."""
    future = x.client.submit(Counter, actor=True, key="K")
    await x.done(future)
    x.watch.ledger.entry(x.task("K"), "test", 1)
    x.watch.ledger.entries["K"].place = x.watch.ledger  # type: ignore[assignment]
    assert x.watch.detour.ticket(x.task("K")) is None
    x.watch.ledger.forget("K")
    await x.lose(x.holder("K"))
    await until(lambda: future.status == "error")


class Counter:
    """An actor."""

    n = 0


@cluster_test()
async def test_what_a_load_produced_is_not_saved_again(x: Cluster) -> None:
    """One receipt, one attempt (rule 14)."""
    x.mark("K")
    (k,) = x.persist(CHAIN, "K")
    await x.done(k)
    await x.durable("K")
    await x.lose(x.holder("K"))
    await x.right(CHAIN, k)
    assert len(list(x.store.glob("data/*/*"))) == 1
    assert len(list(x.store.glob("commit/*/*.json"))) == 1
