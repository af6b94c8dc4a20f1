"""Bad luck with the store: the job ends with right values, saving switches itself off, and memory does not grow."""

from __future__ import annotations

import errno
import shutil
import subprocess
import time

import pytest
from distributed import wait

from dask_resilient.internals import versions
from tests.processes.jobs import Job
from tests.support.waiting import wait_until

LIMIT = 2**31 * 0.0005
"""Bytes that may be staged on a worker of 2 GiB, with the setting below."""


def staged(dask_worker):
    """Give the bytes that are staged on a worker."""
    side = dask_worker.plugins["resilience"].side
    return 0 if side is None or side.saver is None else side.saver.staged


def one_warning_a_worker(x):
    """Check that saving is off everywhere, said once for each worker."""
    x.until(lambda: not any(m.protected for m in x.watch.members._members.values()), what="saving is off everywhere")
    assert x.log.count("is unprotected") == x.n
    events = [event for _, event in x.scheduler.get_events("resilience") if event["run"] == x.plugin.run]
    assert len([event for event in events if event["action"] == "unprotected"]) == x.n


def kill_and_judge(x, job):
    """Kill a worker: what had no copy that can be read is computed anew, and every value is right."""
    victim = job.holders()[0]
    job.look([victim])
    assert job.lost
    good = x.ask(
        lambda: {
            i
            for i, key in enumerate(job.milestone_keys())
            if key in x.watch.ledger.entries and x.watch.ledger.entries[key].usable
        }
    )
    x.kill(victim)
    wait(job.futures(), 40)
    job.right()
    return job.lost - good


@pytest.fixture
def small_disk(tmp_path):
    """Give a file system of 1 MB, or None where this process may not mount one."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)]
    mounted = (
        shutil.which("mount") is not None and subprocess.run(mount, capture_output=True, check=False).returncode == 0
    )
    yield disk if mounted else None
    if mounted:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_full_disk(x, small_disk):
    """ENOSPC of a disk that fills up: what fitted stays good, what did not is computed anew."""
    if small_disk is not None:
        x.store = small_disk / "store"
    x.install()
    job = Job(x, 12, above="", size=60_000)
    if small_disk is None:
        x.gate("c")
        job.held = job.persist(job.milestone)
        job.everyone_runs("c")
        x.fail("write", errno.ENOSPC)
        x.open_gate("c")
    else:
        job.held = job.persist(job.milestone)
    wait(job.futures(), 30)
    job.right()
    one_warning_a_worker(x)
    x.until(lambda: not x.watch.ledger.saving(), what="no save is under way")
    assert set(x.client.run(staged).values()) == {0}
    states = {row["state"] for row in x.handle.checkpoints()}
    assert states & {"failed", "not saved"}
    again = kill_and_judge(x, job)
    assert job.repeated() == (dict.fromkeys("abc", again) if again else {})


def test_a_store_whose_calls_do_not_come_back(x):
    """Every write hangs: the job is not held up, saving is off soon, what is staged is bounded and then let go."""
    x.install(save__memory=0.0005, save__stuck=1, leave=1)
    x.hold("write")
    job = Job(x, 24, above="", size=40_000)
    begun = time.monotonic()
    job.held = job.persist(job.milestone)
    most = 0
    while not all(future.done() for future in job.futures()):
        most = max(most, *x.client.run(staged).values())
        assert time.monotonic() - begun < 20
    assert time.monotonic() - begun < 20
    assert 0 < most <= LIMIT
    job.right()
    one_warning_a_worker(x)
    # Only the write that hangs still holds its partition.
    assert all(size <= 40_000 * 8 for size in x.client.run(staged).values())
    assert {row["state"] for row in x.handle.checkpoints()} <= {"not saved", "failed", "saving"}
    x.free()
    x.until(lambda: not x.watch.ledger.saving(), what="no save is under way")
    wait_until(lambda: set(x.client.run(staged).values()) == {0}, what="what was being written is let go")


def test_a_store_that_is_gone_in_mid_run(x):
    """rm -rf: what was lost is computed anew, saving is off, and nothing is made where the store was."""
    x.install()
    job = Job(x, 9, above="")
    job.hold_milestone()
    shutil.rmtree(x.store)
    victim = job.holders()[0]
    job.look([victim])
    x.kill(victim)
    wait(job.futures(), 40)
    job.right()
    assert job.repeated() == dict.fromkeys("abc", job.lost)
    more = Job(x, 9, above="")
    more.held = more.persist(more.milestone)
    wait(more.futures(), 30)
    more.right()
    x.until(lambda: not x.watch.ledger.saving(), what="no save is under way")
    assert not x.store.exists()
    assert all(row["reason"] for row in x.handle.checkpoints() if row["state"] != "durable")
    assert "NOT saved" in str(x.handle.report())
    x.handle.__exit__(None, None, None)
    assert x.log.count("the run is not marked complete") == 1
    x.check_undone()


@pytest.mark.slow
def test_a_store_that_is_away_for_a_while(x):
    """Nothing is revoked while it is away; once it is back, its copies are used again."""
    x.install(recover__pause=1)
    job = Job(x, 9, above="")
    job.hold_milestone()
    away = x.store.with_name("away")
    x.store.rename(away)
    victim = job.holders()[0]
    job.look([victim])
    x.kill(victim)
    wait(job.futures(), 40)
    x.whole()
    assert job.repeated() == dict.fromkeys("abc", job.lost)
    away.rename(x.store)
    assert not x.tombstones()
    x.until(lambda: not x.watch.reloading.paused(time.time()), what="the pause is over")
    first, job.lost = job.lost, set()
    # A worker that joined while the store was away has no store: take one that had.
    protected = {row["worker"] for row in x.handle.workers() if row["protected"]}
    victim = next(address for address in job.holders() if address in protected)
    job.look([victim])
    x.kill(victim)
    wait(job.futures(), 40)
    job.right()
    assert job.repeated() == dict.fromkeys("abc", first)
    rows = x.incidents()
    assert rows[-1]["reloaded"] == len(job.lost)


def test_an_unsupported_dask(x, monkeypatch):
    """Outside of the tested range: said once, partitions are saved and reported, recovery is left to Dask."""
    monkeypatch.setattr(versions, "TESTED", ("2000.1.0", "2000.2.0"))
    x.install()
    assert x.log.count("is outside of the tested range") == 1
    assert "_TRANSITIONS_TABLE" not in x.scheduler.__dict__
    job = Job(x, 9, above="")
    job.hold_milestone()
    assert "Recovery is left to Dask" in str(x.handle.report())
    victim = job.holders()[0]
    job.look([victim])
    x.kill(victim)
    wait(job.futures(), 40)
    job.right()
    assert job.repeated() == dict.fromkeys("abc", job.lost)
    (row,) = x.incidents()
    assert (row["lost"], row["reloaded"]) == (len(job.lost), 0)
    assert row["recomputed"] >= len(job.lost)
