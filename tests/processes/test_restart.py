"""Restarting: the client's restart forgets all and leaves no state; restarted workers lose only what is reloaded."""

from __future__ import annotations

import threading

import pytest
from distributed import wait

from tests.processes.copies import truncate
from tests.processes.jobs import Job


def state(x):
    """Give whatever the plugin still knows of tasks, and workers that it knows and Dask does not, or the other way."""
    watch = x.watch
    return {
        "entries": list(watch.ledger.entries),
        "lives": list(watch.ledger._lives),
        "parked": list(watch.detour.parked),
        "moving": list(watch.detour._moving),
        "readers": list(watch.copies._reader),
        "incidents": list(watch.book.counting),
        "reloaded": list(watch._reloaded),
        "saving": watch.ledger.saving(),
        "workers": set(watch.members._members) ^ set(x.scheduler.workers),
        "tasks": list(x.scheduler.tasks),
    }


def nothing(x):
    """Check that nothing is left."""
    left = {what: value for what, value in x.ask(lambda: state(x)).items() if value}
    assert not left


def saving(x):
    """Hold up saves from now on, and start a job whose partitions all wait for that."""
    x.hold("save")
    job = Job(x, 9, below="efg", above="")
    job.held = job.persist(job.milestone)
    wait(job.futures(), 30)
    x.until(lambda: x.watch.ledger.saving() == 9, what="all partitions are being saved")
    return job


def loading(x, job):
    """Hold up loads from now on, and kill a worker."""
    x.hold("load")
    victim = job.holders()[0]
    job.look([victim])
    x.kill(victim)
    x.until(lambda: set(x.watch.detour.parked) >= {job.milestone_keys()[i] for i in job.lost}, what="they are parked")


def milestones(x, job):
    """Give the stored milestones that a job's copies belong to."""
    return {x.place(key).milestone for key in job.milestone_keys()}


def kill_and_reload(x, *jobs):
    """Kill a worker: what it held of these jobs, which are all that there are, comes from the store."""
    x.durable(sum(job.n for job in jobs))
    victim = jobs[0].holders()[0]
    for job in jobs:
        job.lost.clear()
        job.look([victim])
    before = x.calls.counts()
    x.kill(victim)
    for job in jobs:
        wait(job.futures(), 30)
        job.right()
    assert x.calls.counts() == before
    assert x.incidents()[-1]["reloaded"] == sum(len(job.lost) for job in jobs) > 0


def test_restart_in_the_middle_of_saves_and_loads(x):
    """All futures are cancelled, the plugin knows nothing more, and the same graph is computed anew, all of it."""
    x.install(resume="off")  # else what is stored would be loaded
    job = Job(x, 9, above="")
    job.hold_milestone()
    old = milestones(x, job)
    other = saving(x)
    loading(x, job)
    futures = [*job.futures(), *other.futures()]
    x.client.restart()
    nothing(x)
    assert {future.status for future in futures} == {"cancelled"}
    x.whole()
    x.free()
    loads = x.loads()
    before = x.calls.counts()
    for again in (job, other):
        again.hold_milestone()
        again.right()
    mine = {f"{name}-{i}" for name in "abcefg" for i in range(9)}
    assert {name: n - before[name] for name, n in x.calls.counts().items()} == dict.fromkeys(mine, 1)
    assert x.loads() == loads
    assert not milestones(x, job) & old
    kill_and_reload(x, job, other)
    del futures


@pytest.mark.slow
def test_restart_while_nothing_goes_on(x):
    """A client that restarts an idle cluster, and one without futures, leaves the plugin at work."""
    x.install()
    x.client.restart()
    nothing(x)
    x.whole()
    assert all(row["protected"] for row in x.handle.workers())
    job = Job(x, 9, above="")
    job.hold_milestone()
    kill_and_reload(x, job)


