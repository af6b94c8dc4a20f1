"""Milestones that other runs know: what a run takes of an earlier one, and what it must not take.

Two runs here are two installations on one cluster. User functions count their calls in a file that the environment
names: whatever else they count in would be a part of their fingerprint.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from time import monotonic, time
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest

import dask_resilient as dr
from dask_resilient.core.manifest import Place
from dask_resilient.plugin import NAME
from dask_resilient.scheduler import resume
from dask_resilient.store.archive import Archive
from dask_resilient.store.calls import Calls
from tests.support.cluster import Cluster, cluster_test
from tests.support.waiting import until

N = 4


@pytest.fixture(autouse=True)
def counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give the file in which user functions count their calls."""
    file = tmp_path / "calls"
    file.touch()
    monkeypatch.setenv("RESUMING_CALLS", str(file))
    return file


def made(factor: int = 1, block_id: Any = None) -> Any:
    """Be a user function."""
    with Path(os.environ["RESUMING_CALLS"]).open("a") as file:
        file.write(f"{block_id[0]}\n")
    return np.full(8, block_id[0] * factor)


def milestone(name: str = "clean", factor: int = 1, n: int = N, **options: Any) -> Any:
    """Mark what the function makes."""
    blocks = da.map_blocks(made, factor, chunks=((8,) * n,), dtype=int, meta=np.empty(0, int))
    return dr.checkpoint(blocks, name, **options)


def calls() -> dict[int, int]:
    """Give how often the function has begun since the last look, by partition."""
    file = Path(os.environ["RESUMING_CALLS"])
    found = Counter(map(int, file.read_text().split()))
    file.write_text("")
    return dict(found)


EACH = dict.fromkeys(range(N), 1)


async def compute(x: Cluster, collection: Any, factor: int = 1, client: Any = None) -> None:
    """Compute a milestone, check it, and let go of it."""
    value = await asyncio.wait_for((client or x.client).compute(collection), 20)
    np.testing.assert_array_equal(value, np.repeat(np.arange(collection.numblocks[0]) * factor, 8))


async def forgotten(x: Cluster) -> None:
    """Wait until no key is known."""
    await until(lambda: not x.scheduler.tasks, what="every key is forgotten")


def shelf(x: Cluster, name: str = "clean") -> Any:
    """Give what the run knows of the milestone in the store."""
    return next((each for each in x.watch.ledger.shelves() if each.name == name), None)


async def durable(x: Cluster, n: int = N) -> Any:
    """Wait until so many partitions are durable, and give the shelf."""
    await until(lambda: shelf(x) is not None and len(shelf(x).valid) == n, what="all are durable")
    return shelf(x)


async def stored(x: Cluster, **options: Any) -> str:
    """Have an earlier run store everything, begin another run, and give m."""
    await compute(x, milestone(**options))
    m = (await durable(x)).milestone
    await another_run(x)
    calls()
    return str(m)


async def another_run(x: Cluster, **options: Any) -> None:
    """End this run and begin another one."""
    await forgotten(x)
    await x.plugin.uninstall(wait=5)
    await until(lambda: not any(NAME in w.plugins for w in x.workers), what="every side has left")
    await x.install(**options)


def receipts(x: Cluster) -> list[str]:
    """Give the names of all receipts."""
    return sorted(path.name for path in x.store.glob("commit/*/*.json"))


def first(m: str, x: Cluster, index: int = 1) -> Place:
    """Give the place of a partition that an earlier run has stored."""
    (data,) = x.store.glob(f"data/{m}/{index}-*")
    return Place(m, str(index), 0, data.name.partition("-")[2])


def said(x: Cluster, text: str) -> int:
    """Count the messages of the log that hold a text."""
    return sum(text in message for message in x.log.messages)


def row(x: Cluster, name: str = "clean") -> Any:
    """Give what was found of a milestone, the newest row."""
    return [each for each in x.watch.resume.rows.values() if each.name == name][-1]


# -- taken -------------------------------------------------------------------------------------------------------------


@cluster_test()
async def test_another_run_takes_what_is_stored(x: Cluster) -> None:
    """Every partition is loaded, none computed, and nothing is written a second time."""
    await stored(x)
    before = receipts(x)
    await compute(x, milestone())
    assert not calls()
    assert len(x.world.loads) == N
    assert receipts(x) == before == [f"{i}.0.json" for i in range(N)]
    assert (row(x).found, row(x).identity) == (N, "fingerprint")


