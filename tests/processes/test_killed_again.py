"""The nanny's restarts in a loop: the same worker is killed five times, in the middle of saving."""

from __future__ import annotations

import random

import pytest
from distributed import wait

from tests.processes.jobs import Job
from tests.processes.test_restart import kill_and_reload

MOMENTS = ("create", "write", "fdatasync", "link", "fsync_directory")
"""System calls of a save, in their order."""


@pytest.mark.slow
def test_a_worker_that_is_killed_in_every_call_of_a_save(x):
    """The same worker dies five times, each time in another system call of a save: what was not durable runs again."""
    x.install()
    jobs = []
    for n, call in enumerate(MOMENTS, 1):
        x.hold(f"{call}@1")
        job = Job(x, 9, above="")
        jobs.append(job)
        job.held = job.persist(job.milestone)
        wait(job.futures(), 30)
        victim = next(address for address in x.addresses() if x.name(address) == "1")
        x.until(lambda victim=victim: stuck(x, victim), what="only its saves are not durable")
        job.look([victim])
        assert job.lost
        x.kill(victim)
        x.free()
        wait([future for each in jobs for future in each.futures()], 40)
        x.whole()
        x.durable(9 * n)
    for job in jobs:
        job.right()
    extra = 3 * sum(len(job.lost) for job in jobs)
    assert x.calls.total() == 5 * 27 + extra
    assert not x.tombstones()
    kill_and_reload(x, *jobs)


def stuck(x, victim):
    """Say whether all that is still being saved is on this worker."""
    entries = x.watch.ledger.entries.values()
    there = [entry.worker == victim for entry in entries if not entry.usable]
    return bool(there) and all(there) and x.watch.ledger.saving() == len(there)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_a_worker_that_is_killed_again_and_again(x, seed):
    """The same worker dies five times, at random moments of a job: nothing that was durable runs again."""
    x.install()
    job = Job(x, 60, above="", size=20_000)
    job.held = job.persist(job.milestone)
    keys = job.milestone_keys()
    seen = []
    for moment in sorted(random.Random(seed).sample(range(3, 45), 5)):
        x.durable(moment)
        x.until(lambda: "1" in {str(ws.name) for ws in x.scheduler.workers.values()}, what="the worker is back")
        durable = x.ask(lambda: {i for i, key in enumerate(keys) if usable(x, key)})
        seen.append((durable, x.calls.counts()))
        x.kill(next(address for address in x.addresses() if x.name(address) == "1"))
    wait(job.futures(), 60)
    x.durable(60)
    x.whole()
    job.right()
    after = x.calls.counts()
    for durable, before in seen:
        assert not {i for i in durable if after[f"c-{i}"] != before[f"c-{i}"]}
    assert not x.tombstones()


def usable(x, key):
    entry = x.watch.ledger.entries.get(key)
    return entry is not None and entry.usable
