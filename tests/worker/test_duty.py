"""A worker whose process can compute nothing any more starts no further task, and is given back whole."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from distributed import Future, Worker, get_worker, secede
from distributed.worker_state_machine import ExecuteFailureEvent, UnpauseEvent

from dask_resilient.internals.worker_gate import WorkerGate
from dask_resilient.worker import duty, faults
from tests.support.cluster import Cluster, cluster_test
from tests.support.gates import ended
from tests.support.waiting import until
from tests.support.world import _worlds

ILLEGAL = "cudaErrorIllegalAddress: an illegal memory access was encountered"
ACTS = {"resilience__probe__enabled": True, "resilience__probe__interval": 30}


def broken(number: int, key: str, where: str = "", text: str = ILLEGAL) -> str:
    """Fail with an error of CUDA, on the worker whose address ends like that; count the attempts there."""
    if get_worker().address.endswith(where):
        _worlds[number].run(key)
        raise RuntimeError(text)
    return key


def seceded(number: int, key: str) -> None:
    secede()
    broken(number, key)


def submit(x: Cluster, *keys: str, func: Callable[..., Any] = broken, **kwargs: Any) -> list[Future]:
    return [x.client.submit(func, x.number, key, key=key, **kwargs) for key in keys]


def deaf(x: Cluster) -> list[tuple[str, Any]]:
    """Keep the scheduler from answering; gives what it hears of errors, in order."""
    heard: list[tuple[str, Any]] = []
    x.watch.keeper.tries.during = lambda key, *_: heard.append(("fault", key))  # type: ignore[method-assign]
    x.watch.keeper.enact.reopen = lambda worker: None  # type: ignore[method-assign]
    erred = x.scheduler.stream_handlers["task-erred"]

    def task_erred(**msg: Any) -> Any:
        heard.append(("erred", msg["key"]))
        return erred(**msg)

    x.scheduler.stream_handlers["task-erred"] = task_erred
    return heard


def say(x: Cluster, worker: Worker, do: str, **fields: Any) -> None:
    """Send a worker's side a word of the scheduler's."""
    x.scheduler.worker_send(worker.address, {"op": "resilience", "do": do, "run": x.watch.run, **fields})


def states(worker: Worker) -> dict[Any, str]:
    return {key: ts.state for key, ts in worker.state.tasks.items()}


QUEUED = [f"K{i}" for i in range(20)]


@pytest.mark.parametrize("threads", [1, 2])
@cluster_test(workers=0, **ACTS)
async def test_no_task_begins_behind_one_that_broke_the_process(x: Cluster, threads: int) -> None:
    """20 tasks wait there: one attempt a thread, then they run elsewhere."""
    x.threads = threads
    a, *_ = [await x.join(ready=True) for _ in range(4)]
    x.world.hold(*QUEUED)
    futures = submit(x, *QUEUED, where=a.address, workers=[a.address], allow_other_workers=True, retries=1)
    await until(lambda: len(a.state.tasks) == 20, what="all wait there")
    await until(lambda: len(x.world.runs) == threads, what="every thread has one")
    x.world.free()
    assert await x.client.gather(futures) == QUEUED
    assert len(x.world.runs) == threads


@cluster_test(workers=1, **ACTS)
async def test_one_attempt_each_time_that_it_is_let_go_on(x: Cluster) -> None:
    """The scheduler hears of the fault first, then of the error; each error is classified once."""
    (a,) = x.workers
    heard, looked, classify = deaf(x), [], faults.classify
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(faults, "classify", lambda *args: (looked.append(1), classify(*args))[1])
        x.world.hold("K0")
        futures = submit(x, *QUEUED[:3])
        await until(lambda: len(a.state.tasks) == 3, what="all wait there")
        x.world.free()
        for n in (1, 2):
            await until(lambda: len(heard) == 2 * n, what=f"{n} are heard of")  # noqa: B023
            assert not a.state.running
            assert list(states(a).values()).count("error") == n
            assert set(states(a).values()) <= {"error", "ready"}
            assert len(x.world.runs) == len(looked) == n
            a.validate_state()
            say(x, a, "gate", shut=False)
        await x.done(*futures)
        assert [future.status for future in futures] == ["error"] * 3
        assert [what for what, _ in heard] == ["fault", "erred"] * 3


@cluster_test(workers=1, **ACTS)
async def test_without_an_answer_it_goes_on_by_itself(x: Cluster) -> None:
    """Also where the task was cancelled meanwhile: the scheduler hears of the fault, though not of the error."""
    (a,) = x.workers
    heard = deaf(x)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(duty, "UNANSWERED", 0.1)
        x.world.hold("K0")
        first, *others = submit(x, *QUEUED[:2])
        await x.runs("K0")
        await first.cancel()
        await until(lambda: states(a)["K0"] == "cancelled", what="it is cancelled there")
        x.world.free()
        await x.done(*others)
        await until(lambda: a.state.running, what="it goes on")
    assert heard == [("fault", "K0"), ("fault", "K1"), ("erred", "K1")]
    assert await x.client.submit(abs, -1) == 1


@cluster_test(workers=1, threads=2, **ACTS)
async def test_what_executes_beside_it_ends_as_ever(x: Cluster) -> None:
    """In its thread, or in one of its own; what is ready waits."""
    (a,) = x.workers
    heard = deaf(x)
    x.world.hold("M", "S", "B")
    (mine,) = x.persist({"M": []}, "M")
    await x.runs("M")
    (left,) = submit(x, "S", func=seceded)
    await until(lambda: states(a).get("S") == "long-running", what="it secedes")
    (bad,) = submit(x, "B")
    await x.runs("B")
    (late,) = x.persist({"L": []}, "L")
    await until(lambda: states(a).get("L") == "ready", what="it is ready")
    x.world.free("S")
    await x.done(left)
    assert (a.state.running, states(a)["L"]) == (False, "ready")
    x.world.free("B")
    await x.done(bad)
    x.world.free("M")
    await x.right({"M": []}, mine)
    assert states(a)["L"] == "ready"
    assert heard == [("fault", "S"), ("erred", "S"), ("fault", "B"), ("erred", "B")]
    say(x, a, "gate", shut=False)
    await x.right({"L": []}, late)


@cluster_test(workers=1, threads=2, **ACTS)
async def test_events_that_come_together(x: Cluster) -> None:
    """Somebody hands on two failures and a permission to go on at once: the gate is shut before the first of them."""
    (a,) = x.workers
    heard, ours, kept = deaf(x), a.handle_stimulus, []

    def together(*events: Any) -> None:
        kept.extend(event for event in events if isinstance(event, ExecuteFailureEvent))
        if others := [event for event in events if not isinstance(event, ExecuteFailureEvent)]:
            ours(*others)
        if len(kept) == 2:
            batch = [*kept, UnpauseEvent(stimulus_id="test")]
            kept.clear()
            ours(*batch)

    a.handle_stimulus = together  # type: ignore[method-assign]
    x.world.hold("V", "B", "L")
    (value,) = submit(x, "V", text="no such column")
    (bad,) = submit(x, "B")
    await x.runs("V")
    await x.runs("B")
    (late,) = x.persist({"L": []}, "L")
    await until(lambda: states(a).get("L") == "ready", what="it is ready")
    x.world.free()
    await x.done(value, bad)
    assert (a.state.running, states(a)["L"]) == (False, "ready")
    assert sorted(heard) == [("erred", "B"), ("erred", "V"), ("fault", "B")]
    say(x, a, "gate", shut=False)
    await x.right({"L": []}, late)
    a.handle_stimulus = ours  # type: ignore[method-assign]
    await x.plugin.uninstall(wait=5)
    assert "handle_stimulus" not in a.__dict__


@cluster_test(workers=1, check=False, **ACTS)
async def test_undone_below_somebody_else_s(x: Cluster) -> None:
    """Their wrapper stays, and ours in it does nothing any more."""
    (a,) = x.workers
    deaf(x)
    ours, passed = a.handle_stimulus, []

    def theirs(*events: Any) -> None:
        passed.extend(events)
        ours(*events)

    a.handle_stimulus = theirs  # type: ignore[method-assign]
    await x.done(*submit(x, "K0"))
    assert not a.state.running
    await x.plugin.uninstall(wait=5)
    assert a.state.running
    assert a.handle_stimulus is theirs
    await x.done(*submit(x, *QUEUED[1:4]))
    assert len(x.world.runs) == 4
    assert sum(isinstance(event, ExecuteFailureEvent) for event in passed) == 4
    await ended(x)


@cluster_test(workers=1, install=False, check=False)
async def test_who_listens_hears_of_failures_only_until_the_gate_is_undone(x: Cluster) -> None:
    """Of what is about to be handled, then, once it is, of nothing; also below a wrapper that stays."""
    (a,) = x.workers
    heard: list[tuple[list[Any], str]] = []
    gate = WorkerGate(a)
    gate.listen(lambda failures: heard.append(([event.key for event in failures], states(a)["K0"])))
    a.handle_stimulus = partial(a.handle_stimulus)  # type: ignore[method-assign]
    futures = submit(x, "K0")
    await x.done(*futures, *x.persist({"L": []}, "L"))
    assert heard == [(["K0"], "executing"), ([], "error")]
    gate.undo()
    await x.done(*submit(x, "K1"))
    assert len(heard) == 2
    await ended(x)


@pytest.mark.parametrize(
    "settings",
    [{"quarantine__observe": True}, {"quarantine__enabled": False}],
    ids=["observes", "off"],
)
@cluster_test(workers=1, install=False, check=False)
async def test_where_nothing_follows_nothing_is_wrapped(x: Cluster, settings: dict[str, Any]) -> None:
    """The worker runs what comes next, as plain Dask does; what acts is wrapped and given back."""
    import dask

    (a,) = x.workers
    changes = {f"resilience.{key.replace('__', '.')}": value for key, value in settings.items()}
    with dask.config.set({"resilience.probe.enabled": True, **changes}):
        await x.install()
    assert "handle_stimulus" not in a.__dict__
    await x.done(*submit(x, *QUEUED[:3]))
    assert len(x.world.runs) == 3
    await x.plugin.uninstall(wait=5)
    await x.install()
    assert "handle_stimulus" in a.__dict__
    await x.check()
    assert "handle_stimulus" not in a.__dict__


# -- a worker that is to leave -----------------------------------------------------------------------------------------


@cluster_test(workers=1)
async def test_a_worker_that_stays_after_all_reports_again(x: Cluster) -> None:
    """Our side goes while it was to leave: it gets its heartbeat, its nanny and its tasks back."""
    (a,) = x.workers
    beat = a.periodic_callbacks["heartbeat"]
    a.nanny = "tcp://127.0.0.1:9"
    try:
        for _ in range(2):
            say(x, a, "leaving")
            await until(lambda: a.nanny is None, what="it is ready to leave")
        assert not beat.is_running()
        await x.plugin.uninstall(wait=5)
        assert beat.is_running()
        assert a.nanny == "tcp://127.0.0.1:9"
    finally:
        a.nanny = None
    seen = x.scheduler.workers[a.address].last_seen
    await until(lambda: x.scheduler.workers[a.address].last_seen > seen, what="it reports")
    assert await x.client.submit(abs, -1) == 1


@cluster_test(workers=1, check=False)
async def test_one_that_closes_is_given_nothing_back(x: Cluster) -> None:
    """Its nanny would be told of an end that it knows of."""
    (a,) = x.workers
    a.nanny = "tcp://127.0.0.1:9"
    say(x, a, "leaving")
    await until(lambda: a.nanny is None, what="it is ready to leave")
    await a.close()
    assert a.nanny is None
    assert not a.periodic_callbacks["heartbeat"].is_running()
