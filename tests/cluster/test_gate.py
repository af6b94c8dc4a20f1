"""A worker behind the gate gets no more tasks, loses none, and takes tasks again when the gate opens."""

from __future__ import annotations

from typing import Any

import pytest
from distributed import Worker
from distributed.core import Status

from dask_resilient.internals.gate import Gate
from dask_resilient.internals.worker_gate import WorkerGate
from tests.support.cluster import Cluster, cluster_test
from tests.support.gates import MANY, ended, executing, sent
from tests.support.waiting import until


@cluster_test(install=False, check=False)
async def test_a_shut_worker_gets_nothing_and_loses_nothing(x: Cluster) -> None:
    """What it executes ends there, what else it was sent runs elsewhere, once; opened it gets tasks again."""
    a, b = x.workers
    gate = Gate(x.scheduler)
    x.world.hold(*MANY)
    futures = x.persist(MANY, *MANY)
    await until(lambda: len(x.world.runs) == 2, what="both workers execute")
    wss = x.scheduler.workers[a.address], x.scheduler.workers[b.address]
    await until(lambda: all(len(ws.executing) == 1 for ws in wss), what="both are heard of")
    mine = {ts.key for ts in wss[0].processing}
    (runs,) = (ts.key for ts in wss[0].executing)
    assert len(mine) > 1
    taken = gate.shut(a.address)
    assert set(taken) == mine - {runs}
    assert gate.shut_workers == {a.address}
    assert not gate.shut(a.address)
    x.scheduler.validate_state()
    count = sent(a)
    await until(lambda: set(a.state.tasks) == {runs}, what="the worker hears of it")
    x.world.free()
    await x.right(MANY, *futures)
    assert sorted(x.world.runs) == sorted(MANY)
    assert {x.holder(key) for key in taken} == {b.address}
    assert x.holder(runs) == a.address
    assert count() == 0
    gate.open(a.address)
    gate.open(a.address)
    (late,) = x.persist({"L": []}, "L", workers=[a.address])
    await x.right({"L": []}, late)
    assert not gate.shut_workers
    gate.undo()
    await ended(x)


@cluster_test(install=False, check=False)
async def test_what_began_since_the_last_heartbeat_is_left_where_the_worker_is_asked(x: Cluster) -> None:
    """What it does not execute by its own word runs elsewhere; what it does ends there, also when looked at again."""
    a, b = x.workers
    gate = Gate(x.scheduler)
    a.periodic_callbacks["heartbeat"].stop()
    x.pause(b)
    x.world.hold(*MANY)
    futures = x.persist(MANY, *MANY)
    await until(lambda: len(x.world.runs) == 1, what="one runs, of which no heartbeat has told")
    (runs,) = x.world.runs
    assert gate.shut(a.address, ask=True) == []
    assert gate.told(b.address, [runs]) == []
    worker_gate = WorkerGate(a)
    worker_gate.shut()
    assert worker_gate.busy() == [runs]
    assert set(gate.told(a.address, worker_gate.busy())) == set(MANY) - {runs}
    gate._again(gate._shut[a.address])
    assert x.runner(runs) == a.address
    x.pause(b, paused=False)
    x.world.free()
    await x.right(MANY, *futures)
    assert sorted(x.world.runs) == sorted(MANY)
    gate.undo()
    worker_gate.undo()
    await ended(x)


@cluster_test(install=False, check=False)
async def test_a_worker_that_does_not_answer_is_taken_back_from_by_its_last_heartbeat(x: Cluster) -> None:
    """A moment later."""
    a = x.workers[0]
    gate = Gate(x.scheduler)
    x.world.hold(*MANY)
    futures = x.persist(MANY, *MANY, workers=[a.address])
    await until(lambda: len(x.world.runs) == 1, what="one runs")
    await executing(x, a, x.world.runs[0])
    assert gate.shut(a.address, ask=True) == []
    assert {x.task(key).state for key in MANY} == {"processing"}
    await until(lambda: [x.task(key).state for key in MANY].count("processing") == 1, what="the others are taken back")
    gate.undo()
    x.world.free()
    await x.right(MANY, *futures)
    await ended(x)


