"""What becomes of tasks of every kind when a worker is shut."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dask_resilient.internals.gate import Gate
from dask_resilient.internals.worker_gate import WorkerGate
from tests.support.cluster import Cluster, cluster_test
from tests.support.gates import ended, executing
from tests.support.waiting import until
from tests.support.world import _worlds


@cluster_test()
async def test_a_load_that_is_taken_back_is_done_elsewhere(x: Cluster) -> None:
    """It leaves its detour and enters again: nothing is computed, nothing counts as a copy that cannot be read."""
    spec = {"D": [], "K": ["D"], "L": ["D"]}
    a, b = x.workers
    await x.stored(spec, "K", "L")
    gate = Gate(x.scheduler)
    x.pause(b)
    x.world.hold("load K", "load L")
    futures = x.persist(spec, "K", "L")
    await until(lambda: len(x.world.loads) == 1, what="one load runs")
    (first,) = x.world.loads
    await executing(x, a, first[0])
    (second,) = {"K", "L"} - {first[0]}
    assert x.runner(second) == a.address
    assert gate.shut(a.address) == [second]
    assert x.task(second).state == "no-worker"
    assert set(x.parked) == {"K", "L"}
    x.scheduler.validate_state()
    x.pause(b, paused=False)
    await x.loads(second)
    x.world.free()
    await x.right(spec, *futures)
    assert sorted(x.world.loads) == sorted([first, (second, b.address)])
    assert not x.parked
    assert not x.world.runs
    assert not x.tombstones()
    assert [event["ending"] for event in x.events("load-ended")] == []
    gate.undo()


@cluster_test()
async def test_a_load_that_began_since_is_taken_back(x: Cluster) -> None:
    """It runs twice, the second time elsewhere; the late end of the first changes nothing."""
    spec = {"D": [], "K": ["D"]}
    a, b = x.workers
    await x.stored(spec, "K")
    gate = Gate(x.scheduler)
    x.pause(b)
    a.periodic_callbacks["heartbeat"].stop()
    x.world.hold("load K")
    (k,) = x.persist(spec, "K")
    await x.loads("K")
    x.pause(b, paused=False)
    assert gate.shut(a.address) == ["K"]
    await x.loads("K", 2)
    x.world.free()
    await x.right(spec, k)
    assert [worker for _, worker in x.world.loads] == [a.address, b.address]
    assert x.holder("K") == b.address
    assert not x.world.runs
    assert not x.tombstones()
    gate.undo()


@cluster_test(install=False, check=False, distributed__scheduler__worker_saturation=1.0)
async def test_queued_tasks_stay_queued_while_all_workers_are_shut(x: Cluster) -> None:
    """What is taken back goes to the queue; as soon as one worker is opened, everything runs there."""
    gate = Gate(x.scheduler)
    x.world.hold("go")
    futures = x.client.map(_pass, [x.number] * 20, range(20))
    await until(lambda: len(x.scheduler.queued) == 18, what="they are queued")
    for worker in x.workers:
        x.scheduler.workers[worker.address].executing.clear()
        gate.shut(worker.address)
    assert len(x.scheduler.queued) == 20
    x.scheduler.validate_state()
    x.world.free()
    gate.open(x.workers[1].address)
    assert await x.client.gather(futures) == list(range(20))
    assert {x.holder(f.key) for f in futures} == {x.workers[1].address}
    gate.undo()
    await ended(x)


def _pass(number: int, i: int) -> int:
    _worlds[number].pass_("go")
    return i


@cluster_test(workers=0, install=False, check=False)
async def test_tasks_with_restrictions(x: Cluster) -> None:
    """One that is bound to the worker waits for it; one that may go elsewhere does, so does one that needs a GPU."""
    a = await x.join(resources={"GPU": 1})
    b = await x.join(resources={"GPU": 1})
    await x.join()
    gate = Gate(x.scheduler)
    gate.shut(a.address)
    bound = x.client.submit(abs, -1, key="bound", workers=[a.address])
    loose = x.client.submit(abs, -2, key="loose", workers=[a.address], allow_other_workers=True)
    needs = x.client.submit(abs, -3, key="needs", resources={"GPU": 1})
    assert await needs == 3
    assert x.holder("needs") == b.address
    assert await loose == 2
    assert x.task("bound").state == "no-worker"
    gate.open(a.address)
    assert await bound == 1
    gate.undo()
    await ended(x)


class Counter:
    """Counts."""

    def __init__(self) -> None:
        self.n = 0

    def add(self) -> int:
        """Count one more."""
        self.n += 1
        return self.n


def _add(actor: Any) -> int:
    return int(actor.add().result())


@cluster_test(install=False, check=False)
async def test_actors_stay(x: Cluster) -> None:
    """One that lives on a shut worker is called as before; one that is to be made there waits until it is opened."""
    a, b = x.workers
    gate, worker_gate = Gate(x.scheduler), WorkerGate(a)
    x.pause(b)
    here = x.client.submit(Counter, actor=True, key="here")
    await x.done(here)
    worker_gate.shut()
    there = x.client.submit(Counter, actor=True, key="there")
    await until(lambda: "there" in x.scheduler.tasks and x.task("there").state == "processing")
    assert gate.shut(a.address) == []
    x.pause(b, paused=False)
    assert await x.client.submit(_add, here) == 1
    worker_gate.open()
    gate.open(a.address)
    assert await x.client.submit(_add, there) == 1
    assert set(a.state.actors) == {"here", "there"}
    gate.undo()
    x.scheduler.validate_state()


@pytest.mark.slow
@cluster_test(workers=3, install=False, check=False)
async def test_a_shuffle_waits_for_a_shut_worker(x: Cluster) -> None:
    """P2P binds its outputs to workers, as many as there are: they wait; opened, or gone, the result is right."""
    import dask
    import dask.dataframe as dd
    import pandas as pd

    a, *_ = x.workers
    gate = Gate(x.scheduler)
    frame = pd.DataFrame({"a": range(60), "b": range(60)})
    for way in ("opened", "gone"):
        gate.shut(a.address)
        with dask.config.set({"dataframe.shuffle.method": "p2p"}):
            future = x.client.compute(dd.from_pandas(frame, npartitions=6).shuffle("a", npartitions=6))
        await until(lambda: any(ts.state == "no-worker" for ts in x.scheduler.tasks.values()), what="outputs wait")
        if way == "opened":
            gate.open(a.address)
        else:
            await a.close()
        result = await asyncio.wait_for(future, 15)
        assert sorted(result.b) == list(range(60))
        del future
        await until(lambda: not x.scheduler.tasks)
    gate.undo()


@cluster_test(install=False, check=False)
async def test_restarted_workers_are_new(x: Cluster) -> None:
    """`client.restart` replaces or closes workers; what the gate knew of them is not used for others."""
    a = x.workers[0]
    gate = Gate(x.scheduler)
    gate.shut(a.address)
    (k,) = x.persist({"K": []}, "K")
    await x.done(k)
    await x.client.restart(wait_for_workers=False)
    assert not x.scheduler.tasks
    await until(lambda: not x.scheduler.workers, what="workers without nannies leave")
    assert not gate.shut_workers
    new = await x.join()
    (k,) = x.persist({"K": []}, "K")
    await x.right({"K": []}, k)
    assert x.holder("K") == new.address
    gate.undo()
