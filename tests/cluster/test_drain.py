"""A worker that is to leave: what only it holds is moved or saved first, and nothing of it is computed again."""

from __future__ import annotations

import asyncio
from time import monotonic, time
from typing import Any

import pytest
from distributed import Worker
from distributed.core import Status

from dask_resilient import partitions
from dask_resilient.core.outcome import Declined
from dask_resilient.scheduler import drain
from tests.support.cluster import Cluster, cluster_test
from tests.support.waiting import until

KEYS = [f"kk-{i}" for i in range(6)]
SPEC = {**{key: [f"dd-{i}"] for i, key in enumerate(KEYS)}, **{f"dd-{i}": [] for i in range(len(KEYS))}}
NO_LIMITS = {f"distributed__worker__memory__{name}": False for name in ("target", "spill", "pause", "terminate")}
LONG = 20.0


async def on(x: Cluster, worker: Worker) -> list[Any]:
    """Compute the keys on one worker, and give their futures."""
    futures = x.persist(SPEC, *KEYS, workers=[worker.address])
    await x.done(*futures)
    assert {x.holder(key) for key in KEYS} == {worker.address}
    x.world.runs.clear()
    for ts in x.scheduler.tasks.values():
        ts.worker_restrictions = None
    return futures


async def drained(x: Cluster, worker: Worker, seconds: float = LONG) -> drain.Outcome:
    """Shut and drain a worker."""
    enact = x.watch.keeper.enact
    enact.gate.shut(worker.address)
    return await enact.drains.drain(worker.address, time() + seconds)


def unprotect(x: Cluster, worker: Worker) -> None:
    """Let the scheduler know that a worker saves nothing."""
    member = x.watch.members.get(worker.address)
    assert member is not None
    member.protected, member.reason = False, "for the test"


async def full(x: Cluster) -> Worker:
    """Add a worker without room."""
    return await x.join(ready=True, memory_limit=10)


def beside(x: Cluster) -> int:
    """Count the receipts in the store."""
    return len(list(x.store.glob("commit/*/*.json")))


@cluster_test(workers=3)
async def test_everything_is_moved(x: Cluster) -> None:
    """At an operator's word a worker leaves; what it held is elsewhere, and nothing is computed again or saved."""
    a = x.workers[0]
    futures = await on(x, a)
    (row,) = x.watch.keeper.operator("quarantine", a.address, "a test", "me")
    await until(lambda: a.address not in x.scheduler.workers, what="it leaves")
    await x.right(SPEC, *futures)
    assert not x.world.runs
    assert not x.world.loads
    assert (row["outcome"], row["moved"], row["saved"], row["lost"]) == ("drained", len(KEYS), 0, 0)
    assert x.watch.keeper.audit.rows[-1]["lost"] == 0
    assert {len(x.task(key).who_has) for key in KEYS} == {1}
    assert not beside(x)


@cluster_test(workers=1, **NO_LIMITS)
async def test_without_room_everything_comes_from_the_store(x: Cluster) -> None:
    """What no other worker has room for is saved, of this run only, and loaded when it is lost."""
    a = x.workers[0]
    futures = await on(x, a)
    b = await full(x)
    (row,) = x.watch.keeper.operator("quarantine", a.address, "a test", "me")
    await until(lambda: a.address not in x.scheduler.workers, what="it leaves")
    assert not x.world.runs
    rows = x.watch.ledger.rows()
    assert {(r["key"], r["state"], r["late"]) for r in rows} == {(key, "durable", True) for key in KEYS}
    assert x.watch.ledger.summary() == []
    await x.right(SPEC, *futures)
    assert not x.world.runs
    assert sorted(x.world.loads) == sorted((key, b.address) for key in KEYS)
    assert (row["outcome"], row["moved"], row["saved"]) == ("drained", 0, len(KEYS))
    assert x.watch.keeper.audit.rows[-1]["lost"] == len(KEYS)
    assert {x.place(key).milestone for key in KEYS} <= x.watch.ledger.milestones()
    receipt, _ = x.plugin._queue.store.read(x.place(KEYS[0]), None)
    assert receipt.temporary
    assert receipt.producer["late"]
    assert not list(x.store.glob("milestones/*.json"))


@cluster_test()
async def test_a_save_under_way_is_waited_for(x: Cluster) -> None:
    """A milestone that is queued is neither moved nor saved a second time."""
    a = x.workers[0]
    event = x.hold_writes()
    x.mark(*KEYS)
    futures = await on(x, a)
    await until(lambda: x.watch.ledger.saving_on(a.address) == len(KEYS), what="all are queued")
    draining = asyncio.ensure_future(drained(x, a))
    await until(lambda: x.watch.keeper.enact.drains._drains, what="it drains")
    assert not draining.done()
    event.set()
    done = await draining
    assert (done.text, done.moved, done.saved) == ("drained", 0, len(KEYS))
    assert {x.holder(key) for key in KEYS} == {a.address}
    assert not any(row["late"] for row in x.watch.ledger.rows())
    await x.right(SPEC, *futures)


