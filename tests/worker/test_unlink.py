"""What the scheduler takes for a load without inputs may, on a worker, still be the task itself, running on them."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
from distributed.worker_state_machine import (
    ExecuteFailureEvent,
    RemoveReplicasEvent,
    RescheduleEvent,
    TaskState,
    WorkerState,
)

from dask_resilient.internals.unlink import Unlink


async def fails(key, *, stimulus_id):
    """End as Dask does where an input is not there."""
    return ExecuteFailureEvent.dummy(key, stimulus_id=stimulus_id)


@pytest.fixture
def worker():
    """A worker on which the task ``m`` runs, with an input ``b`` that it holds; ``m`` was sent again meanwhile."""
    state = WorkerState(nthreads=1)
    b, m = TaskState("b", state="memory", nbytes=1), TaskState("m", state="executing")
    m.dependencies, b.dependents = {b}, {m}
    state.tasks |= {"b": b, "m": m}
    for task in (b, m):
        state.task_counter.new_task(task)
    state.executing.add(m)
    state.data["b"] = 1
    return SimpleNamespace(
        state=state,
        execute=fails,
        active_keys={"m"},
        stream_handlers={
            "compute-task": lambda **_: None,
            "remove-replicas": lambda **msg: state.handle_stimulus(RemoveReplicasEvent(**msg)),
        },
    )


def drop(worker):
    worker.stream_handlers["remove-replicas"](keys=["b", "not here"], stimulus_id="s")


def test_an_input_of_a_task_that_was_overtaken_can_be_dropped(worker):
    """Dask alone raises, which closes the worker; it has the task running for the new run by then."""
    unlink = Unlink(worker)
    unlink.install()
    worker.stream_handlers["compute-task"](key="m", who_has={})
    drop(worker)
    assert "b" not in worker.state.tasks
    assert worker.state.tasks["m"].dependencies == set()


def test_an_input_of_any_other_running_task_is_dasks_concern(worker):
    """It says what it says without us."""
    Unlink(worker).install()
    with pytest.raises(RuntimeError, match="Cannot remove replica of 'b' while 'm' in state 'executing'"):
        drop(worker)


def test_both_handlers_are_given_back(worker):
    """As they were."""
    before = dict(worker.stream_handlers)
    unlink = Unlink(worker)
    unlink.install()
    assert worker.stream_handlers != before
    assert worker.execute is not fails
    unlink.undo()
    assert worker.stream_handlers == before
    assert worker.execute is fails


@pytest.mark.parametrize(("state", "event"), [("memory", ExecuteFailureEvent), ("fetch", RescheduleEvent)])
def test_a_task_whose_function_could_not_begin_is_asked_for_again(state, event, worker):
    """Where an input is not there; any other failure is the task's."""
    Unlink(worker).install()
    worker.state.tasks["b"].state = state
    assert type(asyncio.run(worker.execute("m", stimulus_id="s"))) is event
