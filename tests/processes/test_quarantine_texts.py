"""Errors that only quote CUDA, on workers without a GPU: what plain Dask keeps is kept."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from distributed import wait

from tests.processes.test_quarantine import ILLEGAL, decisions, four, phases

__all__ = ["four"]


def quotes(i):
    time.sleep(0.2)
    raise ValueError(f"line {i}: {ILLEGAL}")


def where(i, directory):
    """Note each run of a task in a file, and take a while."""
    with Path(directory, str(i)).open("a") as f:
        f.write("x")
    time.sleep(0.3)
    return i


class Counter:
    n = 0

    def add(self):
        self.n += 1
        return self.n


def stranded(x):
    return [event for _, event in x.scheduler.get_events("resilience") if event["action"] == "stranded"]


def restarts(x):
    return [row for row in decisions(x) if any(action.startswith("restart") for action in row["actions"])]


def test_no_task_runs_twice_on_a_worker_that_is_only_tried(four, tmp_path):
    """What it has begun since its last heartbeat ends there; what waits there runs elsewhere."""
    x = four
    bad = x.client.map(quotes, range(5, 9), pure=False, priority=10)
    futures = x.client.map(where, range(60), [str(tmp_path)] * 60, pure=False)
    assert x.client.gather(futures) == list(range(60))
    assert {i: Path(tmp_path, str(i)).read_text() for i in range(60)} == dict.fromkeys(range(60), "x")
    wait(bad)
    assert {future.status for future in bad} == {"error"}


def test_a_task_that_may_run_only_there_fails_as_in_plain_dask(four):
    """Once, at once, and it costs the worker nothing: another try would be of the same process."""
    x = four
    (scattered,) = x.client.scatter([b"only copy"], workers=x.addresses()[:1])
    bad = x.client.submit(quotes, 1, workers=x.addresses()[:1])
    assert f"line 1: {ILLEGAL}" in str(bad.exception(20))
    x.until(lambda: set(phases(x).values()) == {"active"}, what="it was tried, and serves")
    assert not restarts(x)
    assert scattered.result(10) == b"only copy"


def test_what_nothing_can_bring_back_is_moved_before_a_process_is_lost(four):
    """Two errors in a row cost it, yet no scattered data; and what is bound to it goes on in the next process."""
    x = four
    address = x.addresses()[0]
    (scattered,) = x.client.scatter([b"only copy"], workers=[address])
    bad = [x.client.submit(quotes, i, workers=[address], pure=False) for i in range(2)]
    for future in bad:
        assert ILLEGAL in str(future.exception(30))
    bound = [x.client.submit(int, i, workers=[address], pure=False) for i in range(3)]
    assert x.client.gather(bound) == [0, 1, 2]
    x.until(lambda: set(phases(x).values()) == {"active"} and len(phases(x)) == 4, what="all serve")
    assert len(restarts(x)) == 1
    assert address not in x.scheduler.workers
    assert scattered.result(10) == b"only copy"


def test_a_worker_with_an_actor_loses_no_process_for_a_text(four):
    x = four
    address = x.addresses()[0]
    actor = x.client.submit(Counter, actor=True, workers=[address]).result()
    assert actor.add().result() == 1
    bad = [x.client.submit(quotes, i, workers=[address], pure=False) for i in range(3)]
    for future in bad:
        assert ILLEGAL in str(future.exception(30))
    assert actor.add().result() == 2
    assert not decisions(x)


@pytest.mark.slow
def test_what_is_bound_to_a_worker_that_is_out_for_good_is_told_of(four):
    """It waits, as in plain Dask, and the warning says for what; the next worker of that name takes it."""
    x = four
    address = x.addresses()[0]
    x.handle.quarantine(address, "for good")
    x.until(lambda: len(phases(x)) == 3, what="it is gone")
    bound = x.client.submit(int, 7, workers=[address])
    x.until(lambda: stranded(x), what="it is told")
    (event,) = stranded(x)
    assert event["reason"].startswith(f"1 tasks may run only on worker {address}, whose process was ended: they wait")
    assert not bound.done()
    bound.cancel()
    x.n = 3
