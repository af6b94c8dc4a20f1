"""What the fuzzer found in the package, one small test each; the shrunk seeds are in `tests/fuzz/cases.py`."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dask_resilient.core.recovery import ATTEMPTS, UNBEGUN
from dask_resilient.plugin import Resilience
from tests.support.cluster import Cluster, cluster_test, threads
from tests.support.waiting import until
from tests.support.world import UserError


@cluster_test()
async def test_registered_over_the_first_and_nothing_happens(x: Cluster) -> None:
    """The other instance starts though nothing asks anything, so that leaving finds one that runs (seed 96)."""
    first, second = x.plugin, Resilience(x.store)
    with pytest.warns(UserWarning, match="overwriting"):
        await x.scheduler.register_scheduler_plugin(second, idempotent=False)
    x.plugin = second
    await until(lambda: first._watch is None and second._watch is not None, what="the other one takes over")
    await until(lambda: all(map(x.is_ready, x.workers)))


@cluster_test(install=False, check=False)
async def test_a_side_that_comes_to_a_worker_that_closes(x: Cluster) -> None:
    """Dask has torn its plugins down by then: nothing is started that nobody would end (seed 270)."""
    a, b = x.workers
    await a.close()
    await x.install()
    await a.plugin_add(x.scheduler.worker_plugins["resilience"], name="resilience")
    await until(lambda: not a.plugins["resilience"].side)
    await x.plugin.uninstall(wait=0)
    await until(lambda: not threads(), what=f"every thread ends: {threads()}")
    assert b.status.name == "running"


@cluster_test(check=False)
async def test_uninstall_while_it_starts(x: Cluster) -> None:
    """What still starts is waited for: it would hand its sides to the workers behind their removal (seed 6)."""
    await x.plugin.uninstall(wait=0)
    x.plugin = Resilience(x.store)
    starting = asyncio.ensure_future(x.plugin.start(x.scheduler))
    await until(lambda: x.plugin._scheduler is not None, what="it starts")
    await x.plugin.uninstall(wait=0)
    await starting
    x.log.messages.clear()
    await x.check_undone()


@cluster_test(workers=1)
async def test_a_load_overtakes_a_task_that_has_not_begun(x: Cluster) -> None:
    """In one batch a worker gets the task, loses it and its input, and gets the load: that runs (seed 100190)."""
    spec = {"d": [], "k": ["d"]}
    d, k = await x.saved(spec, "d", "k")
    detour, scheduler = x.watch.detour, x.scheduler
    detour.on = False
    x.drop("k")
    scheduler.client_releases_keys(keys=["d"], client=x.client.id, stimulus_id="test-release")
    assert x.task("k").state == "processing"
    detour.on = True
    detour.poke(["k"], "test")
    assert "k" in x.parked
    await x.done(k)
    await x.right(spec, k)
    assert (x.world.ran("k"), x.world.loaded("k")) == (1, 1)
    assert not x.watch.ledger.entries["k"].refused
    del d


@cluster_test()
async def test_a_task_that_is_sent_again_without_its_input_before_it_has_begun(x: Cluster) -> None:
    """In one batch it is sent, taken back, its input dropped, and it is sent again: it is run (seed 657165224)."""
    spec = {"d": [], "k": ["d"]}
    a, b = x.workers
    scheduler = x.scheduler
    d, k = x.persist(spec, "d", "k", workers=[a.address])
    await x.done(d, k)
    scheduler.request_acquire_replicas(b.address, ["d"], stimulus_id="test-copy")
    await until(lambda: len(x.task("d").who_has) == 2, what="both have the input")
    x.watch.detour.on = False
    x.drop("k")
    assert x.task("k").processing_on.address == a.address
    scheduler.worker_send(a.address, {"op": "free-keys", "keys": ["k"], "stimulus_id": "test-1"})
    scheduler.worker_send(a.address, {"op": "free-keys", "keys": ["d"], "stimulus_id": "test-2"})
    scheduler.remove_replica(x.task("d"), scheduler.workers[a.address])
    scheduler.worker_send(a.address, scheduler._task_to_msg(x.task("k")))
    await x.done(k)
    await x.right(spec, k)
    x.watch.detour.on = True


@cluster_test()
async def test_lost_after_dep_erred_and_never_saved(x: Cluster) -> None:
    """Plain Dask brings it back never, without a word; it errs, as what it is made of did (seed 200815)."""
    spec = {"D": [], "K": ["D"], "X": ["D"], "Y": ["K"]}
    (k,) = x.persist(spec, "K")
    await x.done(k)
    x.world.errors["D"] = 10
    (other,) = x.persist(spec, "X")
    await x.done(other)
    await x.lose(x.holder("K"))
    (behind,) = x.persist(spec, "Y")
    await x.done(k, behind)
    for future in (k, behind):
        with pytest.raises(UserError, match="D"):
            await future.result()


@cluster_test(workers=1, distributed__scheduler__worker_saturation=1.0)
async def test_a_load_that_failed_leaves_its_place_to_the_queue(x: Cluster) -> None:
    """K cannot be loaded, and what it is made of is queued behind it: somebody looks (seed 300007)."""
    roots = {f"r-{i}": [] for i in range(8)}
    await x.stored({**roots, "K": list(roots)}, "K")
    spec = {**roots, "K": list(roots), "Y": ["K"], "Z": list(roots)}
    x.chunk("K").unlink()
    x.world.hold("load K")
    futures = x.persist(spec, "Y", "Z")
    await x.loads("K")
    await until(lambda: any(x.task(key).state == "queued" for key in roots), what="some are queued")
    x.world.free()
    await x.done(*futures)
    await x.right(spec, *futures)


@cluster_test()
async def test_pause_that_ends_between_two_transitions(x: Cluster) -> None:
    """K has no copy when it is asked for, errs as D did, and has one then: who waits for it gets it (seed 400044)."""
    spec = {"D": [], "K": ["D"], "X": ["D"], "S": [], "Y": ["K", "S"]}
    await x.stored({"D": [], "K": ["D"]}, "K")
    x.world.errors["D"] = 10
    k, other = x.persist(spec, "K", "X")
    await x.done(k, other)
    x.world.hold("S")
    away = next(w.address for w in x.workers if w.address != x.holder("K"))
    (s,) = x.persist(spec, "S", workers=[away])
    await x.runs("S")
    (y,) = x.persist(spec, "Y")
    await until(lambda: x.task("K").waiters, what="Y waits for K")
    asked = []
    ticket = x.watch.detour.ticket

    def paused_once(ts: Any) -> Any:
        if ts.key == "K":
            asked.append(ts.state)
        return None if len(asked) == 2 and ts.key == "K" else ticket(ts)

    x.watch.detour.ticket = paused_once  # type: ignore[method-assign]
    x.scheduler.client_releases_keys(keys=["K"], client=x.client.id, stimulus_id="test-release")
    await x.lose(x.holder("K"))
    assert len(asked) > 2
    x.world.free()
    await x.done(y)
    await x.right(spec, y)
    del k, s


@cluster_test()
async def test_nothing_is_asked_for_by_who_errs_meanwhile(x: Cluster) -> None:
    """J is lost and errs over K, whose D has erred since: what else J asked for is not computed (seed 700816)."""
    parts = [f"S-{i}" for i in range(9)]
    spec = {"R": [], **{part: ["R"] for part in parts}, "D": [], "K": ["D"], "X": ["D"], "J": [*parts, "K"]}
    (j,) = x.persist(spec, "J")
    await x.done(j)
    x.world.errors["D"] = 10
    (other,) = x.persist(spec, "X")
    await x.done(other)
    x.world.hold("R")
    await x.lose(x.holder("J"))
    await x.done(j)
    with pytest.raises(UserError, match="D"):
        await j.result()
    await until(lambda: {x.task(key).state for key in ("R", *parts)} == {"released"}, what="nothing is asked for")


@cluster_test()
async def test_a_task_that_errs_while_it_runs_is_taken_back(x: Cluster) -> None:
    """K is lost under M, and errs, as its D has since: the worker of M is told to let go of M (seed 1001757)."""
    spec = {"D": [], "K": ["D"], "X": ["D"], "M": ["K"]}
    k, m = x.persist(spec, "K", "M")
    await x.done(k, m)
    x.world.errors["D"] = 10
    (other,) = x.persist(spec, "X")
    await x.done(other)
    x.world.hold("M")
    x.drop("M")
    await x.runs("M", 2)
    (worker,) = (w for w in x.workers if w.address == x.runner("M"))
    x.drop("K")
    assert (x.task("K").state, x.task("M").state) == ("erred", "erred")
    here = worker.state.tasks
    await until(lambda: "M" in here and here["M"].state == "cancelled", 5, what="the worker lets go of M")
    x.world.free()
    await until(lambda: "M" not in here, what="the worker forgets M")
    await x.done(k, m)
    for future in (k, m):
        with pytest.raises(UserError, match="D"):
            await future.result()


@cluster_test(workers=1)
async def test_lost_together_with_what_errs(x: Cluster) -> None:
    """K is lost and errs, as its D has since, before the loss of N is worked off: N errs too (seed 1001757)."""
    spec = {"D": [], "K": ["D"], "X": ["D"], "N": ["K"]}
    k, n = x.persist(spec, "K", "N")
    await x.done(k, n)
    x.drop("K")
    await until(lambda: x.task("K").state == "memory", what="K is back")
    x.world.errors["D"] = 10
    (other,) = x.persist(spec, "X")
    await x.done(other)
    holder = x.scheduler.workers[x.holder("K")]
    assert [ts.key for ts in holder.has_what] == ["N", "K"]
    await x.lose(holder.address)
    assert (x.task("K").state, x.task("N").state) == ("erred", "erred")
    await x.done(k, n)
    for future in (k, n):
        with pytest.raises(UserError, match="D"):
            await future.result()


@cluster_test(workers=1)
async def test_a_late_result_says_nothing_against_a_copy(x: Cluster) -> None:
    """K's function still runs when its load is sent; Dask gives up the load for its stale result (seed 1000035)."""
    spec = {"d": [], "k": ["d"]}
    (k,) = await x.saved(spec, "k")
    detour, entry = x.watch.detour, x.watch.ledger.entries["k"]
    entry.bad_loads = ATTEMPTS - 1
    x.world.hold("k", "load k")
    detour.on = False
    x.drop("k")
    await x.runs("k", 2)
    detour.on = True
    detour.poke(["k"], "test")
    await x.told("k")
    assert x.world.loaded("k") == 0
    x.world.free("k")
    await x.loads("k")
    assert entry.bad_loads == pytest.approx(ATTEMPTS - 1 + UNBEGUN)
    x.world.free()
    await x.done(k)
    await x.right(spec, k)
    assert (x.world.ran("k"), x.world.loaded("k")) == (2, 1)
