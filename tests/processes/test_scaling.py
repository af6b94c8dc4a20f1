"""Scaling down and up, by hand and by itself: what a worker takes with it is reloaded, not recomputed."""

from __future__ import annotations

import pytest
from distributed import Status, wait

from dask_resilient.plugin import NAME
from tests.processes.jobs import Job
from tests.processes.test_restart import kill_and_reload

OWN = {"workers": 3, "distributed.adaptive.interval": "100ms", "distributed.adaptive.wait-count": 1}
"""Scaling gives workers new names, so these tests share no cluster with others."""

pytestmark = [pytest.mark.slow, pytest.mark.parametrize("x", [OWN], indirect=True)]


def scale(x, n):
    """Scale and wait until it is so, and the plugin knows it."""
    x.cluster.scale(n)
    x.whole(n)
    # A nanny whose worker is killed before it has heard of its start takes that for a failure, and gives up.
    x.until(lambda: [nanny.status for nanny in x.cluster.workers.values()] == [Status.running] * n, what="nannies know")
    x.until(lambda: set(x.watch.members._members) == set(x.scheduler.workers), what="the plugin knows the same workers")
    assert all(row["protected"] for row in x.handle.workers())


def test_to_one_and_back(x):
    """Dask closes the workers without moving what they hold: that is reloaded, and nothing runs again."""
    x.install()
    job = Job(x, 9, above="")
    job.hold_milestone()
    tasks = x.scheduler.tasks
    held = x.ask(lambda: {key: {ws.address for ws in tasks[key].who_has} for key in job.milestone_keys()})
    scale(x, 1)
    (left,) = x.addresses()
    wait(job.futures(), 30)
    job.right()
    scale(x, 3)
    job.right()
    assert job.repeated() == {}
    loads = x.loads()
    assert set(loads) == {str(key) for key, holders in held.items() if left not in holders}
    # The workers leave one after the other: a load may have been given to the next that leaves.
    assert all(loads.count(key) <= 2 for key in loads)
    x.kill(*x.addresses())
    wait(job.futures(), 30)
    job.right()
    assert job.repeated() == {}


def test_to_none_and_back(x):
    """With the last worker everything goes, and comes from the store when there are workers again."""
    x.install()
    job = Job(x, 9, above="")
    job.hold_milestone()
    scale(x, 0)
    scale(x, 3)
    wait(job.futures(), 30)
    job.right()
    assert job.repeated() == {}
    loads = x.loads()
    assert len(set(loads)) == 9
    assert all(loads.count(key) <= 3 for key in loads)  # see above
    kill_and_reload(x, job)


def test_down_in_the_middle_of_saves_and_loads(x):
    """Workers leave with saves and loads under way: right values, nothing durable runs again, nothing is left."""
    x.install()
    job = Job(x, 9, above="")
    job.hold_milestone()
    x.hold("save")
    other = Job(x, 9, below="efg", above="")
    other.held = other.persist(other.milestone)
    wait(other.futures(), 30)
    x.until(lambda: x.watch.ledger.saving() == 9)
    x.hold("load")
    victim = job.holders()[0]
    job.look([victim])
    x.kill(victim)
    x.until(lambda: set(x.watch.detour.parked) >= {job.milestone_keys()[i] for i in job.lost}, what="they are parked")
    x.cluster.scale(1)
    x.free()
    for each in (job, other):
        wait(each.futures(), 60)
        each.right()
    assert not set(job.repeated(3)) & set(job.below)
    scale(x, 3)
    kill_and_reload(x, job, other)


def adapted(x):
    """Give a job whose milestone is held and durable, and what scales the cluster between one and three workers."""
    x.install()
    x.cluster.adapt(minimum=3, maximum=3)
    job = Job(x, 12, above="")
    x.gate("c")
    job.held = job.persist(job.milestone)
    x.until(lambda: len(x.scheduler.workers) == 3, what="it scales up")
    x.open_gate("c")
    wait(job.futures(), 60)
    x.durable(12)  # a worker that retires takes saves that are under way with it
    return job, x.cluster.adapt(minimum=1, maximum=3)


def test_adaptive(x):
    """Waves of work over a milestone, and between them all workers but one retire: right, and nothing runs twice."""
    job, adaptive = adapted(x)
    try:
        for name in "de":
            x.until(lambda: len(x.scheduler.workers) == 1, what="it scales down")
            x.gate(name)
            wave = job.then(job.milestone, name)
            held = job.persist(wave)
            x.until(lambda: len(x.scheduler.workers) == 3, what="it scales up")
            x.open_gate(name)
            wait(held, 60)
            job.right(held, "abc" + name)
            del held, wave
        assert job.repeated() == {}
    finally:
        adaptive.stop()
    scale(x, 3)
    assert NAME in x.scheduler.plugins
    kill_and_reload(x, job)


def test_adaptive_where_workers_are_killed(x):
    """Workers come, go and die: what is lost is reloaded."""
    job, adaptive = adapted(x)
    try:
        x.until(lambda: len(x.scheduler.workers) == 1, what="it scales down")
        x.kill(*x.addresses())
        wait(job.futures(), 60)
        job.right()
        assert job.repeated() == {}
    finally:
        adaptive.stop()
    scale(x, 3)
    kill_and_reload(x, job)
