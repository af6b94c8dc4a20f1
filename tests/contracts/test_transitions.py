"""What the detour assumes of the scheduler's transitions, one test an assumption. Dask's own code only."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from dask._task_spec import Task
from distributed import SchedulerPlugin
from distributed.scheduler import Scheduler, TaskGroup, TaskPrefix, TaskState

from dask_resilient.internals.versions import _ROWS, unsupported
from tests.support.cluster import Cluster, cluster_test
from tests.support.waiting import until

CHAIN = {"D": [], "K": ["D"]}


class Recorder(SchedulerPlugin):
    """Writes down every hook."""

    name = "recorder"

    def __init__(self) -> None:
        self.heard: list[tuple[Any, ...]] = []

    def transition(self, key: Any, start: str, finish: str, *args: Any, **kwargs: Any) -> None:
        self.heard.append(("transition", key, start, finish))

    def log_event(self, topic: str, msg: Any) -> None:
        if isinstance(msg, dict) and "action" in msg:
            self.heard.append(("event", topic, msg["action"], msg))

    def add_worker(self, scheduler: Any, worker: str) -> None:
        self.heard.append(("add_worker", worker))

    def remove_worker(self, scheduler: Any, worker: str, **kwargs: Any) -> None:
        self.heard.append(("remove_worker", worker))

    def restart(self, scheduler: Any) -> None:
        self.heard.append(("restart", len(scheduler.tasks)))


async def recorded(x: Cluster) -> Recorder:
    """Register a recorder."""
    recorder = Recorder()
    await x.scheduler.register_scheduler_plugin(recorder, idempotent=False)
    return recorder


@cluster_test(install=False, check=False)
async def test_this_dask_is_supported(x: Cluster) -> None:
    """The versions that these tests run on are those that the detour is switched on for."""
    assert unsupported(x.scheduler) is None


@cluster_test(install=False, check=False)
async def test_the_table_is_looked_up_on_the_instance(x: Cluster) -> None:
    """An attribute of the scheduler shadows the class's table, with the scheduler as first argument of a row."""
    assert "_TRANSITIONS_TABLE" not in x.scheduler.__dict__
    seen = []
    original = x.scheduler._TRANSITIONS_TABLE["released", "waiting"]

    def row(scheduler: Any, key: Any, stimulus_id: str, **kwargs: Any) -> Any:
        seen.append((scheduler, key, kwargs))
        return original(scheduler, key, stimulus_id, **kwargs)

    x.scheduler._TRANSITIONS_TABLE = {**x.scheduler._TRANSITIONS_TABLE, ("released", "waiting"): row}
    (k,) = x.persist(CHAIN, "K")
    await x.right(CHAIN, k)
    assert seen == [(x.scheduler, "K", {}), (x.scheduler, "D", {})]


@pytest.mark.parametrize("row", _ROWS, ids=lambda row: f"{row[0]}-{row[1]}")
def test_a_row_takes_scheduler_key_and_stimulus_id(row: tuple[str, str]) -> None:
    """Everything else that it takes is by keyword."""
    parameters = list(inspect.signature(Scheduler._TRANSITIONS_TABLE[row]).parameters.values())
    assert [p.name for p in parameters[:3]] == ["self", "key", "stimulus_id"]
    assert all(p.kind in (p.KEYWORD_ONLY, p.VAR_KEYWORD) for p in parameters[3:])


@pytest.mark.parametrize("state", ["waiting", "queued", "no-worker", "processing"])
def test_no_row_leaves_an_active_state_but_the_wrapped_ones(state: str) -> None:
    """Every other way out of waiting, queued, no-worker and processing goes through ``released``."""
    out = {finish for start, finish in Scheduler._TRANSITIONS_TABLE if start == state}
    assert out <= {"released", "memory", "erred", "waiting", "queued", "no-worker", "processing"}
    assert (state, "released") in Scheduler._TRANSITIONS_TABLE


def test_only_released_becomes_waiting() -> None:
    """The one place where Dask decides how to bring a value back."""
    assert [start for start, finish in Scheduler._TRANSITIONS_TABLE if finish == "waiting"] == ["released"]


