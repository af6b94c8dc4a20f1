"""What a living run says in the store: that it lives, what it uses, what its milestones are, and that it has ended."""

from __future__ import annotations

import functools
import json
from typing import Any

import dask.array as da
import pytest

import dask_resilient as dr
from dask_resilient.core.garbage import EXPIRY, GRACE
from dask_resilient.core.milestones import loads_milestone
from dask_resilient.errors import StoreError
from dask_resilient.plugin import NAME, Resilience
from dask_resilient.scheduler import lease as lease_module
from dask_resilient.store import open_archive
from dask_resilient.store.garbage import Collector
from dask_resilient.store.leases import clock, leases
from tests.store.collecting import age
from tests.support.cluster import Cluster, cluster_test
from tests.support.waiting import until

CHAIN = {"D": [], "K": ["D"]}


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let leases be renewed all the time."""
    monkeypatch.setattr(lease_module, "RENEWAL", 0.02)


def lease(x: Cluster) -> dict[str, Any]:
    """Give what the lease of the run says; nothing where there is none yet."""
    try:
        return dict(json.loads((x.store / "runs" / x.plugin.run / "lease.json").read_text()))
    except FileNotFoundError:
        return {}


def stand(x: Cluster) -> Any:
    """Give how a collector of garbage sees the run."""
    archive = open_archive(x.store)
    return leases(archive.calls, archive.root, clock(archive.calls, archive.root))[x.plugin.run]


async def marked(x: Cluster, name: str = "clean", n: int = 4, **kwargs: Any) -> Any:
    """Compute and save a real milestone, and give its futures."""
    collection = dr.checkpoint(da.arange(2 * n, chunks=2) + len(name), name, **kwargs)
    held = x.client.persist(collection)
    await x.durable(*held.__dask_keys__())
    return held


def descriptions(x: Cluster) -> dict[str, Any]:
    """Give the described milestones by m."""
    return {path.stem: loads_milestone(path.read_bytes(), path.stem) for path in x.store.glob("milestones/*.json")}


# -- the lease ---------------------------------------------------------------------------------------------------------


@cluster_test()
async def test_lease_from_the_start(x: Cluster) -> None:
    """A run has its lease as soon as it is installed, before it uses anything."""
    await until(lambda: lease(x), what="the lease is written")
    assert lease(x)["run"] == x.plugin.run
    assert lease(x)["milestones"] == []
    assert not lease(x)["ended"]
    found = stand(x)
    assert (found.live, found.complete, found.milestones) == (True, False, frozenset())


@cluster_test()
async def test_lease_names_what_lives(x: Cluster, often: None) -> None:
    """What other runs know it names to the end; what is for this run only as long as a key of it is known."""
    held = await marked(x)
    (k,) = await x.saved(CHAIN, "K")
    described = set(descriptions(x))
    own = x.place("K").milestone
    assert len(described) == 1
    assert own not in described
    await until(lambda: set(lease(x)["milestones"]) == described | {own}, what="both are named")
    assert stand(x).milestones == described | {own}
    k.release()
    await until(lambda: set(lease(x)["milestones"]) == described, what="the key is let go of")
    del held
    await until(lambda: not x.scheduler.tasks)
    renewed = lease(x)["renewed"]
    await until(lambda: lease(x)["renewed"] > renewed, what="it is renewed")
    assert set(lease(x)["milestones"]) == described


@cluster_test()
async def test_lease_is_renewed(x: Cluster, often: None) -> None:
    """A lease is renewed while nothing happens; one that looks expired lives again."""
    await until(lambda: lease(x), what="the lease is written")
    renewed = lease(x)["renewed"]
    await until(lambda: lease(x)["renewed"] > renewed, what="it is renewed")
    age(str(x.store), EXPIRY + 60)
    await until(lambda: stand(x).live, what="it is renewed again")
    assert len(list((x.store / "runs" / x.plugin.run).glob("lease*"))) == 1


@cluster_test(check=False)
async def test_lease_that_cannot_be_renewed(x: Cluster, often: None) -> None:
    """A store that fails costs a warning, not the job; later the lease is renewed again."""
    store = x.plugin._queue.store
    assert store is not None

    def fail(*args: object, **kwargs: object) -> None:
        raise StoreError(5, "no such luck")

    renew, store.renew = store.renew, fail  # type: ignore[method-assign]
    await until(lambda: any("no such luck" in m for m in x.log.messages), what="the failure is said")
    (k,) = await x.saved(CHAIN, "K")
    store.renew = renew  # type: ignore[method-assign]
    before = lease(x).get("renewed", 0.0)
    await until(lambda: lease(x).get("renewed", 0.0) > before, what="it is renewed again")
    k.release()


@cluster_test(check=False)
async def test_lease_ends_with_uninstall(x: Cluster, often: None) -> None:
    """Leaving ends the lease at once, with what was used last, and it is not renewed any more."""
    held = await marked(x)
    mine = x.plugin._lease
    assert mine is not None
    await x.plugin.uninstall(wait=5)
    await until(lambda: lease(x)["ended"], what="the lease has ended")
    assert not mine._timer.is_running()
    found = stand(x)
    assert (found.live, found.complete, found.milestones) == (False, False, set(descriptions(x)))
    assert x.plugin._lease is None
    del held


@cluster_test(check=False)
async def test_lease_ends_with_the_scheduler(x: Cluster) -> None:
    """A scheduler that closes ends the lease."""
    await x.scheduler.close()
    await until(lambda: lease(x).get("ended"), what="the lease has ended")
    assert not stand(x).live


@cluster_test(check=False)
async def test_two_lives(x: Cluster) -> None:
    """A second life of the plugin is another run: the first has ended, the second lives."""
    first = x.plugin.run
    await x.plugin.uninstall(wait=5)
    await x.install()
    assert x.plugin.run != first
    await until(lambda: lease(x), what="the second lease is written")
    archive = open_archive(x.store)
    now = clock(archive.calls, archive.root)
    await until(lambda: not leases(archive.calls, archive.root, now)[first].live, what="the first has ended")
    assert stand(x).live


@cluster_test(check=False, install=False)
async def test_no_lease_without_a_store(x: Cluster) -> None:
    """Where the store cannot be used there is no lease, and leaving is quiet."""
    x.store.write_text("no directory")
    await x.client.register_plugin(Resilience(x.store))
    x.plugin = x.scheduler.plugins[NAME]
    assert x.plugin._lease is None
    assert any("nothing is saved" in message for message in x.log.messages)
    await x.plugin.uninstall(wait=1)


# -- milestones --------------------------------------------------------------------------------------------------------


@cluster_test(workers=3)
async def test_description_is_written_once(x: Cluster) -> None:
    """Of several workers that save one milestone, one describes it; that stands, and says whose run it was."""
    held = await marked(x, n=9, version="v1", keep=True)
    ((m, found),) = descriptions(x).items()
    assert (found.milestone, found.run) == (m, x.plugin.run)
    described = found.description
    assert (described.name, described.kind, described.npartitions) == ("clean", "array", 9)
    assert (described.keep, described.version) == (True, "v1")
    assert described.chunks == ((2,) * 9,)
    assert {path.parent.name for path in x.store.glob("commit/*/*.json")} == {m}
    assert not list(x.store.glob("milestones/.*"))
    del held


@cluster_test(workers=1, check=False)
async def test_description_comes_before_the_first_receipt(x: Cluster) -> None:
    """A receipt without description is one for the run only; so the description is there before the first one."""
    store = x.side(x.workers[0]).store
    order: list[str] = []

    def noted(name: str, call: Any, *args: Any) -> Any:
        order.append(name)
        return call(*args)

    for name in ("declare", "write"):
        setattr(store, name, functools.partial(noted, name, getattr(store, name)))
    held = await marked(x)
    assert order == ["declare", "write", "write", "write", "write"]
    del held


@cluster_test(workers=1, check=False)
async def test_nothing_is_saved_without_description(x: Cluster) -> None:
    """Where the description cannot be written no receipt is: not saved, with the reason; the values are right."""

    def fail(milestone: object) -> None:
        raise StoreError(28, "No space left on device")

    x.side(x.workers[0]).store.declare = fail
    held = x.client.persist(dr.checkpoint(da.arange(8, chunks=2), "clean"))
    await until(lambda: all(e.reason for e in x.watch.ledger.entries.values()) and x.watch.ledger.entries)
    assert all("No space left" in e.reason or "switched off" in e.reason for e in x.watch.ledger.entries.values())
    assert not list(x.store.glob("commit/*/*.json"))
    assert (await x.client.compute(held.sum())) == 28


@cluster_test()
async def test_receipts_say_what_they_are_for(x: Cluster) -> None:
    """A receipt of a milestone is no temporary one; that of another key is."""
    held = await marked(x)
    (k,) = await x.saved(CHAIN, "K")
    archive = open_archive(x.store)
    temporary = {
        m: {receipt.temporary for _, receipt in archive.receipts(m)}  # type: ignore[union-attr]
        for m in (path.name for path in x.store.glob("commit/*"))
    }
    (m,) = descriptions(x)
    assert temporary == {m: {False}, x.place("K").milestone: {True}}
    k.release()
    del held


@cluster_test(check=False)
async def test_complete_is_a_mark(x: Cluster) -> None:
    """`complete` marks the run and deletes nothing; the run lives on until it leaves."""
    held = await marked(x)
    assert await x.plugin._rpc(method="complete")
    assert await x.plugin._rpc(method="complete"), "twice is no error"
    found = stand(x)
    assert (found.live, found.complete) == (True, True)
    await x.plugin.uninstall(wait=5)
    await until(lambda: not stand(x).live, what="the run has ended")
    assert stand(x).complete
    assert len(list(x.store.glob("commit/*/*.json"))) == 4
    del held


# -- garbage -----------------------------------------------------------------------------------------------------------


def collect(x: Cluster) -> list[str]:
    """Collect what is garbage now."""
    collector = Collector(open_archive(x.store), delete=True, idle=0.0)
    return [each.path for m in collector.milestones() for each in collector.collect(m, GRACE)]


@pytest.mark.parametrize("complete", [True, False])
@cluster_test(check=False)
async def test_a_whole_life(x: Cluster, often: None, complete: bool) -> None:
    """Nothing of a run goes while it lives; then what was for it only, and what is marked complete, but not `keep`."""
    held = [await marked(x), await marked(x, "kept", keep=True)]
    (k,) = await x.saved(CHAIN, "K")
    own = x.place("K").milestone
    named = {found.description.name: m for m, found in descriptions(x).items()}
    await until(lambda: len(lease(x)["milestones"]) == 3, what="all are named")
    age(str(x.store), GRACE + 60)
    await until(lambda: stand(x).live, what="the lease is renewed")
    assert not collect(x)
    await x.lose(x.holder("K"))
    assert await x.value(k) >= 0
    assert x.world.loaded("K") == 1, "what collectors leave is still good"
    if complete:
        await x.plugin._rpc(method="complete")
    await x.plugin.uninstall(wait=5)
    await until(lambda: not stand(x).live, what="the run has ended")
    age(str(x.store), GRACE + 60)
    gone = {path.split("/")[1].removesuffix(".json") for path in collect(x)}
    assert gone == ({own, named["clean"]} if complete else {own})
    assert open_archive(x.store).missing(open_archive(x.store).milestone(named["kept"])).count == 0
    del held
