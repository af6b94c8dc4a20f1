"""P2P shuffle, merge and rechunk with everything saved, a worker killed at every stage: nothing saved runs again.

The inner parts of a shuffle are handed to the plugin as all else is. It refuses them; Dask starts the shuffle again.
"""

from __future__ import annotations

import pytest

from tests.processes.copies import truncate
from tests.processes.p2p import KINDS, STAGES, consuming, everything_saved, transferring, unpacked, unpacking
from tests.processes.shuffles import Merge, Rechunk, Shuffle


@pytest.fixture
def job(x, request):
    with everything_saved(x, *request.param) as job:
        yield job


def slow(kind, stage):
    return pytest.param((kind,), stage, id=f"{kind.__name__}-{stage.__name__}", marks=pytest.mark.slow)


def fast(kind, stage):
    return pytest.param((kind,), stage, id=f"{kind.__name__}-{stage.__name__}")


FAST = {(Shuffle, unpacking), (Merge, transferring), (Rechunk, unpacked)}


@pytest.mark.parametrize(
    ("job", "stage"),
    [(fast if (kind, stage) in FAST else slow)(kind, stage) for kind in KINDS for stage in STAGES],
    indirect=["job"],
)
def test_kill(job, stage):
    """Values are right, and nothing runs again that was saved before the kill."""
    stage(job)
    saved = job.saved()
    job.x.kill(job.victim)
    job.x.free()
    job.finish()
    job.right()
    assert not job.again(saved)
    if stage in (unpacked, consuming):
        assert set(job.runs.of("transfer").values()) == {1}
    if stage is unpacked:
        (row,) = job.x.incidents()
        assert row["lost"] == row["reloaded"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("job", [(Shuffle, 40)], indirect=True)
def test_kill_in_the_middle_and_again_when_all_is_unpacked(job):
    """The first loss starts the shuffle again from what is stored; the second one reloads outputs, and nothing else."""
    x = job.x
    job.start()
    x.until(lambda: len(job.runs.of("transfer")) >= 20, what="half of the parts are transferred")
    saved = job.runs.outer()
    durable = x.ask(lambda: {str(key) for key, entry in x.watch.ledger.entries.items() if entry.usable})
    x.kill(x.addresses()[0])
    job.finish()
    job.right()
    assert not job.again(saved) & durable
    job.saved()
    x.whole()
    before, loads = job.runs.counts(), x.loads()
    victim = job.holder()
    lost = x.ask(lambda: {str(ts.key) for ts in x.scheduler.workers[victim].has_what if len(ts.who_has) == 1})
    x.kill(victim)
    job.finish()
    job.right()
    assert job.runs.counts() == before
    assert sorted([*loads, *lost]) == x.loads()
    assert lost <= set(job.runs.of("unpack"))


@pytest.mark.parametrize("job", [(Shuffle, 12)], indirect=True)
def test_a_bad_copy_after_the_shuffle_has_started_again(job):
    """An output that was being loaded meanwhile is computed anew, and not on the dead worker that it was pinned to."""
    x = job.x
    x.gate("unpack-0")
    job.start()

    def pinned():
        """Give an output that the shuffle has pinned to the worker that holds it."""
        tasks, entries = x.scheduler.tasks, x.watch.ledger.entries
        for future in job.outputs():
            ts = tasks.get(future.key)
            if ts is not None and ts.who_has and "shuffle_original_restrictions" in (ts.annotations or {}):
                (ws,) = ts.who_has
                if ts.key in entries and entries[ts.key].usable:
                    assert ts.worker_restrictions == {ws.address}
                    return ts.key, ws.address
        return None

    key, victim = x.until(pinned, what="an output is pinned, there, and stored")
    x.hold("load")
    truncate(x.store, x.place(key), None)
    x.kill(victim)
    x.until(lambda: key in x.watch.detour.parked, what="the output is being loaded")
    x.until(lambda: x.log.count("restarted due to stimulus"), what="the shuffle starts again")
    x.free()
    job.finish()
    job.right()
    assert str(key) in x.loads()
    assert job.runs.of("unpack")[str(key)] == 2
    assert x.ask(lambda: victim not in (x.scheduler.tasks[key].worker_restrictions or ()))