def test_only_released_and_memory_become_forgotten() -> None:
    """A key that is parked cannot be forgotten without leaving first."""
    starts = {start for start, finish in Scheduler._TRANSITIONS_TABLE if finish == "forgotten"}
    assert starts == {"released", "memory"}


@pytest.mark.parametrize(
    "name",
    [
        "dependencies", "dependents", "waiters", "waiting_on", "who_wants", "who_has", "run_spec", "retries",
        "suspicious",
        "has_lost_dependencies", "worker_restrictions", "host_restrictions", "resource_restrictions",
        "loose_restrictions", "annotations", "actor", "priority", "exception_blame", "state", "run_id", "processing_on",
        "nbytes", "prefix", "group", "key",
    ],
)  # fmt: skip
def test_a_task_has_the_attribute(name: str) -> None:
    """All that the detour and the ledger read or set."""
    task = TaskState("K", Task("K", abs, -1), "released", TaskGroup("g", TaskPrefix("p")), False)
    assert hasattr(task, name)


def test_a_task_outside_of_the_scheduler_is_private() -> None:
    """A `TaskState` with a group and a prefix of its own is counted nowhere else and has no annotations."""
    group = TaskGroup("g", TaskPrefix("p"))
    assert TaskState("K", None, "released", group, False).annotations is None
    assert group.states["released"] == 1


@cluster_test(install=False, check=False)
async def test_the_loss_is_logged_before_it_is_worked_off(x: Cluster) -> None:
    """Event ``remove-worker`` under "all", then the transitions, then the hook `remove_worker`."""
    (k,) = x.persist(CHAIN, "K")
    await x.done(k)
    x.world.hold("run")
    (run,) = x.persist({"run": []}, "run", workers=[x.holder("K")])
    await x.runs("run")
    recorder = await recorded(x)
    address = x.holder("K")
    await x.lose(address)
    kinds = [h[0] if h[0] != "event" else h[:3] for h in recorder.heard]
    event = kinds.index(("event", "all", "remove-worker"))
    assert event < kinds.index("transition") < kinds.index("remove_worker")
    assert recorder.heard[event][3] == {
        "action": "remove-worker",
        "worker": address,
        "processing-tasks": {"run"},
        "lost-computed-tasks": {"K"},
        "lost-scattered-tasks": set(),
        "stimulus_id": "test-loss",
        "expected": False,
    }
    x.world.free()
    await x.right(CHAIN, k)
    run.release()


@cluster_test(install=False, check=False)
async def test_a_lost_worker_is_out_of_the_table_when_its_loss_is_worked_off(x: Cluster) -> None:
    """So that no load is sent there, and its loss does not hold a worker that is gone."""
    (k,) = x.persist(CHAIN, "K")
    await x.done(k)
    seen = []
    original = x.scheduler._TRANSITIONS_TABLE["released", "waiting"]

    def row(scheduler: Any, key: Any, stimulus_id: str) -> Any:
        seen.append(set(scheduler.workers))
        return original(scheduler, key, stimulus_id)

    x.scheduler._TRANSITIONS_TABLE = {**x.scheduler._TRANSITIONS_TABLE, ("released", "waiting"): row}
    address = x.holder("K")
    await x.lose(address)
    assert seen
    assert not any(address in workers for workers in seen)
    await x.right(CHAIN, k)


@cluster_test(workers=1, install=False, check=False)
async def test_add_worker_is_told_before_waiting_tasks_are_given_to_the_worker(x: Cluster) -> None:
    """So that loads can be bound to other workers in time."""
    (k,) = x.persist({"K": []}, "K", resources={"R": 1})
    await until(lambda: "K" in x.scheduler.tasks and x.task("K").state == "no-worker")
    recorder = await recorded(x)
    worker = await x.join(resources={"R": 1})
    await x.right({"K": []}, k)
    kinds = [h[:2] for h in recorder.heard if h[0] != "event"]
    assert kinds.index(("add_worker", worker.address)) < kinds.index(("transition", "K"))


