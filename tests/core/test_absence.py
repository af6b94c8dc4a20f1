"""When a worker may be away for a moment."""

from __future__ import annotations

import pytest

from dask_resilient.core.absence import MARGIN, USUAL, Absences


def seen(took: float = 1.0) -> Absences:
    """Give what is known of a worker that left at 0 and was back after some seconds."""
    absences = Absences(15.0)
    absences.left("0", 0.0)
    absences.back("0", took)
    return absences


def test_the_first_time_nothing_is_waited_for() -> None:
    """No cluster looks for it."""
    assert Absences(15.0).wait("0", 0.0) == 0.0
    assert seen().wait("1", 14.0) == 0.0


@pytest.mark.parametrize(("now", "wait"), [(2.0, 0.0), (11.9, 0.0), (12.5, 3.5), (14.9, 1.1), (16.5, 0.0), (99.0, 0.0)])
def test_a_worker_is_not_away_when_the_cluster_looks(now: float, wait: float) -> None:
    """It looks 15 s after the worker left; its process needs 1 s, and so much again for safety."""
    assert seen().wait("0", now) == pytest.approx(wait)


def test_as_long_as_no_start_was_seen_it_is_taken_to_be_slow() -> None:
    """What is imported is not known."""
    absences = Absences(15.0)
    absences.left("0", 0.0)
    assert absences.wait("0", 0.0) == pytest.approx(15.0 + MARGIN)
    assert USUAL < 15.0


def test_one_look_after_the_other_is_waited_for() -> None:
    """Where it was away twice."""
    absences = seen()
    absences.left("0", 2.0)
    absences.back("0", 3.0)
    assert absences.wait("0", 13.0) == pytest.approx(5.0)


def test_what_matters_no_more_is_forgotten() -> None:
    """Names come and go."""
    absences = Absences(15.0)
    for n in range(1_000):
        absences.left(f"w{n}", float(n))
        absences.back(f"w{n}", n + 1.0)
    assert len(absences._left) < 20
    assert len(absences._took) < 20