@cluster_test()
async def test_a_second_compute_in_the_same_run_loads(x: Cluster) -> None:
    """Though every key of the first was forgotten."""
    await compute(x, milestone())
    await durable(x)
    await forgotten(x)
    assert calls() == EACH
    await compute(x, milestone())
    assert not calls()
    assert len(x.world.loads) == N


@cluster_test()
async def test_what_differs_is_computed(x: Cluster) -> None:
    """Another argument, or another number of partitions, under the same name is another milestone."""
    await stored(x)
    await compute(x, milestone(factor=2), 2)
    assert calls() == EACH
    await compute(x, milestone(n=N + 1))
    assert calls() == dict.fromkeys(range(N + 1), 1)
    await until(lambda: len({path.parent for path in x.store.glob("commit/*/*.json")}) == 3, what="each is durable")


@cluster_test()
async def test_a_save_goes_on_when_its_key_is_forgotten(x: Cluster) -> None:
    """The results are fetched and everything is let go before anything is written: all of it is saved."""
    writes = x.hold_writes()
    await compute(x, milestone())
    await forgotten(x)
    assert not receipts(x)
    assert x.watch.ledger.saving() == N
    writes.set()
    await durable(x)
    await until(lambda: not x.watch.ledger.entries, what="no entry is left")
    assert receipts(x) == [f"{i}.0.json" for i in range(N)]
    calls()
    await compute(x, milestone())
    assert not calls()


@cluster_test()
async def test_a_key_that_comes_back_while_it_is_saved(x: Cluster) -> None:
    """It is computed again, since nothing is durable; the second value is dropped, and no copy is written twice."""
    writes = x.hold_writes()
    await compute(x, milestone())
    await forgotten(x)
    await compute(x, milestone())
    assert calls() == dict.fromkeys(range(N), 2)
    writes.set()
    await durable(x)
    assert receipts(x) == [f"{i}.0.json" for i in range(N)]
    assert len(list(x.store.glob("data/*/*"))) == N


@cluster_test()
async def test_after_a_restart_of_all_workers(x: Cluster) -> None:
    """`client.restart` forgets every key; what is durable is loaded by the workers that come."""
    await compute(x, milestone())
    await durable(x)
    calls()
    kept = x.client.persist(milestone())
    await until(lambda: len(x.world.loads) == N, what="all are loaded")
    await x.client.restart(timeout=10, wait_for_workers=False)
    await until(lambda: not x.scheduler.workers)
    assert not x.watch.ledger.entries
    await x.join(ready=True)
    await compute(x, milestone())
    assert not calls()
    assert len(x.world.loads) == 2 * N
    del kept


# -- not taken ---------------------------------------------------------------------------------------------------------


@cluster_test()
async def test_what_an_earlier_run_has_revoked(x: Cluster) -> None:
    """It is computed, and written as the next generation."""
    m = await stored(x)
    x.plugin._queue.store.revoke(first(m, x), "for the test")
    await compute(x, milestone())
    assert calls() == {1: 1}
    await durable(x)
    assert receipts(x) == ["0.0.json", "1.0.json", "1.1.json", "2.0.json", "3.0.json"]
    assert shelf(x).valid == {"0": 0, "1": 1, "2": 0, "3": 0}
    await another_run(x)
    await compute(x, milestone())
    assert not calls()


@cluster_test()
async def test_what_is_damaged_since(x: Cluster) -> None:
    """A copy of an earlier run is found damaged: computed, revoked after the second read, and saved anew."""
    m = await stored(x)
    chunk = x.store / first(m, x).data / "0"
    content = bytearray(chunk.read_bytes())
    content[17] ^= 4
    chunk.write_bytes(content)
    await compute(x, milestone())
    assert calls() == {1: 1}
    await until(lambda: "1.1.json" in receipts(x), what="it is saved anew")
    await durable(x)
    assert x.tombstones() == [f"revoked/{m}/1.0.json"]
    assert dict(x.watch.copies.endings) == {"damaged": 1, "good": N - 1}
    await another_run(x)
    await compute(x, milestone())
    assert not calls()