@pytest.mark.slow
def test_restart_while_a_copy_is_read_a_second_time(x):
    """What the second reader would have said is of no interest any more, and the new life has copies of its own."""
    x.install(resume="off")
    job = Job(x, 9, above="")
    job.hold_milestone()
    loading(x, job)
    truncate(x.store, x.place(job.milestone_keys()[min(job.lost)]), None)
    for call in ("create", "link"):
        x.hold(call)  # of the tombstone
    x.free("load")
    x.until(lambda: x.watch.copies._reader, what="a copy is read a second time")
    x.client.restart()
    nothing(x)
    x.free()
    x.whole()
    job.hold_milestone()
    job.right()
    assert not x.tombstones()
    kill_and_reload(x, job)


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "after"])
def test_uninstalling_while_workers_restart(x, when):
    """The client's restart, and the plugin leaving meanwhile: nothing is left, and it can be installed again."""
    x.install()
    job = Job(x, 9, above="")
    job.hold_milestone()
    saving(x)
    loading(x, job)
    restarting = threading.Thread(target=x.client.restart)
    if when == "before":
        restarting.start()
        x.until(lambda: not x.scheduler.tasks, what="every task is forgotten")
        x.handle.uninstall(wait=0)
    else:
        leaving = threading.Thread(target=x.handle.uninstall, kwargs={"wait": 5})
        leaving.start()
        detour = x.watch.detour
        x.until(lambda: not detour.on, what="the plugin is leaving")
        restarting.start()
        leaving.join(30)
        assert not leaving.is_alive()
    x.check_undone()
    restarting.join(30)
    assert not restarting.is_alive()
    x.free()
    x.whole()
    x.install()
    x.whole()
    again = Job(x, 9, above="")
    again.hold_milestone()
    kill_and_reload(x, again)


@pytest.mark.slow
def test_installing_while_workers_restart(x):
    """Workers that come back meanwhile are protected like all others."""
    restarting = threading.Thread(target=x.client.restart)
    restarting.start()
    x.until(lambda: len(x.scheduler.workers) < x.n, what="workers are gone")
    x.install()
    restarting.join(30)
    assert not restarting.is_alive()
    x.whole()
    assert [row["protected"] for row in x.handle.workers()] == [True] * x.n
    job = Job(x, 9, above="")
    job.hold_milestone()
    kill_and_reload(x, job)


@pytest.mark.parametrize("busy", ["durable", "saving", "loading"])
def test_cancel_and_submit_again(x, busy):
    """A key that was cancelled is computed anew, whatever was known of it, and its new copy is used from then on."""
    x.install(resume="off")  # else it would be loaded
    job = Job(x, 9, above="")
    if busy == "saving":
        job = saving(x)
    else:
        job.hold_milestone()
    if busy == "loading":
        loading(x, job)
    i = min(job.lost, default=0)
    key = job.milestone_keys()[i]
    (future,) = [future for future in job.futures() if future.key == key]
    x.client.cancel([future])
    x.until(lambda: key not in x.scheduler.tasks, what="it is forgotten")
    assert x.ask(lambda: key not in x.watch.ledger.entries and key not in x.watch.detour.parked)
    loads = x.loads().count(str(key))
    x.free()
    job.held = job.persist(job.milestone)
    wait(job.futures(), 30)
    job.right()
    x.durable(9)
    assert job.repeated() == {name: {i} for name in job.below}
    assert x.loads().count(str(key)) == loads
    kill_and_reload(x, job)


@pytest.mark.parametrize("which", ["one", pytest.param("all", marks=pytest.mark.slow)])
def test_restart_workers(x, which):
    """What was durable on restarted workers is reloaded, what was still being saved is computed anew, and no more."""
    x.install()
    job = Job(x, 9, above="")
    job.hold_milestone()
    other = saving(x)
    addresses = x.addresses()[: 1 if which == "one" else None]
    for each in (job, other):
        each.look(addresses)
    x.client.restart_workers(addresses)
    x.free()
    for each in (job, other):
        wait(each.futures(), 30)
        each.right()
    x.durable(18)
    # Where all go they do so one after the other, and what the first ones lost begins on those that go after them.
    again = job.repeated(2 if which == "one" else 3)
    assert again == {name: other.lost for name in "efg" if other.lost}
    assert {str(job.milestone_keys()[i]) for i in job.lost} == set(x.loads())
    assert x.ask(lambda: not x.watch.detour.parked and not x.watch.copies._reader)
    x.whole()
    assert x.ask(lambda: set(x.watch.members._members) == set(x.scheduler.workers))
    kill_and_reload(x, job, other)
