"""Loads that cannot reach the store: nothing is revoked; tried elsewhere or computed; a pause after three in a row."""

from __future__ import annotations

from dataclasses import replace

from tests.support.cluster import Cluster, cluster_test
from tests.support.waiting import until

CHAIN = {"D": [], "K": ["D"]}


@cluster_test(workers=1)
async def test_unreachable_with_one_worker(x: Cluster) -> None:
    """The store is out of sight: the key is computed, nothing is revoked; later the copy is used again."""
    (k,) = await x.saved(CHAIN, "K")
    away = x.store.rename(x.store.with_name("away"))
    x.drop("K")
    await x.right(CHAIN, k)
    assert x.world.counts() == {"D": 2, "K": 2}
    assert [event["ending"] for event in x.events("load-ended")] == ["unreachable"]
    away.rename(x.store)
    assert not x.tombstones()
    x.drop("K")
    await x.right(CHAIN, k)
    assert x.world.counts() == {"D": 2, "K": 2}


@cluster_test(workers=2)
async def test_unreachable_from_one_worker(x: Cluster) -> None:
    """The load is tried elsewhere and nothing runs again."""
    (k,) = await x.saved(CHAIN, "K")
    a, b = x.workers
    x.side(a).store.read = fail
    x.pause(b)
    x.drop("K")
    await until(lambda: x.events("load-ended"))
    await until(lambda: x.task("K").state == "no-worker", what="K waits for the other worker")
    x.pause(b, paused=False)
    await x.right(CHAIN, k)
    assert x.world.loads == [("K", a.address), ("K", b.address)]
    assert x.world.counts() == {"D": 1, "K": 1}


def fail(*_: object) -> None:
    """Be a disk that is broken."""
    raise OSError(5, "input/output error")


@cluster_test(workers=2, resilience__recover__timeout="100ms")
async def test_a_load_that_hangs(x: Cluster) -> None:
    """It ends as unreachable after `recover.timeout`, on both workers, and the key is computed."""
    (k,) = await x.saved(CHAIN, "K")
    reads = x.hold_reads()
    x.drop("K")
    await x.right(CHAIN, k)
    assert x.world.ran("K") == 2
    assert {worker for _, worker in x.world.loads} == {w.address for w in x.workers}
    assert not x.tombstones()
    reads.set()


@cluster_test(workers=1)
async def test_reloading_pauses_after_three_unreachable_loads(x: Cluster) -> None:
    """The fourth key is not tried; when the pause is over, all are loaded again."""
    keys = ["K0", "K1", "K2", "K3"]
    spec = {"D": [], **{key: ["D"] for key in keys}}
    futures = await x.saved(spec, *keys)
    for key in keys:
        x.world.faults[key] = OSError(5, "input/output error")
        x.drop(key)
        await x.right(spec, *futures)
    assert [key for key, _ in x.world.loads] == keys[:3]
    assert len(x.events("reloading-paused")) == 1
    x.world.faults.clear()
    x.watch.reloading = replace(x.watch.reloading, until=0.0)
    for key in keys:
        x.drop(key)
    await x.right(spec, *futures)
    assert len(x.world.loads) == 7
    assert x.world.counts() == {"D": 5, **dict.fromkeys(keys, 2)}


@cluster_test(workers=2)
async def test_a_late_ending_of_an_older_copy_changes_nothing(x: Cluster) -> None:
    """It names its attempt: the copy that came after it is used (rule 13)."""
    (k,) = await x.saved(CHAIN, "K")
    msg = {"key": "K", "attempt": "older", "ending": "damaged", "reason": "late"}
    x.watch.copies.load_ended(x.workers[0].address, msg)
    assert x.watch.ledger.entries["K"].usable
    assert not x.events("load-ended")
    await x.right(CHAIN, k)


@cluster_test()
async def test_a_load_does_not_wait_for_a_resource_that_no_loader_has(x: Cluster) -> None:
    """The GPU's worker cannot reach the copy, the others have no GPU: recomputed there, not waited for ever."""
    gpu = await x.join(ready=True, resources={"R": 1})
    x.mark("K")
    (k,) = x.persist(CHAIN, "K", resources=lambda key: {"R": 1} if key == "K" else None)
    await x.done(k)
    await x.durable("K")
    x.watch.ledger.entries["K"].avoid.add(gpu.address)
    x.scheduler.transitions({"K": "released"}, "test-lost")
    await x.right(CHAIN, k)
    assert x.world.counts()["K"] == 2
