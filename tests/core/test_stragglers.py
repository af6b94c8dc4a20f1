"""Slow devices, tasks that do not end, workers that do not answer: as readings."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_resilient.core.health import Health, judge
from dask_resilient.core.limits import Limits
from dask_resilient.core.readings import Baseline, Name, Reading
from dask_resilient.core.stragglers import (
    HANG_SECONDS,
    LEAST_SECONDS,
    LEAST_TASKS,
    Pulse,
    Running,
    hang,
    not_answering,
    slow_downs,
    stale_metrics,
)

NOW = 1_000.0


# -- slow devices ----------------------------------------------------------------------------------------------------


def same(seconds: float, tasks: int = LEAST_TASKS) -> list[float]:
    return [seconds] * tasks


def test_a_device_three_times_slower_than_the_others_shows_it() -> None:
    """And the others do not, though one of them all is slow."""
    found = slow_downs({"A": {"f": same(3)}, "B": {"f": same(1)}, "C": {"f": same(1)}})
    assert {device: slow.ratio for device, slow in found.items()} == {"A": 3.0, "B": 0.5, "C": 0.5}
    assert (found["A"].prefixes, found["A"].tasks) == (("f",), LEAST_TASKS)


def test_with_many_devices_one_slow_one_changes_nothing_for_the_rest() -> None:
    """Medians: it is not half of them."""
    seconds = {name: {"f": same(1.0)} for name in "ABCDEFG"}
    found = slow_downs({**seconds, "H": {"f": same(50)}})
    assert {slow.ratio for device, slow in found.items() if device != "H"} == {1.0}


def test_some_long_tasks_do_not_make_a_device_slow() -> None:
    """Fewer than half of them."""
    found = slow_downs({"A": {"f": [1, 1, 1, 100, 100]}, "B": {"f": same(1)}})
    assert found["A"].ratio == 1.0


def test_a_device_with_other_work_is_not_slow() -> None:
    """Only the same prefixes are compared."""
    found = slow_downs({"A": {"long": same(100), "f": same(1)}, "B": {"short": same(0.1), "f": same(1)}})
    assert (found["A"].ratio, found["A"].prefixes) == (1.0, ("f",))
    assert slow_downs({"A": {"long": same(100)}, "B": {"short": same(0.1)}}) == {}


@pytest.mark.parametrize(("tasks", "compared"), [(LEAST_TASKS - 1, False), (LEAST_TASKS, True)])
def test_a_few_tasks_prove_nothing(tasks: int, compared: bool) -> None:
    """On either side."""
    assert bool(slow_downs({"A": {"f": same(9, tasks)}, "B": {"f": same(1)}})) is compared
    assert bool(slow_downs({"A": {"f": same(9)}, "B": {"f": same(1, tasks)}})) is compared


@pytest.mark.parametrize(("seconds", "compared"), [(LEAST_SECONDS * 0.99, False), (LEAST_SECONDS, True)])
def test_tiny_tasks_show_dask_and_not_the_device(seconds: float, compared: bool) -> None:
    """What is measured there is overhead."""
    assert ("A" in slow_downs({"A": {"f": same(1)}, "B": {"f": same(seconds)}})) is compared


def test_devices_of_other_models_are_not_compared() -> None:
    """An older one is slower and well."""
    seconds = {"A": {"f": same(3)}, "B": {"f": same(1)}, "C": {"f": same(3)}}
    found = slow_downs(seconds, {"A": "A100", "B": "H100", "C": "A100"})
    assert {device: slow.ratio for device, slow in found.items()} == {"A": 1.0, "C": 1.0}


def test_prefixes_weigh_by_their_tasks_and_of_two_equals_the_milder_counts() -> None:
    """One odd prefix does not condemn a device."""
    others = {"f": same(1, 10), "g": same(1, 5)}
    assert slow_downs({"A": {"f": same(1, 10), "g": same(9, 5)}, "B": others})["A"].ratio == 1.0
    assert slow_downs({"A": {"f": same(1, 5), "g": same(9, 10)}, "B": others})["A"].ratio == 9.0
    assert slow_downs({"A": {"f": same(1, 5), "g": same(9, 5)}, "B": others})["A"].ratio == 1.0


def test_a_slow_device_is_degraded_with_the_ratio() -> None:
    """As a reading it goes to the rules."""
    slow = slow_downs({"A": {"f": same(3)}, "B": {"f": same(1)}})["A"].reading(NOW)
    assert (slow.name, slow.value, slow.text) == (Name.SLOW_DOWN, 3.0, "3.00 times the others' median on f (5 tasks)")
    found = judge([slow], Baseline("A"), Limits(), NOW)
    assert (found.health, found.rule, "3 times" in found.evidence[0]) == (Health.DEGRADED, "work.slow-down", True)


DURATIONS = st.dictionaries(
    st.sampled_from("ABCD"),
    st.dictionaries(
        st.sampled_from("fgh"), st.lists(st.floats(0.02, 1e4), min_size=LEAST_TASKS, max_size=8), max_size=3
    ),
    max_size=4,
)


@given(DURATIONS, st.floats(1.0, 100.0))
def test_a_device_that_gets_slower_gets_no_smaller_ratio(
    seconds: dict[str, dict[str, list[float]]], factor: float
) -> None:
    """By the factor itself, since the others stay; and those who were not compared still are not."""
    before = slow_downs(seconds)
    slower = {**seconds, "A": {p: [s * factor for s in own] for p, own in seconds.get("A", {}).items()}}
    after = slow_downs(slower)
    assert set(after) == set(before)
    if "A" in before:
        assert after["A"].ratio == pytest.approx(before["A"].ratio * factor, rel=1e-6)


# -- tasks that do not end -------------------------------------------------------------------------------------------

STUCK = Running("A", "k", 100.0, 5.0, progress=False)


def test_a_task_far_beyond_its_usual_time_on_an_idle_device_is_a_reading() -> None:
    """With how many times it is."""
    found = hang(STUCK, 20.0, NOW)
    assert found is not None
    assert (found.device, found.name, found.value) == ("A", Name.HANG, 20.0)
    assert "task k has run for 100.0 s, others 5 s" in found.text
    assert judge([found], Baseline("A"), Limits(), NOW).rule == "work.hang"
    short = hang(replace(STUCK, usual=0.5), 20.0, NOW)
    assert short is not None
    assert short.value == 200.0


@pytest.mark.parametrize(
    "task",
    [
        replace(STUCK, elapsed=99.9),
        replace(STUCK, progress=True),
        replace(STUCK, usual=None),
        Running("A", "k", HANG_SECONDS - 0.01, 0.001, progress=False),
        Running("A", "k", HANG_SECONDS - 0.01, 0.0, progress=False),
    ],
    ids=["not long enough", "it works", "nothing is usual", "short", "nothing"],
)
def test_other_tasks_do_not_hang(task: Running) -> None:
    """Just below the limit, at work, without a measure, or within two seconds."""
    assert hang(task, 20.0, NOW) is None


def test_hangs_are_looked_for_only_if_the_user_asks() -> None:
    """A long task is not wrong."""
    assert hang(STUCK, None, NOW) is None


def test_whether_a_device_works_may_be_unknown() -> None:
    """Then so is the hang, and the device with it."""
    found = hang(replace(STUCK, progress=None), 20.0, NOW)
    assert found is not None
    assert (found.value, "cannot be seen" in found.text) == (None, True)
    assert judge([found], Baseline("A"), Limits(), NOW).health is Health.UNKNOWN


def test_a_task_whose_like_takes_no_time_at_all_can_hang() -> None:
    """Nothing is divided by zero."""
    found = hang(Running("A", "k", HANG_SECONDS, 0.0, progress=False), 20.0, NOW)
    assert found is not None
    assert found.value == HANG_SECONDS


# -- workers ---------------------------------------------------------------------------------------------------------

WELL = Pulse("A", last_seen=NOW - 0.4, same_since=NOW - 0.4, beats=1, executing=1)
STILL = Pulse("A", last_seen=NOW - 0.4, same_since=NOW - 5.4, beats=11, executing=1)
QUIET = Pulse("A", last_seen=NOW - 30.0, same_since=NOW - 30.0, beats=1, executing=1)


def test_a_worker_that_reports_is_well() -> None:
    """Neither reading is given."""
    assert stale_metrics(WELL, NOW) is None
    assert not_answering(WELL, NOW) is None


def test_metrics_that_stand_still_while_heartbeats_come_are_a_reading() -> None:
    """As on a device that is lost."""
    found = stale_metrics(STILL, NOW)
    assert found is not None
    assert (found.name, found.value) == (Name.STALE_METRICS, pytest.approx(5.0))
    assert not_answering(STILL, NOW) is None


@pytest.mark.parametrize(
    "pulse",
    [
        replace(STILL, same_since=NOW - 5.39),
        replace(STILL, beats=2),
        replace(STILL, last_seen=NOW - 5.0, same_since=NOW - 50.0),
    ],
    ids=["not long enough", "two heartbeats", "no heartbeat"],
)
def test_metrics_late_by_a_moment_are_none(pulse: Pulse) -> None:
    """After a task that held the lock a heartbeat may come first."""
    assert stale_metrics(pulse, NOW) is None


def test_a_worker_whose_task_holds_the_lock_is_busy_and_not_ill() -> None:
    """It is shown, and the verdict stays what other readings make it."""
    found = not_answering(QUIET, NOW)
    assert found is not None
    assert (found.name, found.value, found.text) == (Name.NOT_ANSWERING, 30.0, "busy, not answering for 30.0 s")
    well = Reading("nvml", "A", Name.RECOVERY_ACTION, 0, NOW)
    assert judge([found, well], Baseline("A"), Limits(), NOW).health is Health.HEALTHY
    assert stale_metrics(QUIET, NOW) is None


def test_a_silent_worker_without_a_task_is_unknown() -> None:
    """It may be gone."""
    found = not_answering(replace(QUIET, executing=0), NOW)
    assert found is not None
    assert (found.value, "no task runs there" in found.text) == (None, True)


@pytest.mark.parametrize(
    ("interval", "silent", "answers"), [(0.5, 4.9, True), (0.5, 5.0, False), (6.0, 17.9, True), (6.0, 18.0, False)]
)
def test_patience_grows_with_the_interval_of_heartbeats(interval: float, silent: float, answers: bool) -> None:
    """A thousand workers send theirs every six seconds."""
    pulse = replace(QUIET, last_seen=NOW - silent, interval=interval)
    assert (not_answering(pulse, NOW) is None) is answers
