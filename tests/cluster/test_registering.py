"""Instances of the plugin: registered twice, over another one, taken out; and what it does about surprises."""

from __future__ import annotations

import asyncio

import pytest

from dask_resilient.plugin import NAME, Resilience
from tests.support.cluster import Cluster, cluster_test, threads
from tests.support.waiting import until

CHAIN = {"D": [], "K": ["D"]}


@pytest.mark.parametrize("loading", [False, True])
@cluster_test(check=False)
async def test_unregister_midway(x: Cluster, loading: bool) -> None:
    """Dask calls nothing then: what is parked is put back, and all the rest leaves by itself."""
    await x.stored(CHAIN, "K")
    spec = {**CHAIN, "M": ["K"]}
    x.world.hold("load K")
    (k,) = x.persist(spec, "K")
    await x.loads("K")
    await x.scheduler.unregister_scheduler_plugin(NAME)
    if not loading:
        x.world.free()
        await x.right(spec, k)
    (m,) = x.persist(spec, "M")
    x.world.free()
    await x.right(spec, k, m)
    x.scheduler.validate_state()
    for future in (k, m, *x._keepers):
        future.release()
    await until(lambda: not x.scheduler.tasks)
    await until(lambda: not threads())
    await x.check_undone()


@cluster_test(check=False)
async def test_a_loss_right_after_unregistering(x: Cluster) -> None:
    """No row enters for a plugin that is gone, not even the first after that (rule 11)."""
    (k,) = await x.saved(CHAIN, "K")
    await x.scheduler.unregister_scheduler_plugin(NAME)
    await x.lose(x.holder("K"))
    await x.right(CHAIN, k)
    assert not x.world.loads
    assert x.world.counts() == {"D": 2, "K": 2}
    await until(lambda: NAME not in x.scheduler.handlers)
    await x.check_undone()


@cluster_test()
async def test_registered_again_after_unregistering(x: Cluster) -> None:
    """The old instance, whom nobody told, gives way to the new one."""
    first = x.plugin
    await x.scheduler.unregister_scheduler_plugin(NAME)
    await x.install()
    assert x.plugin is not first
    (k,) = await x.saved(CHAIN, "K")
    await x.lose(x.holder("K"))
    await x.right(CHAIN, k)
    assert x.world.counts() == {"D": 1, "K": 1}


@cluster_test()
async def test_registered_twice(x: Cluster) -> None:
    """By two clients, with a load under way: the first stays, with one worker side a worker."""
    first, sides = x.plugin, [x.side(w) for w in x.workers]
    await x.stored(CHAIN, "K")
    x.world.hold("load K")
    (k,) = x.persist(CHAIN, "K")
    await x.loads("K")
    other = await x.connect()
    await other.register_plugin(Resilience(x.store))
    await x.client.register_plugin(Resilience(x.store / "another"))
    assert x.scheduler.plugins[NAME] is first
    assert [x.side(w) for w in x.workers] == sides
    x.world.free()
    await x.right(CHAIN, k)
    await x.lose(x.holder("K"))
    await x.right(CHAIN, k)
    assert not x.world.runs


@cluster_test(install=False)
async def test_registered_by_two_clients_at_once(x: Cluster) -> None:
    """The one that begins first runs, and hears what happens."""
    other = await x.connect()
    await asyncio.gather(x.install(), other.register_plugin(Resilience(x.store)))
    assert x.scheduler.handlers[NAME].__self__ is x.plugin
    (k,) = await x.saved(CHAIN, "K")
    await x.lose(x.holder("K"))
    await x.right(CHAIN, k)
    assert x.world.counts() == {"D": 1, "K": 1}


@cluster_test()
async def test_registered_over_the_first(x: Cluster) -> None:
    """Somebody insists (``idempotent=False``): the first instance stops and the other one takes over (rule 11)."""
    await x.stored(CHAIN, "K")
    first = x.plugin
    second = Resilience(x.store)
    with pytest.warns(UserWarning, match="overwriting"):
        await x.scheduler.register_scheduler_plugin(second, idempotent=False)
    (k,) = x.persist(CHAIN, "K")
    await x.right(CHAIN, k)
    await until(lambda: second._watch is not None and first._watch is None)
    x.plugin = second
    await until(lambda: all(map(x.is_ready, x.workers)))
    x.mark("J")
    (j,) = x.persist({"J": []}, "J")
    await x.done(j)
    await x.durable("J")
    await x.lose(x.holder("J"))
    await x.right({"J": []}, j)
    assert x.world.ran("J") == 1


@cluster_test()
async def test_taken_out_while_it_takes_over(x: Cluster) -> None:
    """The other one is unregistered before it has wholly started: nobody stays behind (seed 801638)."""
    await x.stored(CHAIN, "K")
    second = Resilience(x.store)
    with pytest.warns(UserWarning, match="overwriting"):
        await x.scheduler.register_scheduler_plugin(second, idempotent=False)
    x.plugin._alive()  # as the next message of any worker asks
    await until(lambda: second._watch is not None, what="the other one starts")
    await x.scheduler.unregister_scheduler_plugin(NAME)
    x.plugin = second
    await until(lambda: second._watch is None and NAME not in x.scheduler.handlers, what="it leaves by itself")
    (k,) = x.persist(CHAIN, "K")
    await x.right(CHAIN, k)
    assert x.world.loaded("K") == 0


@cluster_test()
async def test_anything_may_be_logged(x: Cluster) -> None:
    """Users log events of any kind under any topic."""
    x.scheduler.log_event("all", "text")
    x.scheduler.log_event(["all", "resilience"], ["a", "list"])


@cluster_test()
async def test_a_surprise_switches_the_detour_off(x: Cluster) -> None:
    """Once logged, then Dask does what Dask does; the job has right values."""
    x.watch.ticket = lambda ts: 1 / 0  # type: ignore[assignment, method-assign]
    (k,) = x.persist(CHAIN, "K")
    await x.right(CHAIN, k)
    await x.lose(x.holder("K"))
    await x.right(CHAIN, k)
    assert "ZeroDivisionError" in x.watch.recovery_off
    assert len(x.events("recovery-off")) == 1
    x.log.messages.clear()
