"""What users asked for, by their own scenarios: only what was lost comes back, and only once."""

from __future__ import annotations

import threading
import time

import pytest
from distributed import Client, wait

import dask_resilient as dr
from dask_resilient.errors import ResilienceWarning
from dask_resilient.plugin import NAME, Resilience
from dask_resilient.scheduler import queue as queue_module
from tests.processes.jobs import Job

EVENLY = {"workers": 2, "distributed.scheduler.worker-saturation": "inf"}


@pytest.mark.parametrize("x", [EVENLY], indirect=True)
def test_saved_results_are_reloaded_and_no_function_runs_again(x):
    """20 chains of three steps, the last one saved, one of two workers killed: 10 reloaded, 0 recomputed."""
    x.install()
    job = Job(x, 20, above="")
    job.hold_milestone()
    victim = job.holders()[0]
    job.look([victim])
    assert len(job.lost) == 10
    x.kill(victim)
    wait(job.futures(), 30)
    job.right()
    assert job.repeated() == {}
    (row,) = x.incidents()
    assert (row["lost"], row["reloaded"], row["recomputed"]) == (10, 10, 0)
    assert "10 stored partitions came back from the store and 0 finished tasks ran again" in " ".join(
        str(x.handle.report()).split()
    )


@pytest.mark.slow
@pytest.mark.parametrize("x", [EVENLY], indirect=True)
@pytest.mark.parametrize("installed", [False, True], ids=["plain Dask", "installed"])
def test_with_nothing_saved_it_costs_what_plain_dask_costs(x, installed):
    """20 chains of three steps, nothing saved, one of two workers killed: 30 functions run again, as without us."""
    if installed:
        x.install()
    job = Job(x, 20, above="", mark=False)
    job.held = job.persist(job.milestone)
    wait(job.futures(), 30)
    victim = job.holders()[0]
    job.look([victim])
    x.kill(victim)
    wait(job.futures(), 30)
    job.right()
    assert job.repeated() == dict.fromkeys("abc", job.lost)
    assert x.calls.total() == 60 + 30


def test_a_milestone_holds_through_two_kills(x):
    """A worker dies above the milestone, and another one after that: nothing below runs again, nothing is deleted."""
    x.install()
    job = Job(x, 16)
    job.hold_consumers()
    receipts = sorted(x.store.glob("commit/*/*.json"))
    for _ in range(2):
        victim = next(address for address in job.holders() if job.running(x.scheduler.workers[address], "d"))
        x.kill(victim)
        x.whole()
    x.free()
    wait(job.futures(), 30)
    job.right()
    again = job.repeated(most=3)
    assert set(again) <= {"d"}
    assert sorted(x.store.glob("commit/*/*.json")) == receipts
    assert not x.tombstones()


def savers(dask_worker):
    """Give the number of saver threads and of worker plugins."""
    names = [t.name for t in threading.enumerate()]
    return names.count("dask-resilient-saver"), sum(name == "resilience" for name in dask_worker.plugins)


def test_registering_again_changes_nothing(x):
    """Three times from two clients, scaling up, a restart: one side a worker, one plugin, the first one's settings."""
    x.worn = True
    x.install(save__memory=0.02)
    first = x.plugin
    other = Client(x.cluster, set_as_default=False)
    with pytest.warns(ResilienceWarning, match="keeps its store"):
        dr.install(other, store=x.where / "other")
    other.register_plugin(Resilience(x.where / "third"))
    x.cluster.scale(x.n + 1)
    x.n += 1
    x.whole()
    x.kill(x.addresses()[0])
    x.whole()
    assert set(x.client.run(savers).values()) == {(1, 1)}
    assert len(x.client.run(savers)) == x.n
    assert x.plugin is first
    assert [name for name in x.scheduler.plugins if "esilience" in name] == [NAME]
    limits = x.client.run(lambda dask_worker: dask_worker.plugins["resilience"].side.settings.save_memory)
    assert set(limits.values()) == {0.02}
    assert not (x.where / "other").exists()
    job = Job(x, 8, above="")
    job.hold_milestone()
    job.right()
    assert all(row["protected"] for row in dr.connect(other).workers())
    other.close()


# -- set-up that fails -------------------------------------------------------------------------------------------------


def run_and_judge(x, unprotected, reason):
    """Run a job, which comes out right, and check that only these workers are unprotected, with the reason."""
    job = Job(x, 9, above="")
    job.held = job.persist(job.milestone)
    begun = time.monotonic()
    wait(job.futures(), 30)
    assert time.monotonic() - begun < 5
    job.right()
    bad = {row["name"]: row["reason"] for row in x.handle.workers() if not row["protected"]}
    assert set(bad) == set(unprotected)
    assert all(reason in text for text in bad.values()), bad
    assert "UNPROTECTED worker" in str(x.handle.report())
    return job


