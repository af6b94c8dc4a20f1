"""What the two sides of the gate assume of Dask, one test an assumption. Dask's own code only."""

from __future__ import annotations

import ast
import inspect
from typing import Any

import pytest
from distributed import Worker, WorkerPlugin
from distributed import scheduler as scheduler_module
from distributed.core import Status
from distributed.worker_state_machine import PauseEvent, UnpauseEvent

from tests.support.cluster import Cluster, cluster_test
from tests.support.waiting import until

MANY = {f"K{i}": [] for i in range(8)}


# -- the scheduler -----------------------------------------------------------------------------------------------------


def test_who_changes_the_status_of_a_worker() -> None:
    """The handler of what workers report; retiring; joining; leaving. Nothing else could open a gate."""
    nodes = list(ast.walk(ast.parse(inspect.getsource(scheduler_module))))
    targets = [ast.unparse(target) for node in nodes if isinstance(node, ast.Assign) for target in node.targets]
    assert targets.count("ws.status") == 2  # handle_worker_status_change, remove_worker
    assert {t for t in targets if t.endswith(".status")} == {"ws.status", "self.status"}
    calls = [(ast.unparse(node.func), [*map(ast.unparse, node.args)]) for node in nodes if isinstance(node, ast.Call)]
    (arguments,) = (arguments for func, arguments in calls if func.endswith("handle_worker_status_change"))
    assert arguments[0] == "Status.closing_gracefully"  # retire_workers
    assert [func for func, _ in calls].count("self.running.add") == 2  # handle_worker_status_change, add_worker


@cluster_test(workers=1, install=False, check=False)
async def test_what_a_worker_reports_counts(x: Cluster) -> None:
    """The case that forces the guard, and the form of the message; the handler is looked up with each."""
    (a,) = x.workers
    ws = x.scheduler.workers[a.address]
    seen: list[dict[str, Any]] = []
    original = x.scheduler.stream_handlers["worker-status-change"]

    def handler(**msg: Any) -> None:
        seen.append(msg)
        original(**msg)

    x.scheduler.stream_handlers["worker-status-change"] = handler
    x.pause(a)
    a.status = Status.paused
    a.status = Status.running
    await until(lambda: ws in x.scheduler.running, what="the report counts")
    assert [set(msg) for msg in seen] == [{"worker", "status", "stimulus_id"}] * 2
    assert [(msg["worker"], msg["status"]) for msg in seen] == [(a.address, "paused"), (a.address, "running")]


@cluster_test(workers=1, install=False, check=False, distributed__worker__memory__pause=False)
async def test_a_failed_retirement_sets_the_schedulers_status_on_the_worker(x: Cluster) -> None:
    """A worker that is paused on the scheduler only is then paused itself, and without a memory monitor for ever."""
    (a,) = x.workers
    (k,) = x.persist({"K": []}, "K")
    await x.done(k)
    x.pause(a)
    assert await x.scheduler.retire_workers([a.address], stimulus_id="test-retire") == {}
    await until(lambda: a.status == Status.paused, what="the worker is paused itself")


@cluster_test(install=False, check=False)
async def test_a_paused_worker_keeps_what_it_was_sent(x: Cluster) -> None:
    """The case that forces taking back; what is taken back goes on elsewhere, uncharged, in one call."""
    a, b = x.workers
    x.pause(b)
    x.world.hold(*MANY)
    futures = x.persist(MANY, *MANY)
    ws = x.scheduler.workers[a.address]
    await until(lambda: len(ws.executing) == 1, what="one is executed")
    x.pause(a)
    x.pause(b, paused=False)
    keys = [ts.key for ts in ws.processing if ts not in ws.executing]
    assert len(keys) == 7
    x.scheduler.transitions(dict.fromkeys(keys, "released"), "test-take-back")
    assert {x.runner(key) for key in keys} == {b.address}
    assert not any(x.task(key).suspicious for key in keys)
    x.scheduler.validate_state()
    await until(lambda: len(a.state.tasks) == 1, what="the worker hears of it")
    x.world.free()
    await x.right(MANY, *futures)
    assert len(x.world.runs) == 8


