"""The book of incidents on a cluster: what was lost, reloaded and recomputed, exactly."""

from __future__ import annotations

from typing import Any

import pytest

from dask_resilient.core.incidents import KEYS_SHOWN
from tests.support.cluster import Cluster, cluster_test
from tests.support.waiting import until

CHAINS = 20
T01 = {
    f"{step}-{i}": ([] if step == "a" else [f"{'a' if step == 'b' else 'b'}-{i}"])
    for i in range(CHAINS)
    for step in "abc"
}
"""Twenty chains of three steps."""
ENDS = [f"c-{i}" for i in range(CHAINS)]


def whole(x: Cluster) -> list[dict[str, Any]]:
    """Give the rows once every incident is closed."""
    assert not x.watch.book.counting
    return [incident.to_dict() for incident in x.watch.book.incidents]


@pytest.mark.parametrize("saved", [CHAINS, 0, CHAINS // 2], ids=["all saved", "none saved", "half saved"])
@cluster_test()
async def test_only_the_lost_only_once(x: Cluster, saved: int) -> None:
    """T01: the ends of chains are kept, one of two workers is lost."""
    marked = ENDS[:saved]
    x.mark(*marked)
    futures = x.persist(T01, *ENDS)
    await x.done(*futures)
    await x.durable(*marked)
    worker = x.workers[0].address
    lost = {ts.key for ts in x.scheduler.workers[worker].has_what}
    nbytes = sum(x.task(key).nbytes for key in lost)
    assert lost
    await x.lose(worker)
    await x.right(T01, *futures)
    (row,) = whole(x)
    again = len(lost - set(marked))
    assert (row["lost"], row["reloaded"], row["recomputed"]) == (len(lost), len(lost & set(marked)), 3 * again)
    assert (row["kind"], row["worker"], row["nbytes"]) == ("loss", worker, nbytes)
    assert row["device"].startswith("host:")
    assert set(row["keys"]) == lost
    assert 0 < row["seconds"] < 20
    assert sum(n - 1 for n in x.world.counts().values()) == 3 * again
    assert {key for key, _ in x.world.loads} == lost & set(marked)
    assert [event["lost"] for event in x.events("loss")] == [event["lost"] for event in x.events("whole-again")]


@cluster_test()
async def test_released_ancestors_count_where_they_run_again(x: Cluster) -> None:
    """The middle is saved: of a lost end only the end itself runs again."""
    middle = [key.replace("c", "b") for key in ENDS]
    x.mark(*middle)
    futures = x.persist(T01, *ENDS)
    await x.done(*futures)
    await x.durable(*middle)
    worker = x.workers[0].address
    lost = {ts.key for ts in x.scheduler.workers[worker].has_what}
    await x.lose(worker)
    await x.right(T01, *futures)
    (row,) = whole(x)
    assert (row["lost"], row["reloaded"], row["recomputed"]) == (len(lost), len(lost), len(lost))
    assert sum(n - 1 for n in x.world.counts().values()) == len(lost)


@cluster_test()
async def test_interrupted_tasks_are_not_recomputed(x: Cluster) -> None:
    """K was running on the worker, with D as its input there: D is lost, K is only started anew."""
    spec = {"D": [], "K": ["D"]}
    x.world.hold("K")
    (k,) = x.persist(spec, "K")
    await x.runs("K")
    await x.lose(x.runner("K"))
    x.world.free()
    await x.right(spec, k)
    (row,) = whole(x)
    assert (row["lost"], row["reloaded"], row["recomputed"]) == (1, 0, 1)
    assert x.world.counts() == {"D": 2, "K": 2}


@cluster_test(workers=3)
async def test_two_losses_at_once(x: Cluster) -> None:
    """One row each; what is run again counts in one of them only."""
    futures = x.persist(T01, *ENDS)
    await x.done(*futures)
    lost = [len(x.scheduler.workers[w.address].has_what) for w in x.workers[:2]]
    x.world.runs.clear()
    for worker in x.workers[:2]:
        await x.lose(worker.address)
    await x.right(T01, *futures)
    rows = whole(x)
    assert [row["lost"] for row in rows] == lost
    assert sum(row["recomputed"] for row in rows) == len(x.world.runs) == 3 * sum(lost)


@cluster_test(workers=3)
async def test_a_loss_while_another_is_worked_off(x: Cluster) -> None:
    """What was recomputed for the first loss and is lost again counts for the second, once."""
    spec = {"A": [], "K": ["A"]}
    (k,) = x.persist(spec, "K")
    await x.done(k)
    x.world.runs.clear()
    x.world.hold("K")
    await x.lose(x.holder("K"))
    await x.runs("K")
    await x.lose(x.runner("K"))
    x.world.free()
    await x.right(spec, k)
    rows = whole(x)
    assert [(row["lost"], row["recomputed"]) for row in rows] == [(1, 2), (1, 1)]
    assert x.world.counts() == {"A": 2, "K": 2}


@cluster_test()
async def test_a_bad_copy_counts_as_recomputed(x: Cluster) -> None:
    """A load that did not bring the value reloaded nothing."""
    spec = {"D": [], "K": ["D"]}
    x.mark("K")
    (k,) = x.persist(spec, "K")
    await x.done(k)
    await x.durable("K")
    x.chunk("K").unlink()
    await x.lose(x.holder("K"))
    await x.right(spec, k)
    (row,) = whole(x)
    assert (row["lost"], row["reloaded"], row["recomputed"]) == (1, 0, 2)


@cluster_test()
async def test_nobody_wants_it_any_more(x: Cluster) -> None:
    """A future that is released while its value comes back closes the incident."""
    (k,) = x.persist({"K": []}, "K")
    await x.done(k)
    x.world.hold("K")
    await x.lose(x.holder("K"))
    await x.runs("K", 2)
    assert x.watch.book.counting
    k.release()
    await until(lambda: not x.watch.book.counting)
    x.world.free()
    (row,) = whole(x)
    assert (row["lost"], row["reloaded"], row["recomputed"]) == (1, 0, 0)


@cluster_test()
async def test_scattered_data_is_named_as_lost_for_good(x: Cluster) -> None:
    """It counts as lost, and nothing waits for it."""
    a, _ = x.workers
    data = await x.client.scatter({"sc": 5}, workers=[a.address])
    await x.lose(a.address)
    (row,) = whole(x)
    assert (row["lost"], row["reloaded"], row["recomputed"]) == (1, 0, 0)
    assert "scattered" in row["cause"]
    del data


@cluster_test()
async def test_a_planned_removal_without_a_loss_is_no_incident(x: Cluster) -> None:
    """Retiring moves the data first."""
    (k,) = x.persist({"K": []}, "K")
    await x.done(k)
    await x.client.retire_workers([x.holder("K")])
    await x.right({"K": []}, k)
    assert not whole(x)
    assert x.world.ran("K") == 1


@cluster_test(workers=1)
async def test_rows_are_bounded(x: Cluster) -> None:
    """A row names the first thousand keys, an event twenty."""
    keys = [f"k-{i}" for i in range(KEYS_SHOWN + 20)]
    values = dict.fromkeys(keys, 1)
    data = await x.client.scatter(values)
    await x.lose(x.workers[0].address)
    (row,) = whole(x)
    assert row["lost"] == len(keys)
    assert len(row["keys"]) == KEYS_SHOWN
    assert len(x.events("loss")[0]["keys"]) == 20
    del data