@cluster_test()
async def test_what_ends_meanwhile_is_moved_too(x: Cluster) -> None:
    """A task that executes ends, and its result is moved."""
    a, b = x.workers
    x.world.hold("K")
    (k,) = x.persist({"K": []}, "K", workers=[a.address])
    await x.runs("K")
    ws = x.scheduler.workers[a.address]
    await until(lambda: ws.executing, what="it is heard of")
    draining = asyncio.ensure_future(drained(x, a))
    await until(lambda: x.watch.keeper.enact.drains._drains, what="it drains")
    assert x.runner("K") == a.address
    x.world.free()
    done = await draining
    assert (done.text, done.moved) == ("drained", 1)
    assert b.address in {w.address for w in x.task("K").who_has}
    await x.right({"K": []}, k)
    assert x.world.ran("K") == 1


@cluster_test()
async def test_the_only_other_worker_is_paused(x: Cluster) -> None:
    """The drain waits for it without asking all the time, and moves everything when it runs again."""
    a, b = x.workers
    futures = await on(x, a)
    unprotect(x, a)
    x.pause(b)
    drains = x.watch.keeper.enact.drains
    looks = 0
    go = drains._go

    def counted(*args: Any) -> None:
        nonlocal looks
        looks += 1
        go(*args)

    drains._go = counted  # type: ignore[method-assign]
    begin = monotonic()
    draining = asyncio.ensure_future(drained(x, a))
    await until(lambda: looks == 3, what="it asks again")
    assert monotonic() - begin >= 2 * drain.RETRY
    assert not draining.done()
    x.pause(b, paused=False)
    done = await draining
    assert (done.text, done.moved) == ("drained", len(KEYS))
    assert x.scheduler.workers[a.address].status == Status.paused
    assert a.status == Status.running
    await x.lose(a.address)
    await x.right(SPEC, *futures)
    assert not x.world.runs


@cluster_test(workers=1)
async def test_nobody_else_is_there(x: Cluster) -> None:
    """What can be saved is saved; what cannot is left at once, with the reason, and no deadline is waited for."""
    a = x.workers[0]
    futures = await on(x, a)
    (scattered,) = await x.client.scatter([1])
    begin = monotonic()
    done = await drained(x, a, 1000)
    assert monotonic() - begin < LONG
    assert done.saved == len(KEYS)
    assert done.text == (
        "1 results could be neither moved nor saved: no other worker is in service, and it was scattered: there is no "
        "task that could load it again"
    )
    scattered.release()
    unprotect(x, a)
    (k,) = x.persist({"K": []}, "K")
    x.watch.keeper.enact.gate.open(a.address)
    await x.right({"K": []}, k)
    done = await drained(x, a, 1000)
    assert done.text.endswith("its worker saves nothing: for the test")
    await x.right(SPEC, *futures)


@cluster_test()
async def test_scattered_data_is_moved(x: Cluster) -> None:
    """Data without a task is moved as any other."""
    a, b = x.workers
    (future,) = await x.client.scatter([[1, 2]], workers=[a.address])
    done = await drained(x, a)
    assert (done.text, done.moved) == ("drained", 1)
    await x.lose(a.address)
    assert x.holder(future.key) == b.address
    assert await future.result() == [1, 2]


@cluster_test(**NO_LIMITS)
async def test_what_is_left_at_the_deadline_is_computed_again(x: Cluster) -> None:
    """The outcome says what it was, and the results are right."""
    a, b = x.workers
    futures = await on(x, a)
    x.pause(b)
    x.hold_writes()
    done = await drained(x, a, 0.3)
    assert done.text.startswith(f"its time was up with {len(KEYS)} results neither moved nor saved and 0 tasks")
    assert (done.moved, done.saved, done.stopped) == (0, 0, False)
    x.pause(b, paused=False)
    await x.lose(a.address)
    await x.right(SPEC, *futures)
    assert sorted(x.world.runs) == sorted(SPEC)
    assert not x.world.loads


@cluster_test()
async def test_a_release_stops_it(x: Cluster) -> None:
    """The drain ends at once, and the worker runs on both sides and is given tasks."""
    a, b = x.workers
    futures = await on(x, a)
    unprotect(x, a)
    x.pause(b)
    (row,) = x.watch.keeper.operator("quarantine", a.address, "a test", "me")
    drains = x.watch.keeper.enact.drains
    await until(lambda: drains._drains, what="it drains")
    x.watch.keeper.operator("release", a.address, "", "me")
    await until(lambda: not drains._drains, what="the drain ends")
    assert x.scheduler.workers[a.address].status == a.status == Status.running
    (k,) = x.persist({"K": []}, "K", workers=[a.address])
    await x.right({"K": []}, k)
    assert {d.phase for d in x.watch.keeper.book.devices.values()} == {"active"}
    assert row["moved"] == 0
    await x.right(SPEC, *futures)


