"""A worker that is shut starts nothing until it is opened, whatever its memory monitor does; both gates together."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
from distributed import Worker, WorkerPlugin, get_worker, secede
from distributed.core import Status
from distributed.worker_state_machine import ExecuteFailureEvent, PauseEvent

from dask_resilient.internals.gate import Gate
from dask_resilient.internals.worker_gate import WorkerGate
from tests.support.cluster import Cluster, cluster_test
from tests.support.gates import MANY, ended, sent
from tests.support.waiting import until
from tests.support.world import _worlds


def states(worker: Worker) -> list[str]:
    """Give the states of a worker's tasks."""
    return sorted(ts.state for ts in worker.state.tasks.values())


@cluster_test(workers=1, install=False, check=False)
async def test_nothing_starts_while_shut(x: Cluster) -> None:
    """What is executed ends, what is ready waits, the worker says "running" all the time; opened it goes on."""
    (a,) = x.workers
    gate = WorkerGate(a)
    x.world.hold("K0")
    futures = [*x.persist(MANY, "K0")]
    await x.runs("K0")
    futures += x.persist(MANY, *(key for key in MANY if key != "K0"))
    await until(lambda: states(a).count("ready") == 7, what="the others are ready")
    gate.shut()
    gate.shut()
    x.world.free()
    await x.right(MANY, futures[0])
    assert states(a) == ["memory", *["ready"] * 7]
    assert (gate.is_shut, a.status, a.state.running) == (True, Status.running, False)
    a.validate_state()
    gate.open()
    gate.open()
    assert (gate.is_shut, a.state.running) == (False, True)
    await x.right(MANY, *futures)
    assert len(x.world.runs) == 8
    await ended(x)


@cluster_test(install=False, check=False)
async def test_a_shut_worker_serves_but_fetches_nothing(x: Cluster) -> None:
    """The other side of "no more tasks": its data stays readable, and inputs are not fetched before it is opened."""
    a, b = x.workers
    gate = WorkerGate(a)
    spec = {"D": [], "E": [], "K": ["D"], "L": ["E"]}
    d, e = *x.persist(spec, "D", workers=[a.address]), *x.persist(spec, "E", workers=[b.address])
    await x.done(d, e)
    gate.shut()
    (k,) = x.persist(spec, "K", workers=[b.address])
    await x.right(spec, k)
    (late,) = x.persist(spec, "L", workers=[a.address])
    await until(lambda: "E" in a.state.tasks, what="it is sent the task")
    assert a.state.tasks["E"].state == "fetch"
    gate.open()
    await x.right(spec, late)
    await ended(x)


def _secede_and_wait(number: int, key: str) -> str:
    secede()
    _worlds[number].run(key)
    return get_worker().address


@cluster_test(workers=1, install=False, check=False)
async def test_tasks_that_have_left_the_pool(x: Cluster) -> None:
    """One that secedes while the gate is shut makes no room for another, and ends right."""
    (a,) = x.workers
    gate = WorkerGate(a)
    scheduler_gate = Gate(x.scheduler)
    x.world.hold("K")
    future = x.client.submit(_secede_and_wait, x.number, "K")
    await until(lambda: states(a) == ["long-running"], what="it secedes")
    gate.shut()
    await until(lambda: x.scheduler.workers[a.address].long_running, what="the scheduler hears of it")
    x.scheduler.workers[a.address].executing.clear()
    assert scheduler_gate.shut(a.address) == []
    other = x.client.submit(abs, -1)
    await until(lambda: other.key in x.scheduler.tasks and x.task(other.key).state == "no-worker")
    x.world.free()
    assert await future == a.address
    gate.open()
    scheduler_gate.open(a.address)
    assert await other == 1
    scheduler_gate.undo()
    await ended(x)


@cluster_test(workers=1, install=False, check=False)
async def test_open_gives_back_what_the_worker_says(x: Cluster) -> None:
    """One that has paused itself meanwhile stays paused; one that retires stays retiring."""
    (a,) = x.workers
    gate = WorkerGate(a)
    gate.shut()
    a.status = Status.paused
    a.status = Status.running
    assert not a.state.running
    a.status = Status.paused
    gate.open()
    assert not a.state.running
    a.status = Status.running
    assert a.state.running
    gate.shut()
    a.status = Status.closing_gracefully
    gate.open()
    assert not a.state.running
    a.status = Status.running
    assert a.state.running


@cluster_test(workers=1, install=False, check=False)
async def test_undo_leaves_no_trace(x: Cluster) -> None:
    """Nor does opening; a wrapper that somebody put over ours goes on working, also shut a second time."""
    (a,) = x.workers
    gate = WorkerGate(a)
    assert "handle_stimulus" not in a.__dict__
    gate.shut()
    gate.undo()
    gate.undo()
    assert "handle_stimulus" not in a.__dict__
    gate.shut()
    ours, heard = a.handle_stimulus, []

    def theirs(*events: Any) -> None:
        heard.extend(events)
        ours(*events)

    a.handle_stimulus = theirs  # type: ignore[method-assign]
    gate.open()
    assert a.handle_stimulus is theirs
    assert a.state.running
    for _ in range(2):
        gate.shut()
        a.status = Status.paused
        a.status = Status.running
        assert not a.state.running
        gate.undo()
        assert a.state.running
    (k,) = x.persist({"K": []}, "K")
    await x.right({"K": []}, k)
    assert a.handle_stimulus is theirs
    assert any(isinstance(event, PauseEvent) for event in heard)
    await ended(x)


