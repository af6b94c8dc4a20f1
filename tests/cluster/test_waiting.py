"""Copies that turn up while keys wait, and saves that end in other ways."""

from __future__ import annotations

from typing import Any

from tests.support.cluster import Cluster, cluster_test
from tests.support.waiting import until

CHAIN = {"D": [], "K": ["D"]}


async def released_before_durable(x: Cluster, spec: dict[str, list[str]], *keys: str) -> Any:
    """Compute keys and let their values go while their copies are still being written."""
    keepers = {**spec, **{f"keep-{key}": [key] for key in keys}}
    event = x.hold_writes()
    x.mark(*keys)
    futures = x.persist(keepers, *(f"keep-{key}" for key in keys))
    await x.done(*futures)
    x._keepers = futures
    await until(lambda: not any(x.task(k).who_has for k in spec))
    await until(lambda: len(x.watch.ledger.entries) == len(keys))
    return event


@cluster_test()
async def test_commit_while_waiting(x: Cluster) -> None:
    """K waits for D, which takes long; its copy turns up: D is not waited for (rule 12)."""
    writes = await released_before_durable(x, CHAIN, "K")
    x.world.hold("D")
    (k,) = x.persist(CHAIN, "K")
    await x.runs("D", 2)
    assert x.task("K").state == "waiting"
    writes.set()
    await x.right(CHAIN, k)
    assert x.world.ran("K") == 1
    x.world.free()


@cluster_test(workers=1)
async def test_commit_while_queued(x: Cluster) -> None:
    """Roots are queued on the scheduler; their copies turn up: only the one that runs already runs (rule 12)."""
    keys = [f"kk-{i}" for i in range(6)]
    spec = {key: [] for key in keys}
    writes = await released_before_durable(x, spec, *keys)
    x.world.hold(*keys)
    futures = x.persist(spec, *keys)
    await until(lambda: len(x.world.runs) == 7)
    queued = [key for key in keys if x.task(key).state == "queued"]
    assert len(queued) >= 3
    writes.set()
    await x.durable(*keys)
    x.world.free()
    await x.right(spec, *futures)
    assert all(x.world.ran(key) == 1 for key in queued)


@cluster_test()
async def test_commit_while_no_worker(x: Cluster) -> None:
    """No worker may take K; its copy turns up: K waits as a load (rule 12)."""
    spec = {"K": []}
    writes = await released_before_durable(x, spec, "K")
    x.pause(*x.workers)
    (k,) = x.persist(spec, "K")
    await until(lambda: x.task("K").state == "no-worker")
    writes.set()
    await x.durable("K")
    assert "K" in x.parked
    x.pause(*x.workers, paused=False)
    await x.right(spec, k)
    assert x.world.ran("K") == 1


@cluster_test()
async def test_commit_while_processing_is_left_alone(x: Cluster) -> None:
    """K runs again when its copy turns up: it is not stopped (rule 12)."""
    spec = {"K": []}
    writes = await released_before_durable(x, spec, "K")
    x.world.hold("K")
    (k,) = x.persist(spec, "K")
    await x.runs("K", 2)
    writes.set()
    await x.durable("K")
    assert "K" not in x.parked
    x.world.free()
    await x.right(spec, k)


@cluster_test()
async def test_commit_sends_nothing_back_where_recovery_is_off(x: Cluster) -> None:
    """A key that will not be loaded is not disturbed either."""
    writes = await released_before_durable(x, CHAIN, "K")
    x.world.hold("D")
    (k,) = x.persist(CHAIN, "K")
    await x.runs("D", 2)
    x.watch.detour.on = False
    writes.set()
    await x.durable("K")
    assert not x.scheduler.story("resilience-committed")
    assert not any("resilience-committed" in t.stimulus_id for t in x.scheduler.transition_log)
    x.world.free()
    await x.right(CHAIN, k)


@cluster_test()
async def test_computed_again_while_it_is_being_saved(x: Cluster) -> None:
    """The first attempt goes on and counts; the second is dropped, so that the partition is durable in the end."""
    spec = {"K": []}
    writes = await released_before_durable(x, spec, "K")
    (k,) = x.persist(spec, "K")
    await x.right(spec, k)
    assert x.world.ran("K") == 2
    savers = [x.side(w).saver for w in x.workers]
    await until(lambda: sum(len(s._items) for s in savers) == 1, 5, what="the second attempt is dropped")
    writes.set()
    await x.durable("K")
    await x.lose(x.holder("K"))
    await x.right(spec, k)
    assert x.world.ran("K") == 2


@cluster_test()
async def test_a_save_whose_worker_is_lost_before_it_could_tell(x: Cluster) -> None:
    """The receipt exists though nobody heard of it: the next attempt finds it and it is used."""
    spec = {"K": []}
    real = x.watch.copies.committed
    x.watch.copies.committed = lambda worker, msg: None  # type: ignore[method-assign]
    x.mark("K")
    (k,) = x.persist(spec, "K")
    await x.done(k)
    await until(lambda: list(x.store.glob("commit/*/*.json")), what="the receipt that nobody hears of")
    x.watch.copies.committed = real  # type: ignore[method-assign]
    await x.lose(x.holder("K"))
    await x.right(spec, k)
    await x.durable("K")
    await x.join(ready=True)
    await x.lose(x.holder("K"))
    await x.right(spec, k)
    assert x.world.ran("K") == 2


@cluster_test(workers=1)
async def test_a_write_that_hangs_does_not_keep_the_partition_waiting(x: Cluster) -> None:
    """Saving is switched off on that worker, and what it was writing counts as failed; leaving waits for nothing."""
    spec = {"K": []}
    x.hold_writes()
    x.mark("K")
    (k,) = x.persist(spec, "K")
    await x.done(k)
    await until(x.watch.ledger.saving)
    x.side(x.workers[0]).saver.switch_off("a write has not ended")
    await until(lambda: not x.watch.ledger.saving())
    (row,) = x.watch.ledger.rows()
    assert (row["state"], row["reason"]) == ("failed", "a write has not ended")
