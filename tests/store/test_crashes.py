"""A power cut at any moment leaves every promised partition, and no other that is not whole.

Every system call of a save is recorded; for each prefix of the record, every kind of disk that a power cut may leave is
made in a directory, opened by a new store, read, and saved to again.
"""

from __future__ import annotations

import logging
import shutil

import pytest

from dask_resilient.testing.crashes import crashes
from tests.support.store_scenarios import SCENARIOS, Death, interleaved

logger = logging.getLogger(__name__)


def convict(judge, states):
    """Give how many states there were; fail with the first that broke a promise."""
    count = 0
    for count, crash in enumerate(states, 1):  # noqa: B007 - counts them
        faults = judge.faults(crash)
        assert not faults, f"after {crash.steps} steps, {crash.kind}: {faults}"
    logger.info("%d states", count)
    return count


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_power_cut_at_any_step(live, scenario):
    """What was promised is there and right, what was not is absent or right, and saving again works."""
    life, judge = live(scenario)
    count = convict(judge, crashes(life.recorder.log, subsets=3))
    assert count > len(life.recorder.log)


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_power_cut_at_any_step_in_many_ways(live, scenario):
    """The same, with many random subsets of what was not synced."""
    life, judge = live(scenario)
    convict(judge, crashes(life.recorder.log, subsets=60, seed=1))


def dead_writers(live, ats, *, asks, subsets):
    """Judge all power cuts after a writer died at each of some steps."""
    for at in ats:
        death = Death(at, asks=asks)
        life, judge = live(death)
        if not death.killed:
            return at
        convict(judge, crashes(life.recorder.log, subsets=subsets, start=at))
        shutil.rmtree(life.base)
    pytest.fail("the writer never got through")


@pytest.mark.parametrize("asks", [True, False])
def test_power_cut_after_a_dead_writer(live, asks):
    """What a killed writer left unsynced is never built upon: the next writer waits for it, or makes its own."""
    assert dead_writers(live, range(3 * asks, 200, 13), asks=asks, subsets=0) > 60


@pytest.mark.slow
@pytest.mark.parametrize("asks", [True, False])
@pytest.mark.parametrize("begin", range(5))
def test_power_cut_after_a_writer_died_anywhere(live, begin, asks):
    """The same for every step at which a writer can die."""
    assert dead_writers(live, range(begin, 200, 5), asks=asks, subsets=2) > 70


@pytest.mark.parametrize("seed", range(3))
def test_power_cut_while_writers_race(live, seed):
    """However the calls of two writers mix, no promise is broken by a power cut."""
    life, judge = live(interleaved(seed, 2))
    convict(judge, crashes(life.recorder.log, subsets=0))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 130))
def test_power_cut_while_many_writers_race(live, seed):
    """The same with more of them, and more orders."""
    life, judge = live(interleaved(seed, 2 + seed % 3))
    convict(judge, crashes(life.recorder.log, subsets=1))
