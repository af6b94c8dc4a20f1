"""Processes that are tried before they have to go, and what is told of tasks that are to blame."""

from __future__ import annotations

import pytest

from dask_resilient.core.actions import Cause, Culprit, Joined, Judged, Left, Tick, Tried
from dask_resilient.core.faults import Class
from tests.support.device_life import TIMES, A, Life, clear, evict, kill, sign


@pytest.mark.parametrize("fact", [False, True], ids=["a text", "a fact"])
def test_a_process_that_is_being_tried_is_left_alone(fact):
    """Whoever looks in between, or fails there too, changes nothing before the canary has answered."""
    life = Life()
    verdict = kill(check=True, fact=fact, culprit=fact)
    assert life.did(verdict)[-1] == "run the canary on w1"
    assert life(Tick(), 1) == life(verdict, 1) == life(Tick(), 1) == []
    assert life.did(Tried("w1", "right")) == ["admit w1", "admit w2"]


def test_a_process_that_cannot_be_tried_is_lost_for_a_fact_only():
    """One that is only busy is not lost for a text."""
    life = Life()
    life(kill(check=True, fact=False))
    assert life.did(Tried("w1", "unknown", "no answer in 60 s")) == ["admit w1", "admit w2"]
    life = Life()
    life(kill(check=True, fact=True, culprit=True))
    assert life.did(Tried("w1", "unknown", "no CuPy")) == ["restart w1"]


def test_where_no_process_would_take_its_place_a_worker_is_left_in_good_order():
    """What it holds is moved first."""
    life = Life()
    life(kill(check=True, fact=False))
    life(Tried("w1", "right"))
    life(clear())
    second = Judged("w1", Class.KILL, Cause("cuda.700", ("seen",)), check=True, nanny=False)
    assert life.did(second) == ["avoid w1", "avoid w2", "drain w1", "drain w2"]


def test_what_had_to_wait_is_tried_when_its_time_comes():
    """By then nobody knows whether a process that only a text spoke against is still broken."""
    life = Life(others="b")
    for worker in ("w1", "b1"):
        life(kill(worker, check=True, fact=False))
        life(Tried(worker, "right"))
        life(clear(worker))
    assert "restart w1" in life.did(kill(check=True, fact=False))
    (alarm,) = life(kill("b1", check=True, fact=False), 10)
    assert "only an alarm" in alarm.declined
    life(Left("w1"))
    life(Joined("n", "a"))
    life(Tried("n", "right"))
    assert life.did(Tick(), 300) == ["avoid b1", "run the canary on b1"]


def test_which_tasks_are_to_blame_is_told_once():
    """With the device on which it turned out; nothing is done to it."""
    life = Life()
    (told,) = life(Culprit("sum: 700", "700 on a, b: tasks 'sum' are to blame", "b"))
    assert (told.device, told.before, told.after, told.actions, told.declined) == ("b", A, A, (), "")
    assert told.cause.evidence == ("700 on a, b: tasks 'sum' are to blame",)
    assert life(Culprit("sum: 700", "700 on a, b, c", "c")) == []


def test_a_new_process_of_a_worker_without_a_gpu_is_tried_sooner():
    """It is another device in all but its name."""
    life = Life(others=())
    for name in ("host:x/0", "host:x/1", "host:x/2"):
        life(Joined(f"{name}.w", name))
    life(evict("host:x/0.w"))
    life(Left("host:x/0.w"))
    life(Joined("n", "host:x/0"))
    assert life(sign("n"), 1) == []
    assert life.did(Tick(), TIMES.host_delay) == ["run the canary on n"]
