"""A device turns out to compute wrong: what later runs would take of this one is revoked."""

from __future__ import annotations

import asyncio
from time import time
from typing import Any

import pytest

from dask_resilient.client.report import Report
from dask_resilient.core.readings import Reading
from dask_resilient.scheduler import distrust
from tests.cluster.test_resume import (
    EACH,
    N,
    another_run,
    calls,
    compute,
    counted,  # noqa: F401 - a fixture
    durable,
    forgotten,
    milestone,
    receipts,
    said,
    shelf,
)
from tests.support.cluster import Cluster, cluster_test
from tests.support.waiting import until

WRONG = "computed wrong at"


@pytest.fixture(autouse=True)
def sharp(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nothing before a canary count as after it: these tests take less than the margin."""
    monkeypatch.setattr(distrust, "MARGIN", 0.0)


def canary(x: Cluster, result: str, worker: int = 0) -> None:
    """Have the scheduler hear of a canary."""
    x.watch.handle(x.workers[worker].address, "tried", {"result": result})


def reading(x: Cluster, result: str, worker: int = 0) -> None:
    """Have it hear of one that nobody asked for."""
    row = Reading("canary", "", "canary", result, time()).to_dict()
    message = {"sent": time(), "new": [row], "still": False, "pace": {}}
    x.watch.handle(x.workers[worker].address, "readings", message)


def tombstones(x: Cluster) -> list[str]:
    """Give the names of all tombstones."""
    return sorted(path.name for path in x.store.glob("revoked/*/*.json"))


ALL = [f"{i}.0.json" for i in range(N)]


@cluster_test()
async def test_what_was_stored_since_is_revoked(x: Cluster) -> None:
    """All of it, by whichever worker; the next run computes it again, and stores it."""
    await compute(x, milestone())
    await durable(x)
    await forgotten(x)
    canary(x, "wrong")
    await until(lambda: tombstones(x) == ALL, what="all is revoked")
    assert shelf(x).valid == {}
    assert said(x, WRONG) == 1
    assert calls() == EACH
    await another_run(x)
    await compute(x, milestone())
    assert calls() == EACH
    await durable(x)
    assert [name for name in receipts(x) if ".1." in name] == [f"{i}.1.json" for i in range(N)]


@cluster_test()
async def test_what_was_stored_before_the_last_right_canary_stays(x: Cluster) -> None:
    """The next run takes that, and computes the rest."""
    await compute(x, milestone("early"))
    await until(lambda: len(shelf(x, "early").valid) == N)
    reading(x, "right")
    await compute(x, milestone(factor=2), 2)
    await durable(x)
    m = shelf(x).milestone
    reading(x, "wrong")
    await until(lambda: len(tombstones(x)) == N, what="the second is revoked")
    assert {path.parent.name for path in x.store.glob("revoked/*/*.json")} == {m}
    calls()
    await another_run(x)
    await compute(x, milestone("early"))
    assert not calls()
    await compute(x, milestone(factor=2), 2)
    assert calls() == EACH


@cluster_test()
async def test_the_canary_of_another_device_says_nothing(x: Cluster) -> None:
    """That one was right a moment ago does not vouch for the one that is wrong."""
    await compute(x, milestone())
    await durable(x)
    canary(x, "right", worker=1)
    canary(x, "wrong")
    await until(lambda: tombstones(x) == ALL, what="all is revoked")


@cluster_test()
async def test_what_an_earlier_run_has_stored_stays(x: Cluster) -> None:
    """This run has only loaded it."""
    await compute(x, milestone())
    await durable(x)
    await another_run(x)
    calls()
    await compute(x, milestone())
    canary(x, "wrong")
    await forgotten(x)
    await compute(x, milestone())
    assert not calls()
    assert not tombstones(x)


@cluster_test()
async def test_what_is_being_written_is_revoked_as_soon_as_it_is_there(x: Cluster) -> None:
    """Its worker may have made the receipt already."""
    writes = x.hold_writes()
    kept = x.client.persist(milestone())
    await until(lambda: x.watch.ledger.saving() == N, what="all are being written")
    canary(x, "wrong")
    writes.set()
    await until(lambda: tombstones(x) == receipts(x) == ALL, what="all is revoked")
    assert shelf(x).valid == {}
    assert {entry.state for entry in x.watch.ledger.entries.values()} == {"revoked"}
    del kept


@cluster_test()
async def test_nothing_more_is_stored_for_later_runs(x: Cluster) -> None:
    """What is in memory may be wrong, and so may be what is made of it; the report says so."""
    canary(x, "wrong")
    kept = x.client.persist(milestone())
    entries = x.watch.ledger.entries
    await until(lambda: len(entries) == N and all(e.state == "not saved" for e in entries.values()), what="refused")
    assert not receipts(x)
    told = [await x.plugin._rpc(method=method) for method in ("status", "checkpoints")]
    text = str(Report(told[0], (), (), told[1]))
    assert "RESULTS MAY BE WRONG" in text
    assert f"{N} NOT saved" in text
    del kept


@cluster_test()
async def test_a_copy_that_is_read_a_second_time_meanwhile(x: Cluster) -> None:
    """The value that was computed again waits for that read; it is not stored either."""
    kept: Any = x.client.persist(milestone())
    await durable(x)
    entry = next(iter(x.watch.ledger.entries.values()))
    entry.suspect = True
    entry.held = (x.workers[0].address, "attempt", 64)
    canary(x, "wrong")
    await until(lambda: tombstones(x) == ALL, what="all is revoked")
    assert (entry.suspect, entry.held, entry.attempt, entry.place) == (False, None, None, None)
    del kept


@cluster_test()
async def test_a_key_that_is_lost_afterwards_is_computed_again(x: Cluster) -> None:
    """It is not loaded from what was revoked."""
    kept = x.client.persist(milestone())
    await durable(x)
    canary(x, "wrong")
    calls()
    lost = len(x.scheduler.workers[x.workers[1].address].has_what)
    await x.lose(x.workers[1].address)
    await asyncio.wait_for(x.client.compute(kept), 20)
    assert sum(calls().values()) == lost > 0
    assert not x.world.loads
    del kept


@cluster_test(resilience__resume="off")
async def test_a_copy_for_this_run_only_that_the_device_made(x: Cluster) -> None:
    """It is not loaded when its key is lost with the device; those of others stay."""
    kept = x.client.persist(milestone())
    entries = x.watch.ledger.entries
    await until(lambda: len(entries) == N and all(entry.usable for entry in entries.values()), what="all are durable")
    mine = [entry for entry in entries.values() if entry.worker == x.workers[0].address]
    canary(x, "wrong")
    await until(lambda: len(tombstones(x)) == len(mine) > 0, what="those of the device are revoked")
    calls()
    await x.lose(x.workers[0].address)
    await asyncio.wait_for(x.client.compute(kept), 20)
    assert sum(calls().values()) == len(mine)
    assert not x.world.loads
    others = [entry for entry in entries.values() if entry not in mine]
    assert others
    assert all(entry.usable for entry in others)
    del kept


@cluster_test()
async def test_many_tombstones_are_written_some_at_a_time(x: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever else the scheduler has for the store comes in between."""
    monkeypatch.setattr(distrust, "AT_ONCE", 1)
    await compute(x, milestone())
    await durable(x)
    seen: list[int] = []
    canary(x, "wrong")
    x.plugin._queue.submit(lambda: len(tombstones(x)), seen.append)
    await until(lambda: tombstones(x) == ALL, what="all is revoked")
    assert seen == [1]
