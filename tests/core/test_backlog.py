"""How long a task waits for the writer, and when saving gives up."""

from __future__ import annotations

import errno

import pytest

from dask_resilient.core.backlog import FAILURES, allowed_wait, fits, hopeless


@pytest.mark.parametrize(
    ("nbytes", "staged", "expected"),
    [(10, 0, True), (1_000, 0, True), (50, 50, True), (51, 50, False), (1_000, 1, False)],
)
def test_one_partition_alone_may_pass_the_limit(nbytes: int, staged: int, expected: bool) -> None:
    """Else it could never be saved; with others it has to fit."""
    assert fits(nbytes, staged, limit=100) is expected


@pytest.mark.parametrize(
    ("elapsed", "waited", "expected"),
    [
        (0, 0, 0.0),
        (100, 0, 10.0),
        (100, 8, 2.0),
        (100, 11, 0.0),
        (1e6, 0, 30.0),
    ],
    ids=["nothing at the start", "a share of the run", "less what was waited", "never negative", "at most the limit"],
)
def test_all_waits_together_take_a_bounded_share_of_the_run(elapsed: float, waited: float, expected: float) -> None:
    """5 % of the thread-seconds so far, at most 30 s a task."""
    assert allowed_wait(30, 0.05, elapsed, threads=2, waited=waited) == pytest.approx(expected)


def test_saving_gives_up_at_once_where_waiting_cannot_help_and_else_after_three() -> None:
    """A full disk is hopeless; one lost connection is not."""
    assert hopeless(1, errno.ENOSPC)
    assert not hopeless(FAILURES - 1, errno.EIO)
    assert hopeless(FAILURES, None)
