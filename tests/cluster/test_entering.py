"""Keys that enter the detour: what they no longer need is let go, and nothing is run for them."""

from __future__ import annotations

import pytest

from tests.support.cluster import Cluster, cluster_test
from tests.support.waiting import until
from tests.support.world import UserError

CHAIN = {"D": [], "K": ["D"]}


@cluster_test(workers=1)
async def test_stale_worker_deps(x: Cluster) -> None:
    """D -> K -> L, L kept, K released: a load of K does not wait for D on a worker that still links them (rule 1)."""
    spec = {"D": [], "K": ["D"], "L": ["K"], "M": ["K"]}
    x.mark("K")
    (kept,) = x.persist(spec, "L")
    await x.done(kept)
    await x.durable("K")
    await until(lambda: not x.task("K").who_has)
    (m,) = x.persist(spec, "M")
    await x.right(spec, m)
    assert x.world.counts() == {"D": 1, "K": 1, "L": 1, "M": 1}
    assert x.world.loaded("K") == 1


@cluster_test()
async def test_commit_while_processing_then_loss(x: Cluster) -> None:
    """K is durable before it ends, and its worker dies with K's dependency: neither runs again (rule 4)."""
    x.mark("K")
    x.world.hold("end K")
    (k,) = x.persist(CHAIN, "K")
    await x.durable("K")
    assert x.holder("D") == x.runner("K")
    await x.lose(x.runner("K"))
    await x.right(CHAIN, k)
    assert [ts.key for ts in x.scheduler.tasks.values() if ts.state == "memory"] == ["K"]
    assert x.world.counts() == {"D": 1, "K": 1}
    assert x.world.loaded("K") == 1


@cluster_test(workers=3)
async def test_lost_dep_pending_waiting(x: Cluster) -> None:
    """K runs on one worker, D is on another, both are lost at once: D does not run for K, which is loaded (rule 4)."""
    a, b, c = x.workers
    x.pause(b, c)
    (d,) = x.persist(CHAIN, "D")
    await x.done(d)
    x.pause(b, paused=False)
    x.pause(a)
    x.mark("K")
    x.world.hold("end K")
    (k,) = x.persist(CHAIN, "K")
    await x.durable("K")
    assert x.runner("K") == b.address
    d.release()
    await until(lambda: not x.task("D").who_wants)
    x.pause(c, paused=False)
    await x.lose(a.address)
    await x.lose(b.address)
    await x.right(CHAIN, k)
    assert x.world.counts() == {"D": 1, "K": 1}


@cluster_test()
async def test_waiters_leak(x: Cluster) -> None:
    """K runs on one worker, D lives on another; K's worker is lost: D is let go, a load needs it no more (rule 3)."""
    a, b = x.workers
    x.pause(b)
    (d,) = x.persist(CHAIN, "D")
    await x.done(d)
    x.pause(b, paused=False)
    x.pause(a)
    x.mark("K")
    x.world.hold("end K")
    (k,) = x.persist(CHAIN, "K")
    await x.durable("K")
    d.release()
    x.pause(a, paused=False)
    assert x.runner("K") == b.address
    await x.lose(b.address)
    await x.right(CHAIN, k)
    assert x.task("D").state == "released"
    assert not x.task("D").waiters
    assert x.world.counts() == {"D": 1, "K": 1}


@cluster_test()
async def test_a_dependency_that_somebody_else_needs_stays(x: Cluster) -> None:
    """K enters while M still waits for D: D is run, for M only (rule 3)."""
    spec = {"D": [], "K": ["D"], "M": ["D"]}
    await x.stored(CHAIN, "K")
    x.world.hold("load K")
    k, m = x.persist(spec, "K", "M")
    await x.right(spec, m)
    assert "K" in x.parked
    x.world.free()
    await x.right(spec, k)
    assert x.world.counts() == {"D": 1, "M": 1}


@cluster_test()
async def test_a_dependency_that_only_waits_is_given_up(x: Cluster) -> None:
    """Both are lost, D would have to run for K: the pending wish of K for D is withdrawn (rule 3)."""
    spec = {"A": [], "D": ["A"], "K": ["D"]}
    x.mark("K")
    d, k = x.persist(spec, "D", "K")
    await x.done(d, k)
    await x.durable("K")
    holder = x.holder("K")
    assert x.holder("D") == holder
    d.release()
    await until(lambda: x.task("D").state == "released")
    await x.lose(holder)
    await x.right(spec, k)
    assert x.world.counts() == {"A": 1, "D": 1, "K": 1}