@cluster_test(workers=1, install=False, check=False)
async def test_heartbeats_tell_what_is_executed(x: Cluster) -> None:
    """By task, with its seconds; one that ends stays there until the next, so that it is looked at a second time."""
    x.world.hold("K")
    (k,) = x.persist({"K": []}, "K")
    (ws,) = x.scheduler.workers.values()
    await until(lambda: [(ts.key, s >= 0) for ts, s in ws.executing.items()] == [("K", True)], what="it is told")
    x.workers[0].periodic_callbacks["heartbeat"].stop()
    x.world.free()
    await x.right({"K": []}, k)
    assert [ts.key for ts in ws.executing] == ["K"]
    assert not ws.processing
    x.workers[0].periodic_callbacks["heartbeat"].start()
    await until(lambda: not ws.executing, what="a heartbeat tells that it has ended")


@cluster_test(workers=3, install=False, check=False, distributed__scheduler__work_stealing_interval="1h")
async def test_a_theft_under_way_ends_on_a_paused_worker(x: Cluster) -> None:
    """The case that forces taking back what is being stolen; its record has the thief."""
    a, b, _ = x.workers
    wss = x.scheduler.workers
    x.world.hold(*MANY)
    futures = x.persist(MANY, *MANY, workers=[a.address], allow_other_workers=True)
    await until(lambda: x.world.runs, what="one runs")
    (key, *_) = (key for key in MANY if key not in x.world.runs and x.runner(key) == a.address)
    stealing = x.scheduler.extensions["stealing"]
    stealing.move_task_request(x.task(key), wss[a.address], wss[b.address])
    assert stealing.in_flight[x.task(key)]["thief"] is wss[b.address]
    x.pause(b)
    await until(lambda: not stealing.in_flight, what="the theft ends")
    assert x.runner(key) == b.address
    x.world.free()
    await x.right(MANY, *futures)


# -- the worker --------------------------------------------------------------------------------------------------------


@cluster_test(workers=1, install=False, check=False, distributed__worker__memory__monitor_interval="50ms")
async def test_the_memory_monitor_resumes_a_worker(x: Cluster) -> None:
    """The case that forces a gate that is no status."""
    (a,) = x.workers
    a.status = Status.paused
    await until(lambda: a.status == Status.running and a.state.running, what="it is resumed")


@cluster_test(workers=1, install=False, check=False)
async def test_events_go_through_an_attribute_of_the_worker(x: Cluster) -> None:
    """All of them: what changes the status, what the scheduler sends, what a task ends in; each gives one or more."""
    (a,) = x.workers
    seen: list[str] = []
    original = a.handle_stimulus

    def handle(*events: Any) -> None:
        seen.extend(type(event).__name__ for event in events)
        original(*events)

    a.handle_stimulus = handle  # type: ignore[method-assign]
    (k,) = x.persist({"K": []}, "K")
    await x.right({"K": []}, k)
    a.status = Status.paused
    a.status = Status.running
    assert seen == ["ComputeTaskEvent", "ExecuteSuccessEvent", "PauseEvent", "UnpauseEvent"]


class PauseInHook(WorkerPlugin):
    """Pauses the state machine in the middle of a transition."""

    name = "pause-in-hook"

    def setup(self, worker: Worker) -> None:
        self.worker = worker

    def transition(self, key: Any, start: str, finish: str, **_: Any) -> None:
        if finish == "error":
            self.worker.handle_stimulus(PauseEvent(stimulus_id="test-pause"))


@pytest.mark.parametrize("threads", [1, 2])
@cluster_test(workers=0, install=False, check=False)
async def test_a_pause_out_of_a_transition_stops_all_but_what_is_chosen(x: Cluster, threads: int) -> None:
    """A worker chooses the next task before it takes in how the last one ended, so that one still runs."""
    x.threads = threads
    a = await x.join()
    await a.plugin_add(plugin=PauseInHook(), name="pause-in-hook")
    x.world.hold(*MANY)
    x.world.errors.update(dict.fromkeys(MANY, 1))
    futures = x.persist(MANY, *MANY)
    await until(lambda: len(x.world.runs) == threads, what="all threads are busy")
    await until(lambda: len(a.state.tasks) == 8, what="the others are there")
    first = x.world.runs[0]
    x.world.free(first)
    await until(lambda: not a.state.running, what="it pauses")
    x.world.free(*(key for key in MANY if key != first))
    await until(lambda: not a.state.executing, what="what runs ends")
    assert len(x.world.runs) == threads + 1
    a.validate_state()
    await a.plugin_remove(name="pause-in-hook")
    a.handle_stimulus(UnpauseEvent(stimulus_id="test-unpause"))
    await x.done(*futures)
    assert len(x.world.runs) == 8
