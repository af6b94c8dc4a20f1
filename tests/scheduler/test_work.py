"""What the work tells: who is silent, whose metrics stand still, what does not end, who is slower than the others."""

from __future__ import annotations

import pytest

from dask_resilient.core.readings import Name
from tests.support.scheduler import WELL, Row


def tick(x, seconds, *alive, metrics=True):
    """Let seconds pass, in which workers send heartbeats; with `metrics`, those are new."""
    for _ in range(seconds):
        x.now += 1
        for worker in alive:
            ws = x.scheduler.workers[worker]
            ws.last_seen = x.now
            if metrics:
                ws.metrics["time"] = x.now
            x.say(worker, readings=WELL)
        x.work.tick(x.now)
        x.verdicts.tick(x.now)


@pytest.fixture
def x(stage):
    x = stage(probe_hang=20)
    tick(x, 3, "a", "b")
    return x


def evidence(x, worker):
    return "; ".join(x.row(worker)["evidence"])


def test_a_worker_whose_task_holds_the_lock_is_busy(x):
    """It is not sick, however long it takes; first it is healthy, then unknown, and the words are the same."""
    x.scheduler.workers["a"].processing = {"task": 1.0}
    tick(x, 10, "b")
    assert x.row("a")["health"] == "healthy"
    assert "busy, not answering for 1" in evidence(x, "a")
    tick(x, 90, "b")
    assert x.row("a")["health"] == "unknown"
    assert "busy, not answering for 100.0 s" in evidence(x, "a")
    tick(x, 1, "a", "b")
    assert x.row("a")["health"] == "healthy"
    assert evidence(x, "a") == ""


def test_a_worker_that_is_silent_without_a_task_is_unknown(x):
    """Nobody knows why."""
    tick(x, 70, "b")
    assert x.health("a") == ("unknown", "nothing-known")
    assert "no task runs there" in evidence(x, "a")


def test_metrics_that_stand_still_put_a_device_in_doubt(x):
    """Heartbeats come, and their numbers are old: as plain Dask on a lost GPU."""
    tick(x, 10, "a", "b", metrics=False)
    assert x.health("a") == ("unknown", "work.stale-metrics")
    tick(x, 2, "a", "b")
    assert x.row("a")["health"] == "healthy"


def test_a_worker_without_a_time_in_its_metrics_is_not_stale(x):
    """Another version of Dask may leave it out."""
    del x.scheduler.workers["a"].metrics["time"]
    tick(x, 10, "a", "b", metrics=False)
    assert x.row("a")["health"] == "healthy"


def long(x, worker, seconds, utilization):
    ws = x.scheduler.workers[worker]
    ws.metrics["gpu_utilization"] = utilization
    ws.executing = {Row(key="slow", prefix=Row(name="p")): seconds}
    x.verdicts.records["b"].pace["p"] = [1.0, 1.0, 1.2]


@pytest.mark.parametrize(("utilization", "health"), [(0, "degraded"), (50, "healthy"), (None, "healthy")])
def test_a_task_that_does_not_end_is_told_of_if_the_device_does_nothing(x, utilization, health):
    """Beyond the multiple of the median that the user asked for; a device that works is only slow."""
    long(x, "a", 19, utilization)
    tick(x, 1, "a", "b")
    assert x.row("a")["health"] == "healthy"
    long(x, "a", 21, utilization)
    tick(x, 1, "a", "b")
    assert x.row("a")["health"] == health
    x.scheduler.workers["a"].executing = {}
    tick(x, 1, "a", "b")
    assert x.row("a")["health"] == "healthy"


def test_without_the_setting_no_task_is_too_long(stage):
    """Nobody asked."""
    x = stage()
    tick(x, 3, "a", "b")
    long(x, "a", 1e6, 0)
    tick(x, 3, "a", "b")
    assert x.row("a")["health"] == "healthy"


def test_a_device_that_is_slower_than_the_others_is_degraded(x):
    """By the medians of what they did of the same kind, with the ratio; and no more once it keeps up."""
    x.verdicts.records["a"].pace["p"] = [3.0] * 9
    x.verdicts.records["b"].pace["p"] = [1.0] * 9
    tick(x, 31, "a", "b")
    assert x.health("a") == ("degraded", "work.slow-down")
    assert "3 times slower" in evidence(x, "a")
    assert x.row("b")["health"] == "healthy"
    x.verdicts.records["a"].pace["p"] = [1.0] * 9
    tick(x, 31, "a", "b")
    assert x.row("a")["health"] == "healthy"


def test_a_worker_that_left_is_forgotten(x):
    """Its heartbeats too."""
    x.leave("a")
    tick(x, 1, "b")
    assert set(x.work._beats) == {"b"}
    assert Name.SLOW_DOWN not in x.verdicts.records["b"].seen
