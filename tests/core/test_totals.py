"""What a run has gained and lost: every second counts once."""

from __future__ import annotations

import pytest

from dask_resilient.core.totals import SAMPLES, Totals, seconds_without


class Graph:
    """A lineage: keys with their seconds and parents, and what is in memory."""

    def __init__(self, seconds, parents, memory=()):
        self._seconds, self._parents, self._memory = seconds, parents, set(memory)

    def parents(self, key):
        return self._parents.get(key, ())

    def seconds(self, key):
        return self._seconds.get(key)

    def available(self, key):
        return key in self._memory


DIAMOND = Graph(
    {"load": 10, "left": 1, "right": 2, "top": 4}, {"top": ["left", "right"], "left": ["load"], "right": ["load"]}
)


def test_the_cost_of_a_key_is_that_of_all_that_would_have_run():
    """Each ancestor once, whichever way leads there."""
    assert seconds_without("top", DIAMOND, set()) == 17


def test_several_keys_of_an_incident_share_their_ancestors():
    """What the first needs has run already when the second asks for it."""
    counted: set[str] = set()
    assert [seconds_without(key, DIAMOND, counted) for key in ("left", "right", "top")] == [11, 2, 4]


def test_what_is_in_memory_would_not_have_run():
    graph = Graph({"load": 10, "left": 1}, {"left": ["load"]}, memory=["load"])
    assert seconds_without("left", graph, set()) == 1


def test_unknown_seconds_count_nothing():
    """The estimate is rather too low."""
    assert seconds_without("left", Graph({"left": None}, {"left": ["load"]}), set()) == 0


def test_a_huge_lineage_is_looked_at_in_part():
    chain = Graph(dict.fromkeys(range(10_000), 1), {i: [i + 1] for i in range(10_000)})
    assert seconds_without(0, chain, set(), visits=100) == 100


def test_the_rate_is_that_of_the_last_minute():
    totals = Totals(since=0.0)
    for now in range(100, 200):
        totals.wrote(6_000, 1.0, now)
    assert totals.rate(200) == pytest.approx(6_000, rel=0.05)
    assert totals.rate(300) == 0
    assert totals.written_nbytes == 600_000
    assert len(totals._recent) <= 62


def test_a_run_that_is_young_is_not_taken_for_a_slow_one():
    """Its minute has not passed yet."""
    totals = Totals(since=0.0)
    totals.wrote(10_000, 1.0, 2.0)
    assert totals.rate(2.0) == 5_000


def test_only_large_writes_tell_how_fast_the_store_is():
    totals = Totals(since=0.0)
    totals.wrote(100, 1e-9, 1.0)
    assert totals.fastest == 0
    totals.wrote(2_000_000, 0.5, 2.0)
    assert totals.fastest == 4_000_000


def test_goodput_is_the_share_of_work_that_was_needed():
    totals = Totals(since=0.0, recompute_seconds=15.0, reload_seconds=5.0)
    assert Totals(since=0.0).goodput(0.0) is None
    assert totals.goodput(100.0) == 0.8
    row = totals.to_dict(1.0, 100.0)
    assert (row["useful_seconds"], row["lost_seconds"]) == (80.0, 20.0)


def test_the_history_is_bounded():
    totals = Totals(since=0.0)
    for now in range(2 * SAMPLES):
        totals.sample(float(now), 1.0)
    assert len(totals.history) == SAMPLES
