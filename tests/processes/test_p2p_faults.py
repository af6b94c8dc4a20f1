"""A P2P shuffle with everything saved, and worse than one killed worker: all lost, retired, restarted, forgotten."""

from __future__ import annotations

import random

import pytest

from tests.processes.p2p import Job, consuming, everything_saved, transferring, unpacking
from tests.processes.shuffles import Merge, Rechunk, Shuffle
from tests.processes.test_restart import nothing

pytestmark = pytest.mark.slow


@pytest.fixture
def job(x, request):
    with everything_saved(x, *request.param) as job:
        yield job


def all_lost(job):
    """Kill every worker."""
    job.x.kill(*job.x.addresses())


def restarted(job):
    """Have the nanny restart the worker."""
    job.x.free()
    job.x.client.restart_workers([job.victim])


def retired(job):
    """Have the worker move what it holds, and leave for good."""
    job.x.n -= 1
    job.x.worn = True
    job.x.free()
    job.x.client.retire_workers([job.victim])


def twice(job):
    """Kill the worker, and another one as soon as the shuffle has started again."""
    job.x.kill(job.victim)
    job.x.kill(next(address for address in job.x.addresses() if address != job.victim))


@pytest.mark.parametrize(
    ("job", "stage"),
    [
        pytest.param((Shuffle,), transferring, id="shuffle-transferring"),
        pytest.param((Shuffle,), consuming, id="shuffle-consuming"),
        pytest.param((Merge,), unpacking, id="merge-unpacking"),
    ],
    indirect=["job"],
)
@pytest.mark.parametrize("fault", [all_lost, restarted, retired, twice])
def test_fault(job, stage, fault):
    """Values are right, and nothing runs again that was saved before."""
    stage(job)
    saved = job.saved()
    fault(job)
    job.x.free()
    job.finish()
    job.right()
    assert not job.again(saved)


@pytest.mark.parametrize("job", [(Shuffle,), (Rechunk,)], indirect=True, ids=["shuffle", "rechunk"])
@pytest.mark.parametrize("stage", [transferring, unpacking])
def test_the_clients_restart(job, stage):
    """Nothing is known any more, and the same graph is computed anew: every part of it."""
    x = job.x
    stage(job)
    before = job.saved()
    x.client.restart()
    nothing(x)
    x.free()
    x.whole()
    loads = x.loads()
    job.start()
    job.finish()
    job.right()
    assert x.loads() == loads
    after = job.runs.outer()
    assert all(after[key] > n for key, n in before.items())


@pytest.mark.parametrize("job", [(Merge,)], indirect=True, ids=["merge"])
@pytest.mark.parametrize("stage", [transferring, unpacking])
def test_uninstalling(job, stage):
    """Outputs that are being loaded are taken off the detour, and come out of the shuffle that has started again."""
    x = job.x
    stage(job)
    job.saved()
    x.hold("load")
    x.kill(job.victim)
    x.until(lambda: x.watch.detour.parked, what="something is being loaded")
    assert x.handle.uninstall(wait=0.1) is False
    x.check_undone()
    x.free()
    job.finish()
    job.right()
    x.install()
    other = Job(x, type(job.op), 7)
    other.start()
    other.finish()
    other.right()


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("x", [{"threads": 2, "distributed.scheduler.work-stealing": True}], indirect=True)
@pytest.mark.parametrize("kind", [Shuffle, Merge, Rechunk])
def test_kills_at_random_moments(x, kind, seed):
    """Four kills at random moments of an operation: values are right, and nothing durable runs again."""
    dice = random.Random(seed)
    with everything_saved(x, kind, 16) as job:
        seen = []
        job.start()
        total = {Shuffle: 16 * 5, Merge: 16 * 9, Rechunk: 16 * 3}[kind]
        for moment in sorted(dice.sample(range(5, total), 4)):
            x.until(lambda moment=moment: job.runs.counts().total() >= moment or finished(job), what="the moment comes")
            addresses = x.addresses()
            saved = job.runs.outer()
            durable = x.ask(lambda: {str(key) for key, entry in x.watch.ledger.entries.items() if entry.usable})
            seen.append((saved, durable))
            if addresses:
                x.kill(dice.choice(addresses))
        job.finish()
        right_or_dasks_own(x, job)
        for saved, durable in seen:
            assert not job.again(saved) & durable


def right_or_dasks_own(x, job: Job) -> None:
    """Check the values, or that the operation failed by itself.

    Dask's own: a barrier that is on its way through the workers while one of them is lost ends as an error, and that is
    taken for the error of the barrier which was restarted meanwhile. No value is wrong.
    """
    errors = [future.exception() for future in job.outputs() if future.status == "error"]
    if not errors:
        job.right()
        return
    assert all("failed during barrier phase" in str(error) for error in errors), errors
    assert any("broadcast to" in message for message in x.log.messages)


def finished(job: Job) -> bool:
    return all(future.done() for future in job.outputs())