@cluster_test(install=False, check=False)
async def test_the_hook_sees_a_forgotten_task(x: Cluster) -> None:
    """The ledger lets go of it then."""
    recorder = await recorded(x)
    (k,) = x.persist({"K": []}, "K")
    await x.done(k)
    k.release()
    await until(lambda: not x.scheduler.tasks)
    assert [h[2:] for h in recorder.heard if h[:2] == ("transition", "K")] == [
        ("released", "waiting"),
        ("waiting", "processing"),
        ("processing", "memory"),
        ("memory", "forgotten")
        if ("transition", "K", "memory", "forgotten") in recorder.heard
        else ("memory", "released"),
        *([("released", "forgotten")] if ("transition", "K", "released", "forgotten") in recorder.heard else []),
    ]


@cluster_test(install=False, check=False)
async def test_restart_is_told_when_every_task_is_gone(x: Cluster) -> None:
    """And before the workers are restarted."""
    recorder = await recorded(x)
    (k,) = x.persist({"K": []}, "K")
    await x.done(k)
    await x.client.restart(timeout=10, wait_for_workers=False)
    hooks = [h for h in recorder.heard if h[0] in ("restart", "remove_worker")]
    assert hooks[0] == ("restart", 0)


@cluster_test(install=False, check=False)
async def test_reschedule_sends_the_key_back_to_released(x: Cluster) -> None:
    """From where it is decided anew how to bring the value."""
    recorder = await recorded(x)
    future = x.client.submit(_reschedule_once, x.number, key="K")
    await x.done(future)
    states = [h[2:] for h in recorder.heard if h[:2] == ("transition", "K")]
    assert ("processing", "released") in states
    assert states.count(("released", "waiting")) == 2


def _reschedule_once(number: int) -> int:
    from distributed import Reschedule

    from tests.support.world import _worlds

    _worlds[number].runs.append("K")
    if _worlds[number].ran("K") == 1:
        raise Reschedule
    return 1


@cluster_test(install=False, check=False)
async def test_unregistering_calls_nothing(x: Cluster) -> None:
    """So an instance finds out by itself that it is not registered any more."""
    recorder = await recorded(x)
    calls: list[str] = []
    recorder.close = lambda: calls.append("close")  # type: ignore[assignment, method-assign]
    assert x.scheduler.plugins["recorder"] is recorder
    await x.scheduler.unregister_scheduler_plugin("recorder")
    assert "recorder" not in x.scheduler.plugins
    assert not calls


@cluster_test(install=False, check=False)
async def test_a_second_plugin_of_a_name_is_started_only_if_it_is_not_idempotent(x: Cluster) -> None:
    """And one that is registered while the first still starts is started, too."""
    recorder = await recorded(x)
    other = Recorder()
    await x.scheduler.register_scheduler_plugin(other, idempotent=True)
    assert x.scheduler.plugins["recorder"] is recorder


@cluster_test(install=False, check=False)
async def test_a_call_without_a_handler_is_answered_with_none(x: Cluster) -> None:
    """No error: who asks a scheduler without the plugin gets nothing."""
    assert await x.client.scheduler.no_such_handler(method="status") is None


@pytest.mark.parametrize(
    ("how", "cause"),
    [
        ("abort", "handle-worker-cleanup"),
        ("close", "handle-worker-cleanup"),
        ("close gracefully", "worker-close"),
        ("retire", "retire-workers"),
        ("remove", "test-loss"),
    ],
)
@cluster_test(install=False, check=False)
async def test_stimulus_ids_of_removals(x: Cluster, how: str, cause: str) -> None:
    """The words of `core.incidents.CAUSES` are found in them."""
    recorder = await recorded(x)
    worker = x.workers[0]
    if how == "abort":
        worker.batched_stream.abort()
    elif how == "close":
        await worker.close(nanny=False)
    elif how == "close gracefully":
        await worker.close_gracefully()
    elif how == "retire":
        await x.client.retire_workers([worker.address])
    else:
        await x.lose(worker.address)
    await until(lambda: worker.address not in x.scheduler.workers)
    await until(lambda: any(h[2:3] == ("remove-worker",) for h in recorder.heard))
    (event,) = (h[3] for h in recorder.heard if h[:3] == ("event", "all", "remove-worker"))
    assert cause in event["stimulus_id"], event["stimulus_id"]
