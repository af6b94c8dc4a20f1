"""How often a loop is saved, which snapshots go, and which arguments can work."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_resilient.core.loops import LoopPlan, due, interval, prior_mttf, superseded
from dask_resilient.errors import SettingError

HOUR, MINUTE = 3600.0, 60.0


@pytest.mark.parametrize(("mttf", "minutes"), [(24 * HOUR, 116.7), (6 * HOUR, 56.7), (15 * MINUTE, 9.14)])
def test_the_interval_is_that_of_dalys_paper(mttf, minutes):
    assert interval(5 * MINUTE, mttf) / MINUTE == pytest.approx(minutes, abs=0.05)


def test_a_snapshot_that_costs_more_than_two_failures_are_apart():
    """The interval is the mean time between failures: the formula has no minimum there."""
    assert interval(20.0, 10.0) == interval(1e9, 10.0) == 10.0


@given(st.floats(1e-6, 1e5), st.floats(1e-3, 1e9))
def test_no_interval_is_negative(cost, mttf):
    assert 0 < interval(cost, mttf) <= math.sqrt(2 * cost * mttf) * 1.5 + mttf


def test_more_devices_fail_more_often():
    assert prior_mttf(1) == prior_mttf(0) == 50_000 * HOUR
    assert prior_mttf(8) == prior_mttf(1) / 8


def taken(plan, seconds, cost, mttf=1e9):
    """Give the steps after which a snapshot is taken, of a loop with steps of so many seconds."""
    since, known, found = 0.0, None, []
    for step in range(plan.steps):
        since += seconds
        if due(plan, step, since, known, mttf):
            found.append(step)
            since, known = 0.0, cost
    return found


def test_each_nth_step_and_the_last():
    assert taken(LoopPlan(12, every=5), 1.0, 1.0) == [4, 9, 11]


def test_auto_takes_the_first_then_waits_for_the_interval():
    plan = LoopPlan(30, mttf=50.0)
    assert interval(1.0, 50.0) == pytest.approx(9.36, abs=0.05)
    assert taken(plan, 1.0, 1.0) == [0, 10, 20, 29]


def test_auto_without_an_mttf_takes_the_given_one():
    assert taken(LoopPlan(30), 1.0, 1.0, mttf=50.0) == [0, 10, 20, 29]
    assert taken(LoopPlan(30), 1.0, 1.0) == [0, 29]


@pytest.mark.parametrize(
    ("steps", "last", "nth", "gone"),
    [
        ([], 2, None, []),
        ([4], 2, None, []),
        ([4, 9, 14], 2, None, [4]),
        ([14, 4, 9], 1, None, [4, 9]),
        ([4, 9, 14, 19, 24], 1, 10, [4, 14]),
        ([0, 7, 13, 29, 31, 33], 1, 10, [0, 7, 31]),
    ],
)
def test_what_goes(steps, last, nth, gone):
    """All but the last ones and, of each n steps, the first."""
    assert superseded(steps, last, nth) == gone


@given(st.sets(st.integers(0, 200)), st.integers(1, 4), st.none() | st.integers(1, 50))
def test_the_newest_stays_and_what_stays_stays_again(steps, last, nth):
    gone = set(superseded(steps, last, nth))
    assert gone <= steps
    assert not steps or max(steps) not in gone
    assert superseded(steps - gone, last, nth) == []


@given(st.lists(st.integers(0, 200), unique=True).map(sorted), st.integers(1, 4), st.integers(1, 50))
def test_going_as_they_come_leaves_what_going_at_the_end_leaves(steps, last, nth):
    """Deleting after each snapshot keeps the same milestones as deleting once."""
    left: set[int] = set()
    for step in steps:
        left.add(step)
        left -= set(superseded(left, last, nth))
    assert left == set(steps) - set(superseded(steps, last, nth))


WRONG = {
    "steps": [0, -1, 1.5, True, "50", None],
    "every": [0, "often", 2.0, False],
    "mttf": [0, -1, "24 lightyears", math.inf, math.nan, True],
    "last": [0, None, 1.0],
    "nth": [0, "all"],
    "version": [1.5, b"2", True],
}


@pytest.mark.parametrize(
    ("name", "value"), list(itertools.chain.from_iterable(((n, v) for v in vs) for n, vs in WRONG.items()))
)
def test_an_argument_that_cannot_work_is_named(name, value):
    with pytest.raises(SettingError, match=f"^{name}="):
        LoopPlan(**{"steps": 50, name: value})


def test_numbers_of_numpy_are_numbers():
    import numpy as np

    plan = LoopPlan(np.int64(50), every=np.int32(5))
    assert (type(plan.steps), plan.every) == (int, 5)