@pytest.mark.parametrize("how", ["dies", "is released"])
@cluster_test()
async def test_it_goes_meanwhile(x: Cluster, how: str) -> None:
    """A worker that dies, or whose results nobody needs any more, ends the drain."""
    a, b = x.workers
    futures = await on(x, a)
    unprotect(x, a)
    x.pause(b)
    draining = asyncio.ensure_future(drained(x, a))
    await until(lambda: x.watch.keeper.enact.drains._drains, what="it drains")
    if how == "dies":
        await x.lose(a.address)
    else:
        for future in futures:
            future.release()
    done = await draining
    assert done.stopped == (how == "dies")
    assert done.text == ("not drained: it left meanwhile" if how == "dies" else "drained")
    x.pause(b, paused=False)


@cluster_test(workers=3)
async def test_a_worker_that_takes_nothing_is_passed_over(x: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it was to take goes to another one."""
    a, b, c = x.workers
    futures = await on(x, a)
    monkeypatch.setattr(drain, "STALL", 0.1)
    deaf = b.stream_handlers["acquire-replicas"]
    b.stream_handlers["acquire-replicas"] = lambda **_: None
    unprotect(x, a)
    done = await drained(x, a)
    b.stream_handlers["acquire-replicas"] = deaf
    assert (done.text, done.moved) == ("drained", len(KEYS))
    await x.lose(a.address)
    assert {x.holder(key) for key in KEYS} == {c.address}
    await x.right(SPEC, *futures)
    assert not x.world.runs


@cluster_test(workers=3)
async def test_two_workers_leave_together(x: Cluster) -> None:
    """A result that only the two of them have is no safer than one that one of them has."""
    a, b, c = x.workers
    futures = await on(x, a)
    x.scheduler.request_acquire_replicas(b.address, KEYS, stimulus_id="test")
    await until(lambda: all(len(x.task(key).who_has) == 2 for key in KEYS), what="two have them")
    gate = x.watch.keeper.enact.gate
    gate.shut(a.address)
    gate.shut(b.address)
    both = await asyncio.gather(drained(x, a), drained(x, b))
    assert [done.text for done in both] == ["drained"] * 2
    await x.lose(a.address)
    await x.lose(b.address)
    assert {x.holder(key) for key in KEYS} == {c.address}
    await x.right(SPEC, *futures)


@cluster_test(workers=1)
async def test_what_no_codec_knows_is_left_with_the_reason(x: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """And no second time is asked for it."""
    a = x.workers[0]
    futures = await on(x, a)
    monkeypatch.setattr(partitions, "stage", lambda _: Declined("nobody knows it"))
    done = await drained(x, a)
    assert done.text.endswith("no other worker is in service, and nobody knows it")
    await x.right(SPEC, *futures)


@cluster_test(workers=1)
async def test_a_value_of_an_earlier_life_is_not_taken(x: Cluster) -> None:
    """A key that is forgotten and computed anew, by another function, while its value is staged has no copy."""
    a = x.workers[0]
    (k,) = x.persist({"K": []}, "K")
    await x.right({"K": []}, k)
    side, run = x.side(a), x.task("K").run_id
    old = a.data["K"]
    k.release()
    await until(lambda: "K" not in x.scheduler.tasks, what="it is forgotten")
    x.world.other = 1
    (k,) = x.persist({"K": []}, "K")
    await x.done(k)
    a.data["K2"] = old
    side._duty._late.ask([("K2", run)], spilled_only=False)
    msg = {"kind": "staged", "late": True, "key": "K", "run_id": run, "attempt": "0" * 32, "nbytes": 64}
    x.watch.copies.staged(a.address, msg)
    assert not x.watch.ledger.entries
    x.watch.copies.staged(a.address, {**msg, "run_id": x.task("K").run_id})
    assert x.watch.ledger.entries["K"].attempt
    await until(lambda: x.watch.ledger.entries["K"].attempt is None, what="the worker knows no such attempt")
    del a.data["K2"]


@cluster_test(workers=2, **NO_LIMITS)
async def test_a_late_copy_makes_way_for_that_of_the_milestone(x: Cluster) -> None:
    """A milestone that was saved late only is saved when it is computed again, and counts as late until then."""
    a, b = x.workers
    off = x.side(a).saver
    off.off = "off for the test"
    x.mark("K")
    (k,) = x.persist({"K": []}, "K", workers=[a.address])
    await x.right({"K": []}, k)
    await until(x.watch.ledger.rows, what="it is not saved")
    off.off = None
    x.pause(b)
    done = await drained(x, a)
    assert (done.text, done.saved) == ("drained", 1)
    (row,) = x.watch.ledger.summary()
    assert (row["name"], row["durable"], row["late"]) == ("test", 0, 1)
    late = x.place("K")
    x.watch.ledger.entries["K"].refused = True  # so that it is computed again
    x.task("K").worker_restrictions = None
    x.pause(b, paused=False)
    await x.lose(a.address)
    await x.right({"K": []}, k)
    await x.durable("K")
    assert x.place("K").milestone != late.milestone
    (row,) = x.watch.ledger.summary()
    assert (row["durable"], row["late"]) == (1, 0)