@cluster_test()
async def test_what_is_gone_since_it_was_listed(x: Cluster) -> None:
    """A receipt that goes between the listing and the load is not trusted: computed, and nothing else is lost."""
    m = await stored(x)
    x.world.hold(*(f"load {key}" for key in milestone().__dask_keys__()))
    result = x.client.compute(milestone())
    await until(lambda: x.world.loads, what="a load has begun")
    (x.store / first(m, x).receipt).unlink()
    x.world.free()
    np.testing.assert_array_equal(await asyncio.wait_for(result, 20), np.repeat(np.arange(N), 8))
    assert calls() == {1: 1}
    await until(lambda: "1.1.json" in receipts(x), what="it is saved anew")
    await durable(x)


@cluster_test()
async def test_what_is_foreign(x: Cluster) -> None:
    """The receipt of another milestone in its place: refused and reported, never revoked, and not written over."""
    await compute(x, milestone("other", factor=7), 7)
    await until(lambda: len(receipts(x)) == N, what="the other milestone is durable")
    other = shelf(x, "other").milestone
    m = await stored(x)
    ours, theirs = first(m, x), first(other, x)
    foreign = (x.store / theirs.receipt).read_bytes()
    (x.store / ours.receipt).write_bytes(foreign)
    await compute(x, milestone())
    assert calls() == {1: 1}
    assert dict(x.watch.copies.endings) == {"foreign": 1, "good": N - 1}
    assert not x.tombstones()
    assert (x.store / ours.receipt).read_bytes() == foreign


@cluster_test(workers=2)
async def test_a_late_copy_is_of_one_life(x: Cluster) -> None:
    """A value that was saved as its worker was to leave may have been changed since: no other life takes it."""
    a, b = x.workers
    x.side(a).saver.off = "off for the test"
    held = x.client.persist(milestone(), workers=[a.address])
    await until(lambda: len(x.watch.ledger.rows()) == N, what="nothing is saved")
    x.side(a).saver.off = None
    x.pause(b)
    gate = x.watch.keeper.enact
    gate.gate.shut(a.address)
    done = await gate.drains.drain(a.address, time() + 20)
    assert done.saved == N
    assert not x.watch.ledger.shelves()[0].valid
    assert calls() == EACH
    x.pause(b, paused=False)
    del held
    await forgotten(x)
    await compute(x, milestone())
    assert calls() == EACH
    assert not x.world.loads
    await durable(x)
    await another_run(x)
    await compute(x, milestone())
    assert not calls()


@cluster_test(resilience__resume="off")
async def test_switched_off(x: Cluster) -> None:
    """Nothing is listed, nothing is known to other runs, and a forgotten key is computed anew."""
    for _ in range(2):
        await compute(x, milestone())
        await until(lambda: not x.watch.ledger.saving(), what="saved")
        await another_run(x)
        assert calls() == EACH
    assert not x.watch.resume.on
    assert not x.watch.ledger.claimed


# -- a store that does not answer --------------------------------------------------------------------------------------


