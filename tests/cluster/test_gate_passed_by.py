"""What in Dask gives workers tasks or data, or sets their status, leaves a shut worker shut."""

from __future__ import annotations

import asyncio

from distributed.core import Status

from dask_resilient.internals.gate import Gate
from tests.support.cluster import Cluster, cluster_test
from tests.support.gates import MANY, ended, executing, sent
from tests.support.waiting import until


@cluster_test(install=False, check=False, distributed__worker__memory__pause=False)
async def test_a_retirement_that_fails_leaves_it_shut_and_the_worker_running(x: Cluster) -> None:
    """Dask gives the worker the status that it had on the scheduler before: "paused", which nothing would ever end."""
    a, b = x.workers
    gate = Gate(x.scheduler)
    (k,) = x.persist({"K": []}, "K", workers=[a.address])
    await x.done(k)
    gate.shut(a.address)
    x.pause(b)
    assert await x.scheduler.retire_workers([a.address], stimulus_id="test-retire") == {}
    ws = x.scheduler.workers[a.address]
    await until(lambda: a.status == Status.running and ws.status == Status.paused, what="it is as it was")
    x.pause(b, paused=False)
    await until(lambda: gate._shut[a.address].said == "running", what="it has said so")
    gate.open(a.address)
    (late,) = x.persist({"L": []}, "L", workers=[a.address])
    await x.right({"L": []}, late)
    gate.undo()
    await ended(x)


@cluster_test(install=False, check=False)
async def test_a_worker_that_retires_goes_on_retiring(x: Cluster) -> None:
    """Shut before or meanwhile, its data is moved and it leaves."""
    a, b = x.workers
    gate = Gate(x.scheduler)
    (k,) = x.persist({"K": []}, "K", workers=[a.address])
    await x.done(k)
    retiring = asyncio.ensure_future(x.scheduler.retire_workers([a.address], stimulus_id="test-retire"))
    ws = x.scheduler.workers[a.address]
    await until(lambda: ws.status == Status.closing_gracefully, what="it begins")
    for shut_or_open in (gate.shut, gate.open, gate.shut):
        shut_or_open(a.address)
        assert ws.status == Status.closing_gracefully
    assert list(await retiring) == [a.address]
    assert x.holder("K") == b.address
    assert x.world.ran("K") == 1
    gate.undo()
    await ended(x)


@cluster_test(workers=3, install=False, check=False, distributed__scheduler__work_stealing_interval="1h")
async def test_what_is_being_stolen_for_a_worker_does_not_come(x: Cluster) -> None:
    """It is shut while the other worker is asked: Dask would send the task, paused or not."""
    a, b, _ = x.workers
    gate = Gate(x.scheduler)
    stealing = x.scheduler.extensions["stealing"]
    x.world.hold(*MANY)
    futures = x.persist(MANY, *MANY, workers=[a.address], allow_other_workers=True)
    await until(lambda: x.world.runs, what="one runs")
    await executing(x, a, x.world.runs[0])
    (key, *_) = (key for key in MANY if key not in x.world.runs and x.task(key).processing_on.address == a.address)
    wss = x.scheduler.workers
    stealing.move_task_request(x.task(key), wss[a.address], wss[b.address])
    assert key in gate.shut(b.address)
    count = sent(b)
    x.world.free()
    await x.right(MANY, *futures)
    assert count() == 0
    assert sorted(x.world.runs) == sorted(MANY)
    assert not stealing.in_flight
    gate.undo()
    await ended(x)


@cluster_test(workers=3, threads=2, install=False, check=False)
async def test_it_is_no_thief_and_gets_no_copy(x: Cluster) -> None:
    """Work stealing, scatter, replicate and the active memory manager pass it by; its data is served."""
    a, b, c = x.workers
    gate = Gate(x.scheduler)
    (k,) = x.persist({"K": []}, "K", workers=[a.address])
    await x.done(k)
    gate.shut(a.address)
    stealing = x.scheduler.extensions["stealing"]
    keys = {f"S{i}": ["K"] for i in range(12)}
    x.world.hold(*keys)
    futures = x.persist({"K": [], **keys}, *keys)
    await until(lambda: len(x.world.runs) == 5, what="both others are busy")
    count = sent(a)
    for _ in range(3):
        stealing.balance()
        await asyncio.sleep(0)
    assert not any(info["thief"].address == a.address for info in stealing.in_flight.values())
    scattered = await x.client.scatter([1, 2, 3, 4], broadcast=True)
    await x.client.replicate(scattered, n=3)
    assert not {a.address} & {ws.address for f in scattered for ws in x.task(f.key).who_has}
    x.world.free()
    await x.right({"K": [], **keys}, *futures)
    assert count() == 0
    amm = x.scheduler.extensions["amm"]
    from distributed.active_memory_manager import ReduceReplicas

    amm.add_policy(ReduceReplicas())
    await x.client.amm.run_once()
    await until(lambda: len(x.task("K").who_has) == 1)
    assert x.holder("K") != a.address
    assert await x.scheduler.retire_workers([c.address], stimulus_id="test-retire")
    assert {ws.address for ts in x.scheduler.tasks.values() for ws in ts.who_has} == {b.address}
    gate.undo()
    await ended(x)