def import_side():
    import dask_resilient.worker.side  # noqa: F401


@pytest.mark.parametrize("where", ["file", "proc", "full"])
def test_a_store_that_cannot_be_used(x, where):
    """A file in its place, a place where nobody can write: one warning, every worker unprotected, the job runs."""
    file = x.where / "file"
    file.write_text("not a store")
    x.store = {"file": file, "proc": "/proc/dask-resilient", "full": file / "below"}[where]
    x.client.run(import_side)  # a new process takes its time for that, on a busy machine seconds
    begun = time.monotonic()
    with pytest.warns(ResilienceWarning, match="nothing is saved") as caught:
        x.install()
    assert time.monotonic() - begun < 5
    assert len(caught) == 1
    x.store = x.where / "store"
    job = run_and_judge(x, "012", "the scheduler cannot use the store")
    assert "NOT PROTECTED" in str(x.handle.report())
    assert {row["state"] for row in x.handle.checkpoints()} == {"not saved"}
    assert job.repeated() == {}


@pytest.mark.slow
def test_a_store_that_does_not_answer_the_scheduler(x, monkeypatch):
    """Installing gives up on it after a few seconds, and the job runs unprotected."""
    answer = threading.Event()
    monkeypatch.setattr(queue_module, "open_store", lambda *args, **kwargs: answer.wait(60))
    begun = time.monotonic()
    with pytest.warns(ResilienceWarning, match="did not answer within 5 s"):
        x.install()
    assert time.monotonic() - begun < 8
    run_and_judge(x, "012", "the scheduler cannot use the store")
    answer.set()


def test_a_worker_whose_side_cannot_be_set_up(x):
    """One worker is unprotected, with the reason; a loss is mended by the others, without loads on that one."""
    x.fail("setup@1", 5)
    begun = time.monotonic()
    x.install()
    assert time.monotonic() - begun < 5
    job = run_and_judge(x, "1", "set-up failed: OSError(5")
    x.until(lambda: sum(entry.usable for entry in x.watch.ledger.entries.values()) > 0)
    victim = next(address for address in job.holders() if x.name(address) == "0")
    job.look([victim])
    durable = {
        i
        for i, key in enumerate(job.milestone_keys())
        if key in x.ask(lambda: [k for k, e in x.watch.ledger.entries.items() if e.usable])
    }
    x.kill(victim)
    wait(job.futures(), 30)
    job.right()
    assert set(job.repeated()) <= set("abc")
    assert all(again == job.lost - durable for again in job.repeated().values())


@pytest.mark.slow
def test_a_worker_that_cannot_import_a_codec(x):
    """Its partitions are not saved, with the reason; the job runs."""
    x.fail("codec@1", 5)
    x.kill(x.addresses()[1])
    x.whole()
    x.install()
    job = Job(x, 9, above="")
    job.held = job.persist(job.milestone)
    wait(job.futures(), 30)
    job.right()
    x.until(lambda: not x.watch.ledger.saving())
    rows = x.handle.checkpoints()
    bad = [row for row in rows if row["state"] != "durable"]
    assert {x.name(row["worker"]) for row in bad} == {"1"}
    assert all("arrays" in row["reason"] for row in bad)
    assert bad
    x.free()
    x.worn = True


@pytest.mark.slow
def test_a_worker_that_sees_another_disk(x):
    """A worker that reads another token in the store is unprotected: what it reads is not what was saved."""
    x.install()
    text = (x.store / "store.json").read_text()
    token = x.plugin._queue.store.token
    (x.store / "store.json").write_text(text.replace(token, "0" * len(token)))
    x.kill(x.addresses()[1])
    x.whole()
    run_and_judge(x, "1", "another disk")


@pytest.mark.slow
def test_a_worker_that_joins_while_the_plugin_is_registered(x):
    """It is protected like all others."""
    x.kill(x.addresses()[1])
    x.install()
    x.whole()
    assert len(x.handle.workers()) == x.n
    assert all(row["protected"] for row in x.handle.workers())
    job = Job(x, 9, above="")
    job.hold_milestone()
    job.right()


@pytest.mark.slow
def test_a_worker_whose_store_hangs(x):
    """A worker that gets no answer of the store is shown as such, and holds up neither installing nor the job."""
    x.hold("open@1")
    begun = time.monotonic()
    x.install()
    assert time.monotonic() - begun < 8
    job = run_and_judge(x, "1", "has not reported yet")
    x.free()
    x.whole()
    x.until(lambda: all(m.protected for m in x.watch.members._members.values()), what="it is protected after all")
    assert job.repeated() == {}
