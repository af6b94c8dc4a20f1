"""The history of a run: how workers stood, and what losses cost."""

from __future__ import annotations

from time import time
from typing import Any

import pytest

from tests.support.cluster import Cluster, cluster_test
from tests.support.waiting import until

SPEC: Any = {"load": [], "clean": ["load"], "sum": ["clean"]}


def standings(x: Cluster) -> dict[str, list[str]]:
    """Give the phases of each worker, in order."""
    found: dict[str, list[str]] = {}
    for row in x.watch.chronicle.rows(time()):
        found.setdefault("tcp://" + row["device"].rpartition("/")[2], []).append(row["phase"])
    return found


@cluster_test()
async def test_who_comes_and_who_goes(x: Cluster) -> None:
    """Each worker has a stretch from when it came; one that is lost is gone."""
    first, second = (w.address for w in x.workers)
    assert standings(x) == {first: ["active"], second: ["active"]}
    await x.lose(second)
    assert standings(x) == {first: ["active"], second: ["active", "gone"]}


@cluster_test()
async def test_samples_are_taken_without_anybody_looking(x: Cluster) -> None:
    await until(lambda: len(x.watch.chronicle.totals.history) >= 2, what="two samples")


@cluster_test()
async def test_what_a_reload_saved_is_estimated(x: Cluster) -> None:
    """By what the key and all that it is made from took when they ran; the load itself counts as lost."""
    x.mark("clean")
    futures = await x.saved(SPEC, "clean")
    totals = x.watch.chronicle.totals
    assert totals.written == 1
    assert totals.written_nbytes > 0
    prefixes = [x.scheduler.tasks[key].prefix for key in ("clean", "load")]
    cost = sum(prefix.duration_average for prefix in prefixes)
    await x.lose(x.holder("clean"))
    await x.right(SPEC, *futures)
    (incident,) = x.watch.book.incidents
    row = incident.to_dict()
    assert (row["reloaded"], row["recomputed"]) == (1, 0)
    assert row["saved_seconds"] == pytest.approx(cost, rel=0.5)
    assert row["reload_seconds"] > 0
    sums = x.watch.chronicle.sums(time())
    assert sums["saved_seconds"] == row["saved_seconds"]
    assert sums["lost_seconds"] == row["reload_seconds"]
    assert sums["reloaded"] == 1
    assert 0 <= sums["goodput"] < 1


@cluster_test()
async def test_what_ran_again_is_lost(x: Cluster) -> None:
    """Exactly the seconds that it took the second time."""
    futures = x.persist(SPEC, "clean")
    await x.done(*futures)
    before = x.watch.chronicle.compute_seconds()
    await x.lose(x.holder("clean"))
    await x.right(SPEC, *futures)
    (incident,) = x.watch.book.incidents
    assert incident.recomputed == 2
    again = x.watch.chronicle.compute_seconds() - before
    assert incident.recompute_seconds == pytest.approx(again, abs=1e-5)  # Dask rounds
    assert x.watch.chronicle.sums(time())["lost_seconds"] == incident.recompute_seconds > 0