@cluster_test(install=False, check=False)
async def test_what_is_kept_is_not_taken_back(x: Cluster) -> None:
    """And nothing happens at an address that nobody has."""
    gate = Gate(x.scheduler)
    x.world.hold(*MANY)
    futures = x.persist(MANY, *MANY, workers=[x.workers[0].address])
    await until(lambda: len(x.world.runs) == 1, what="one runs")
    await executing(x, x.workers[0], x.world.runs[0])
    keep = [key for key in MANY if key not in x.world.runs][:3]
    assert sorted(gate.shut(x.workers[0].address, keep=keep)) == sorted(set(MANY) - set(keep) - set(x.world.runs))
    assert {x.task(key).state for key in keep} == {"processing"}
    assert gate.shut("tcp://127.0.0.1:1") == []
    gate.open("tcp://127.0.0.1:1")
    gate.removed("tcp://127.0.0.1:1")
    assert gate.shut_workers == {x.workers[0].address}
    gate.undo()
    x.world.free()
    await x.right(MANY, *futures)
    await ended(x)


@pytest.mark.parametrize("ends", ["well", "with an error"])
@cluster_test(install=False, check=False)
async def test_a_task_that_began_since_the_last_heartbeat(x: Cluster, ends: str) -> None:
    """It runs elsewhere, what the first run ends in is dropped, and the task is charged nothing."""
    a, b = x.workers
    a.periodic_callbacks["heartbeat"].stop()
    gate = Gate(x.scheduler)
    x.world.hold("K")
    x.world.errors["K"] = int(ends == "with an error")
    (k,) = x.persist({"K": []}, "K", workers=[a.address], allow_other_workers=True)
    await x.runs("K")
    assert gate.shut(a.address) == ["K"]
    await x.runs("K", 2)
    assert x.runner("K") == b.address
    x.world.free()
    await x.right({"K": []}, k)
    assert x.holder("K") == b.address
    ts = x.task("K")
    assert (ts.suspicious, ts.erred_on, x.world.ran("K")) == (0, None, 2)
    await until(lambda: not a.state.tasks, what="the first worker forgets it")
    gate.undo()
    await ended(x)


@cluster_test(install=False, check=False)
async def test_a_task_that_came_again_since_the_last_heartbeat(x: Cluster) -> None:
    """It erred and is tried again where it was: the scheduler takes it to be executed still, until the next heartbeat.

    Then it is taken back, though nobody asks; else it would stay on the shut worker for as long as that is shut.
    """
    a, b = x.workers
    gate, worker_gate = Gate(x.scheduler), WorkerGate(a)
    x.world.hold("K")
    x.world.errors["K"] = 1
    x.pause(b)
    (k,) = x.persist({"K": []}, "K", retries=1)
    await x.runs("K")
    await executing(x, a, "K")
    a.periodic_callbacks["heartbeat"].stop()
    worker_gate.shut()
    x.world.free("K")
    await until(lambda: x.task("K").retries == 0 and x.task("K").state == "processing", what="it is tried again")
    x.pause(b, paused=False)
    assert gate.shut(a.address) == []
    a.periodic_callbacks["heartbeat"].start()
    await x.right({"K": []}, k)
    assert (x.holder("K"), x.world.ran("K")) == (b.address, 2)
    gate.undo()
    worker_gate.undo()
    await ended(x)


@pytest.mark.parametrize("fails", [False, True])
@cluster_test(install=False, check=False)
async def test_an_ending_that_crosses_the_taking_back(x: Cluster, fails: bool) -> None:
    """The worker has said that the task ended, and the scheduler takes it back before it hears that."""
    a, b = x.workers
    gate = Gate(x.scheduler)
    op = "task-erred" if fails else "task-finished"
    original, late = x.scheduler.stream_handlers[op], []
    x.scheduler.stream_handlers[op] = lambda **msg: late.append(msg)
    x.world.errors["K"] = int(fails)
    x.pause(b)
    (k,) = x.persist({"K": []}, "K")
    await until(lambda: late, what="the task ends")
    x.scheduler.stream_handlers[op] = original
    x.scheduler.workers[a.address].executing.clear()
    assert gate.shut(a.address) == ["K"]
    original(**late[0])
    assert x.task("K").state == "no-worker"
    x.pause(b, paused=False)
    await x.right({"K": []}, k)
    assert (x.holder("K"), x.world.ran("K")) == (b.address, 2)
    await until(lambda: not a.state.tasks, what="the first worker forgets it")
    gate.undo()
    await ended(x)