@cluster_test()
async def test_dep_erred_while_detoured(x: Cluster) -> None:
    """D errs for somebody else while K is loaded, then K's copy is bad: K errs with D's error, no hang (rule 6)."""
    spec = {"D": [], "K": ["D"], "X": ["D"]}
    await x.stored(CHAIN, "K")
    x.world.errors["D"] = 10
    x.world.hold("load K")
    (k,) = x.persist(spec, "K")
    await x.loads("K")
    (other,) = x.persist(spec, "X")
    await x.done(other)
    assert other.status == "error"
    x.chunk("K").unlink()
    x.world.free()
    with pytest.raises(UserError):
        await x.value(k)


@cluster_test()
async def test_lost_after_dep_erred(x: Cluster) -> None:
    """K was loaded, D erred for X, K's worker is lost: K comes from the store (rules 4 and 7)."""
    spec = {"D": [], "K": ["D"], "X": ["D"]}
    await x.stored(CHAIN, "K")
    x.world.errors["D"] = 10
    k, other = x.persist(spec, "K", "X")
    await x.done(k, other)
    await x.lose(x.holder("K"))
    await x.right(spec, k)
    assert x.world.loaded("K") == 2


@cluster_test()
async def test_resubmit_after_dep_erred(x: Cluster) -> None:
    """K was loaded though D erred; the same graph again leaves K where it is (rule 7)."""
    spec = {"D": [], "K": ["D"], "X": ["D"]}
    await x.stored(CHAIN, "K")
    x.world.errors["D"] = 10
    first = x.persist(spec, "K", "X")
    await x.done(*first)
    second = x.persist(spec, "K", "X")
    await x.done(*second)
    await x.right(spec, first[0], second[0])
    assert second[1].status == "error"


@cluster_test()
async def test_wanted_again_after_dep_erred(x: Cluster) -> None:
    """D erred while K was released; a new graph on K gets the copy (rule 7, released -> erred)."""
    spec = {"D": [], "K": ["D"], "X": ["D"], "M": ["K"]}
    await x.stored(CHAIN, "K")
    x.world.errors["D"] = 10
    (other,) = x.persist(spec, "X")
    await x.done(other)
    (m,) = x.persist(spec, "M")
    await x.right(spec, m)
    assert x.world.loaded("K") == 1


@cluster_test()
async def test_lost_after_scatter_lost(x: Cluster) -> None:
    """K depends on scattered data that is lost, then K is lost: its copy is not (rule 5)."""
    a, b = x.workers
    await x.join(ready=True)
    data = (await x.client.scatter({"sc": 5}, workers=[a.address]))["sc"]
    x.mark("K")
    k = x.client.submit(_add, x.number, data, key="K", workers=[b.address])
    await x.done(k)
    await x.durable("K")
    x.scheduler.request_remove_replicas(b.address, ["sc"], stimulus_id="test")
    await until(lambda: "sc" not in b.data)
    await x.lose(a.address)
    await x.lose(b.address)
    assert await x.value(k) == 5


def _add(number: int, scattered: int) -> object:
    from dask_resilient import tasks
    from tests.support.world import make

    value = make("K", []) * 0 + scattered
    tasks.save(value, {"name": "test", "key": "K", "npartitions": 1, "keep": False})
    return value


@cluster_test()
async def test_anchors_are_private(x: Cluster) -> None:
    """A parked key's stand-in is no task of the scheduler's, in no group of its, and has no annotations (rule 17)."""
    await x.stored(CHAIN, "K")
    x.world.hold("load K")
    (k,) = x.persist(CHAIN, "K")
    await x.loads("K")
    (anchor,) = x.task("D").dependents
    assert anchor.key not in x.scheduler.tasks
    assert anchor.annotations is None
    assert anchor.group.name not in x.scheduler.task_groups
    assert anchor.prefix.name not in x.scheduler.task_prefixes
    x.world.free()
    await x.right(CHAIN, k)
    assert x.task("D").dependents == {x.task("K")}
    assert x.task("K").dependencies == {x.task("D")}
