"""Rules of the detour that no other test holds: what is kept aside, what is left alone, what is never an error."""

from __future__ import annotations

import pytest
from distributed.client import FutureCancelledError

from tests.support.cluster import Cluster, cluster_test
from tests.support.waiting import until
from tests.support.world import make

CHAIN = {"D": [], "K": ["D"]}


@cluster_test()
async def test_host_pins_are_cleared_and_put_back(x: Cluster) -> None:
    """K may run on one host only, which is gone: it is loaded elsewhere and stays pinned (rule 9)."""
    (k,) = await x.saved(CHAIN, "K")
    x.task("K").host_restrictions = {"gone"}
    await x.lose(x.holder("K"))
    await x.right(CHAIN, k)
    assert x.task("K").host_restrictions == {"gone"}
    assert x.world.counts() == {"D": 1, "K": 1}


@cluster_test(workers=3)
async def test_what_is_charged_to_the_key_is_kept_aside(x: Cluster) -> None:
    """A worker that dies in a load is charged to nobody; what was charged before stays (rule 8)."""
    await x.stored(CHAIN, "K")
    x.task("K").suspicious = 2
    x.world.hold("load K")
    (k,) = x.persist(CHAIN, "K")
    await x.loads("K")
    await x.lose(x.runner("K"))
    x.world.free()
    await x.right(CHAIN, k)
    assert x.task("K").suspicious == 2
    assert not x.world.runs


@pytest.mark.parametrize(
    "error", [MemoryError("full"), KeyboardInterrupt(), SystemExit(1), ImportError("cudf")], ids=repr
)
@cluster_test(workers=1)
async def test_whatever_a_load_raises(x: Cluster, error: BaseException) -> None:
    """It is declined here and proves no damage: K is computed, the copy is used the next time (rule 13)."""
    (k,) = await x.saved(CHAIN, "K")
    x.world.faults["K"] = error
    x.drop("K")
    await x.right(CHAIN, k)
    assert [event["ending"] for event in x.events("load-ended")] == ["unreachable"]
    assert x.world.ran("K") == 2
    assert not x.tombstones()
    x.world.faults.clear()
    await until(lambda: not x.watch.ledger.entries["K"].avoid, what="the worker may be asked again")
    x.drop("K")
    await x.right(CHAIN, k)
    assert x.world.ran("K") == 2


@cluster_test()
async def test_scattered_data_is_left_to_dask(x: Cluster) -> None:
    """A key without a function is no task that could be a load (rule 14)."""
    await x.stored({"K": []}, "K")
    data = (await x.client.scatter({"sc": make("sc", [])}))["sc"]
    await until(lambda: x.task("sc").state == "memory")
    entry = x.watch.ledger.entry(x.task("sc"), "test", 1)
    entry.place = x.place("K")
    assert x.watch.ticket(x.task("sc")) is not None
    assert x.watch.detour.ticket(x.task("sc")) is None
    x.watch.ledger.forget("sc")
    data.release()


@cluster_test(workers=3)
async def test_lineage_that_is_lost_while_parked(x: Cluster) -> None:
    """K's scattered input is lost while K is loaded, and the copy is bad: K is cancelled as by plain Dask (rule 5)."""
    a, b, c = x.workers
    data = (await x.client.scatter({"sc": 5}, workers=[a.address]))["sc"]
    x.mark("K")
    k = x.client.submit(_add, data, key="K", workers=[b.address])
    await x.done(k)
    await x.durable("K")
    x.scheduler.request_remove_replicas(b.address, ["sc"], stimulus_id="test")
    await until(lambda: "sc" not in b.data)
    x.pause(a, b)
    x.world.hold("load K")
    x.drop("K")
    await x.loads("K")
    assert x.runner("K") == c.address
    assert not x.task("K").has_lost_dependencies
    await x.lose(a.address)
    x.chunk("K").unlink()
    x.world.free()
    with pytest.raises(FutureCancelledError):
        await x.value(k)
    x.pause(b, paused=False)


def _add(scattered: int) -> object:
    from dask_resilient import tasks

    value = make("K", []) * 0 + scattered
    tasks.save(value, {"name": "test", "key": "K", "npartitions": 1, "keep": False})
    return value


@cluster_test()
async def test_an_erred_dependency_of_a_key_that_nobody_wants(x: Cluster) -> None:
    """K is released and has a copy: it does not err with D, nor is it brought back (rule 7)."""
    await x.stored(CHAIN, "K")
    x.scheduler.transitions({"K": "erred"}, "test")
    assert x.task("K").state == "released"
    assert x.task("K").exception_blame is None
    (k,) = x.persist(CHAIN, "K")
    await x.right(CHAIN, k)
    assert not x.world.runs


@cluster_test()
async def test_no_row_is_replaced(x: Cluster) -> None:
    """Entering and leaving are done by wrapped rows, for every way out of an active state (rule 2)."""
    own = type(x.scheduler)._TRANSITIONS_TABLE
    wrapped = {row for row, func in x.scheduler._TRANSITIONS_TABLE.items() if func is not own[row]}
    active = ("waiting", "queued", "no-worker", "processing")
    out = {(start, finish) for start, finish in own if start in active and finish in ("released", "memory", "erred")}
    around = {("released", "waiting"), ("memory", "released"), ("memory", "erred"), ("released", "erred")}
    assert wrapped == out | around
    assert not hasattr(x.watch.detour, "transition")
