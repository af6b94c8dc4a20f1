"""Reload or recompute: the decision, without a cluster."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_resilient.core.outcome import Ending
from dask_resilient.core.recovery import STREAK, Costs, Reloading, recompute_seconds, should_reload

HUGE = 10**12


@dataclass
class Graph:
    """A lineage out of dicts."""

    deps: dict[Hashable, list[Hashable]]
    cost: dict[Hashable, float | None]
    here: set[Hashable] = field(default_factory=set)

    def parents(self, key: Hashable) -> Iterable[Hashable]:
        return self.deps.get(key, [])

    def seconds(self, key: Hashable) -> float | None:
        return self.cost.get(key)

    def available(self, key: Hashable) -> bool:
        return key in self.here


CHAIN = {"a": [], "b": ["a"], "c": ["b"]}


def test_a_small_copy_is_loaded_without_asking_what_recomputing_costs() -> None:
    """Below the floor the lineage is not looked at."""
    assert should_reload("c", 1_000, Graph({}, {}), Costs())


@pytest.mark.parametrize(
    ("seconds", "here", "reload"),
    [
        (0.001, set(), False),
        (None, set(), True),
        (1e9, set(), True),
        (1e9, {"b"}, True),
    ],
    ids=["cheap chain", "unknown duration", "costly chain", "costly last step"],
)
def test_a_huge_copy_is_loaded_unless_recomputing_is_clearly_cheaper(
    seconds: float | None, here: set[Hashable], reload: bool
) -> None:
    """Unknown counts as costly: nothing runs again on a guess."""
    graph = Graph(CHAIN, dict.fromkeys("abc", seconds), here)
    assert should_reload("c", HUGE, graph, Costs()) is reload


def test_what_is_in_memory_or_stored_ends_the_walk() -> None:
    """Only the lineage that would really run counts."""
    graph = Graph(CHAIN, {"a": 100.0, "b": 2.0, "c": 1.0}, {"a"})
    assert recompute_seconds("c", graph, enough=1e9) == 3.0


def test_a_shared_ancestor_counts_once() -> None:
    """A diamond's root runs once, so it costs once."""
    graph = Graph({"d": ["b", "c"], "b": ["a"], "c": ["a"]}, dict.fromkeys("abcd", 1.0))
    assert recompute_seconds("d", graph, enough=1e9) == 4.0


def test_the_walk_is_bounded() -> None:
    """A million ancestors cost a thousand visits, and count as more than enough."""
    seen = []

    class Endless(Graph):
        def parents(self, key: Hashable) -> Iterable[Hashable]:
            seen.append(key)
            return [int(str(key)) + 1]

        def seconds(self, key: Hashable) -> float | None:
            return 1e-9

    assert recompute_seconds(0, Endless({}, {}), enough=1e9) == float("inf")
    assert len(seen) == 1_000


@st.composite
def _dags(draw: st.DrawFn) -> Graph:
    n = draw(st.integers(1, 12))
    deps = {i: draw(st.lists(st.integers(0, i - 1), max_size=3)) if i else [] for i in range(n)}
    cost: dict[Hashable, float | None] = {i: draw(st.integers(0, 50)) * 1.0 for i in range(n)}
    return Graph(dict(deps), cost, draw(st.sets(st.integers(0, n - 1), max_size=n)))


@given(_dags())
def test_the_estimate_equals_a_brute_force_model(graph: Graph) -> None:
    """Without bounds it is the sum over the closure of what is not available."""
    top = max(graph.deps)
    closure, work = set(), [top]
    while work:
        key = work.pop()
        if key not in closure:
            closure.add(key)
            work += [p for p in graph.deps[key] if p not in graph.here]
    assert recompute_seconds(top, graph, enough=1e9) == sum(graph.cost[k] or 0 for k in closure)


def test_measured_loads_move_the_estimate() -> None:
    """A store that turned slow is seen within a few loads."""
    costs = Costs()
    before = costs.reload_seconds(100_000_000)
    for _ in range(6):
        costs = costs.observe(100_000_000, 100.0)
    assert costs.reload_seconds(100_000_000) > 20 * before


def test_reloading_pauses_after_three_unreachable_loads_in_a_row_and_goes_on() -> None:
    """A good load in between starts the count anew, damage is no outage, and the pause ends by itself."""
    state = Reloading(pause=60)
    for ending in (Ending.UNREACHABLE, Ending.UNREACHABLE, Ending.GOOD, Ending.UNREACHABLE, Ending.UNREACHABLE):
        state = state.after(ending, now=0)
        assert not state.paused(0)
    state = state.after(Ending.UNREACHABLE, now=10)
    assert state.paused(10)
    assert state.paused(69.9)
    assert not state.paused(70.1)
    assert STREAK == 3
    assert not Reloading(pause=60).after(Ending.DAMAGED, 0).after(Ending.DAMAGED, 0).after(Ending.DAMAGED, 0).paused(0)