@pytest.fixture
def silence(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Let nobody get the names in a directory of receipts until the event is set, and a graph wait a quarter second."""
    answer = threading.Event()
    names = Calls.names

    def slowly(self: Calls, path: str) -> list[str]:
        if "/commit" in path and not answer.is_set():
            answer.wait(20)
        return names(self, path)

    monkeypatch.setattr(Calls, "names", slowly)
    monkeypatch.setattr(resume, "LIST_SECONDS", 0.25)
    answer.set()
    yield answer
    answer.set()


@cluster_test()
async def test_a_store_that_does_not_answer(x: Cluster, silence: threading.Event) -> None:
    """A graph waits for a bounded time, the next ones not at all; everything is computed, and nothing is lost."""
    await stored(x)
    silence.clear()
    begin = monotonic()
    await compute(x, milestone())
    assert 0.25 <= monotonic() - begin < 5
    assert calls() == EACH
    assert not x.world.loads
    assert x.watch.resume._silent_until > monotonic()
    assert (row(x).identity, row(x).reasons) == ("run", ("the store could not be listed",))
    await compute(x, milestone(factor=2), 2)
    await compute(x, milestone(factor=3), 3)
    assert said(x, "nothing of other runs is reused for clean: the store did not answer within 0.25 s") == 1
    silence.set()
    await another_run(x)
    calls()
    await compute(x, milestone())
    assert not calls()


@cluster_test()
async def test_it_answers_again(x: Cluster, silence: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a while graphs ask it again, in the same run."""
    monkeypatch.setattr(resume, "AGAIN", 0.0)
    await stored(x)
    silence.clear()
    await compute(x, milestone(factor=2), 2)
    silence.set()
    calls()
    await compute(x, milestone())
    assert not calls()


@cluster_test()
async def test_a_listing_that_fails(x: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is computed, with one warning."""
    await stored(x)

    def fails(self: Archive, milestone: str) -> None:
        raise PermissionError(13, "for the test")

    with monkeypatch.context() as patch:
        patch.setattr(Archive, "listing", fails)
        await compute(x, milestone())
    assert calls() == EACH
    assert said(x, "nothing of other runs is reused for clean: ") == 1


@cluster_test(check=False)
async def test_leaving_while_a_graph_waits(x: Cluster, silence: threading.Event, monkeypatch: Any) -> None:
    """The plugin leaves while a graph waits for the store: the graph is computed, and no trace is left."""
    monkeypatch.setattr(resume, "LIST_SECONDS", 15.0)
    await stored(x)
    silence.clear()
    entered = threading.Event()
    look = resume.Resume._look
    monkeypatch.setattr(resume.Resume, "_look", lambda self, *args: (entered.set(), look(self, *args))[1])
    result = x.client.compute(milestone())
    await until(entered.is_set, what="the graph waits")
    await asyncio.wait_for(x.plugin.uninstall(wait=0), 10)
    silence.set()
    np.testing.assert_array_equal(await asyncio.wait_for(result, 20), np.repeat(np.arange(N), 8))
    assert calls() == EACH
    del result
    await x.check_undone()
    await x.install()
    await compute(x, milestone())
    await forgotten(x)
    await x.check()


# -- several schedulers, several clients -------------------------------------------------------------------------------


@cluster_test()
async def test_two_clients(x: Cluster) -> None:
    """What one client's graph has stored, the other one's takes."""
    await compute(x, milestone())
    await durable(x)
    await forgotten(x)
    calls()
    await compute(x, milestone(), client=await x.connect())
    assert not calls()


async def second(x: Cluster, store: Path) -> Cluster:
    """Start another cluster in this process."""
    y = Cluster(store)
    await y.start(1, install=True)
    return y


async def leave(y: Cluster) -> None:
    """End it."""
    await y.plugin.uninstall(wait=5)
    await y.stop()


@cluster_test()
async def test_two_schedulers_in_one_process(x: Cluster) -> None:
    """Each runs its own graphs, takes what its own store has, and goes on when the other one has left."""
    y = await second(x, x.store.with_name("store-2"))
    await stored(x)
    await compute(y, milestone())
    assert calls() == EACH
    await forgotten(y)
    await compute(x, milestone())
    assert not calls()
    await compute(y, milestone("other", factor=5), 5)
    await until(lambda: len(shelf(y, "other").valid) == N, what="all are durable")
    calls()
    await forgotten(y)
    await leave(y)
    await forgotten(x)
    await compute(x, milestone(factor=3), 3)
    assert calls() == EACH
    await until(lambda: len(receipts(x)) == 2 * N, what="all are durable")
    await compute(x, milestone(factor=3), 3)
    assert not calls()


@cluster_test()
async def test_two_schedulers_share_a_store(x: Cluster) -> None:
    """What one has stored the other one takes."""
    y = await second(x, x.store)
    try:
        await stored(x)
        await compute(y, milestone())
        assert not calls()
    finally:
        await forgotten(y)
        await leave(y)


@cluster_test()
async def test_two_schedulers_know_their_own_milestones_only(x: Cluster) -> None:
    """A graph that was sent to one is neither claimed, nor described, nor explained by the other."""
    y = await second(x, x.store.with_name("store-2"))
    try:
        await compute(x, milestone())
        await durable(x)
        await forgotten(x)
        assert not y.watch.resume.rows
        assert not y.watch.ledger.claimed
        assert not list(y.store.glob("milestones/*.json"))
    finally:
        await leave(y)


@cluster_test()
async def test_a_milestone_that_is_an_argument_of_a_delayed_call(x: Cluster) -> None:
    """Dask renames its tasks then: it is saved and known all the same."""
    total = dask.delayed(np.sum, pure=True)(milestone())
    for expected in (EACH, {}):
        assert await asyncio.wait_for(x.client.compute(total), 20) == 8 * sum(range(N))
        assert calls() == expected
        await until(lambda: len(receipts(x)) == N, what="all are durable")
        await forgotten(x)