# -- T13: a pause is no quarantine -------------------------------------------------------------------------------------


@cluster_test(install=False, check=False, distributed__worker__memory__monitor_interval="50ms")
async def test_the_memory_monitor_opens_nothing(x: Cluster) -> None:
    """It ticks, pauses the worker and lets it go on: no task until the gates are opened, then one within 2 s."""
    a, b = x.workers
    gate, worker_gate = Gate(x.scheduler), WorkerGate(a)
    worker_gate.shut()
    gate.shut(a.address)
    count = sent(a)
    assert a.memory_manager.memory_limit
    for memory, status in (("limit", Status.paused), ("none", Status.running)) * 2:
        nbytes = a.memory_manager.memory_limit if memory == "limit" else 0
        a.monitor.get_process_memory = lambda nbytes=nbytes: nbytes  # type: ignore[method-assign,misc]
        await until(lambda: a.status == status, what=f"the monitor makes it {status}")  # noqa: B023
        await until(lambda: gate._shut[a.address].said == status.name, what="it says so")  # noqa: B023
        futures = x.persist(MANY, *MANY)
        await x.right(MANY, *futures)
        assert {x.holder(key) for key in MANY} == {b.address}
        del futures
        await until(lambda: not x.scheduler.tasks)
    assert (count(), a.state.running) == (0, False)
    assert len(x.world.runs) == 8 * 4
    worker_gate.open()
    gate.open(a.address)
    (late,) = x.persist({"L": []}, "L", workers=[a.address])
    await asyncio.wait_for(x.right({"L": []}, late), 2)
    gate.undo()
    await ended(x)


# -- both gates, at the first error ------------------------------------------------------------------------------------


class ShutAtError(WorkerPlugin):
    """Shuts the worker's gate before a task errs there, and tells the scheduler."""

    name = "shut-at-error"

    def setup(self, worker: Worker) -> None:
        self.worker = worker
        self.gate = WorkerGate(worker)
        self.gate.listen(self.failing)

    def failing(self, failures: Sequence[ExecuteFailureEvent]) -> None:
        if failures and not self.gate.is_shut:
            self.worker.batched_send({"op": "test-shut", "key": failures[0].key})
            self.gate.shut()


def _sick(number: int, key: str, address: str, *inputs: Any) -> int:
    _worlds[number].pass_("go")
    if get_worker().address == address:
        _worlds[number].runs.append(key)
        raise ValueError(key)
    return len(inputs)


@pytest.mark.parametrize("threads", [1, 2])
@cluster_test(workers=0, install=False, check=False)
async def test_a_sick_worker_starts_no_further_task(x: Cluster, threads: int) -> None:
    """200 tasks with inputs, 1 of 4 workers fails all: its gates are shut at the first error, Dask retries once."""
    x.threads = threads
    for _ in range(4):
        await x.join()
    gate = Gate(x.scheduler)
    taken: list[Any] = []

    def shut(worker: str, key: str) -> None:
        taken.extend(gate.shut(worker, keep=[key]))

    x.scheduler.stream_handlers["test-shut"] = shut
    await x.client.register_plugin(ShutAtError())
    x.world.hold("go")
    inputs = x.client.map(abs, range(200))
    await x.done(*inputs)
    sick = x.workers[0].address
    futures = [
        x.client.submit(_sick, x.number, f"t{i}", sick, one, key=f"t{i}", retries=1) for i, one in enumerate(inputs)
    ]
    tasks = x.scheduler.tasks
    await until(
        lambda: all(f.key in tasks and tasks[f.key].state == "processing" for f in futures), what="all are assigned"
    )
    x.world.free()
    assert await x.client.gather(futures) == [1] * 200
    assert len(taken) > 20
    assert 1 <= len(x.world.runs) <= threads
    assert gate.shut_workers == {sick}
    gate.undo()
    await ended(x)


# -- anything at any time ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
@cluster_test(workers=4, threads=2)
async def test_any_order(x: Cluster, seed: int) -> None:
    """Gates go shut and open at random while a graph runs and results are lost: every value is right, nothing stays."""
    random = Random(seed)
    spec: dict[str, list[str]] = {}
    for i in range(60):
        spec[f"K{i}"] = random.sample(list(spec), min(len(spec), random.randrange(4)))
    x.mark(*random.sample(list(spec), 20))
    gate = Gate(x.scheduler)
    gates = {worker.address: WorkerGate(worker) for worker in x.workers}
    wanted = random.sample(list(spec), 15)
    futures = x.persist(spec, *wanted)
    for _ in range(150):
        address = random.choice(list(gates))
        match random.randrange(5):
            case 0:
                gates[address].shut()
                gate.shut(address)
            case 1:
                gate.shut(address)
            case 2 | 3:
                gates[address].open()
                gate.open(address)
            case _:
                held = [key for key in wanted if key in x.scheduler.tasks and x.task(key).state == "memory"]
                if held:
                    x.drop(random.choice(held))
        x.scheduler.validate_state()
        await asyncio.sleep(random.choice([0, 0, 0.002, 0.01]))
    for address, worker_gate in gates.items():
        worker_gate.undo()
        gate.open(address)
    await x.right(spec, *futures)
    gate.undo()