@cluster_test(install=False, check=False, distributed__worker__memory__pause=False)
async def test_the_status_that_a_worker_reports_counts_when_it_is_opened(x: Cluster) -> None:
    """A pause and a resume while it is shut change nothing; one that is paused by itself stays so."""
    (a, _) = x.workers
    ws = x.scheduler.workers[a.address]
    gate = Gate(x.scheduler)
    gate.shut(a.address)
    for status in (Status.paused, Status.running, Status.paused):
        a.status = status
        await until(lambda: gate._shut[a.address].said == status.name, what="the report arrives")  # noqa: B023
        assert (ws.status, ws in x.scheduler.running) == (Status.paused, False)
    gate.open(a.address)
    assert ws.status == Status.paused
    a.status = Status.running
    await until(lambda: ws in x.scheduler.running, what="it runs again")
    gate.undo()


@cluster_test(workers=1, install=False, check=False)
async def test_a_worker_that_is_shut_as_it_joins(x: Cluster) -> None:
    """Its first report of "running" does not count, so that it gets no task; later it does."""
    from distributed import SchedulerPlugin

    gate = Gate(x.scheduler)

    class Admission(SchedulerPlugin):
        name = "admission"

        def add_worker(self, scheduler: Any, worker: str) -> None:
            gate.shut(worker)

    x.scheduler.add_plugin(Admission())
    x.pause(*x.workers)
    (k,) = x.persist({"K": []}, "K")
    await until(lambda: "K" in x.scheduler.tasks and x.task("K").state == "no-worker")
    async with Worker(x.scheduler.address, host="127.0.0.1", dashboard_address=":0") as late:
        await until(lambda: gate._shut[late.address].said == "running", what="it has reported")
        assert x.task("K").state == "no-worker"
        gate.open(late.address)
        await x.right({"K": []}, k)
        assert x.holder("K") == late.address
        gate.undo()
        await ended(x)


@cluster_test(workers=1, install=False, check=False)
async def test_a_new_worker_at_the_old_address_is_open(x: Cluster) -> None:
    """A gate is shut for one worker, not for an address; whether the gate was told that it left or not."""
    (a,) = x.workers
    gate = Gate(x.scheduler)
    gate.shut(a.address)
    await a.close()
    await until(lambda: not x.scheduler.workers, what="it leaves")
    assert not gate.shut_workers
    new = await x.join(port=int(a.address.rpartition(":")[2]))
    assert new.address == a.address
    (k,) = x.persist({"K": []}, "K")
    await x.right({"K": []}, k)
    gate.shut(a.address)
    assert gate.shut_workers == {a.address}
    gate.removed(a.address)
    assert not gate.shut_workers
    gate.undo()


@cluster_test(install=False, check=False, distributed__worker__memory__pause=False)
async def test_undo_while_shut(x: Cluster) -> None:
    """The workers run again and the handler is Dask's; a wrapper that somebody put over ours goes on working."""
    (a, b) = x.workers
    original = x.scheduler.stream_handlers["worker-status-change"]
    gate = Gate(x.scheduler)
    for worker in x.workers:
        gate.shut(worker.address)
    (k,) = x.persist({"K": []}, "K")
    await until(lambda: "K" in x.scheduler.tasks and x.task("K").state == "no-worker")
    gate.undo()
    gate.undo()
    assert x.scheduler.stream_handlers["worker-status-change"] == original
    await x.right({"K": []}, k)

    gate = Gate(x.scheduler)
    ours, heard = x.scheduler.stream_handlers["worker-status-change"], []

    def theirs(**msg: Any) -> None:
        heard.append(msg["status"])
        ours(**msg)

    x.scheduler.stream_handlers["worker-status-change"] = theirs
    gate.shut(a.address)
    gate.undo()
    assert x.scheduler.stream_handlers["worker-status-change"] is theirs
    b.status = Status.paused
    await until(lambda: x.scheduler.workers[b.address].status == Status.paused)
    assert heard == ["paused"]
    assert x.scheduler.workers[a.address].status == Status.running
    await ended(x)


@cluster_test(install=False, check=False)
async def test_a_surprise_in_the_guard_leaves_dask_alone(x: Cluster) -> None:
    """The status counts as in plain Dask, and other workers stay shut."""
    a, b = x.workers
    gate = Gate(x.scheduler)
    gate.shut(a.address)
    gate.shut(b.address)
    del gate._shut[a.address].ws
    a.status = Status.paused
    a.status = Status.running
    await until(lambda: x.scheduler.workers[a.address] in x.scheduler.running, what="it runs")
    assert any("may get some" in message for message in x.log.messages)
    x.log.messages.clear()
    assert gate.shut_workers == {b.address}
    gate.undo()
