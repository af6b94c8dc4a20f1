"""One P2P operation with everything saved, brought to one of the stages of a shuffle, and who is lost there."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

from distributed import wait
from distributed.client import futures_of

from tests.processes.everything import Everything, Runs
from tests.processes.shuffles import Merge, Rechunk, Shuffle
from tests.support.processes import Processes

N = 6

KINDS = (Shuffle, Merge, Rechunk)


class Job:
    """One operation with everything saved, and the worker that a stage has chosen to be killed."""

    def __init__(self, x: Processes, kind: Any, n: int = N) -> None:
        self.x = x
        self.op = kind(x.where, n)
        self.runs = Runs(x.where)
        self.held = None
        self.victim = None

    def start(self):
        """Compute the output and keep it."""
        self.held = self.x.client.persist(self.op.make())

    def finish(self):
        """Wait for what is kept."""
        wait(futures_of(self.held), 40)

    def outputs(self):
        """Give the futures of what is kept, in order."""
        return sorted(futures_of(self.held), key=lambda future: future.key[1:])

    def right(self):
        """Check the values; no worker gets a replica."""
        self.op.right(self.x.client.gather(self.outputs()))

    def again(self, saved):
        """Give the keys that have run again since they were saved."""
        return {key for key, n in self.runs.outer().items() if key in saved and n != saved[key]}

    def saved(self):
        """Wait until all that has been done and may be saved is durable, and give how often each was done."""
        done = self.runs.outer()

        def durable():
            entries = {str(key): entry for key, entry in self.x.watch.ledger.entries.items()}
            return all(key in entries and entries[key].usable for key in done)

        self.x.until(durable, what="all that has been done is durable")
        return done

    def without(self, *names):
        """Give a worker that has begun none of these user functions, else any."""
        busy = {
            int(file.name) for file in (self.x.where / "calls").iterdir() if set(names) & set(file.read_text().split())
        }
        workers = self.x.scheduler.workers
        pids = {address: workers[address].pid for address in self.x.addresses()}
        return next((address for address, pid in pids.items() if pid not in busy), self.x.addresses()[0])

    def barrier(self):
        """Give the worker that the barrier runs on, None if none does."""
        tasks = self.x.scheduler.tasks.values()
        running = [ts.processing_on for ts in tasks if "barrier" in str(ts.key) and ts.state == "processing"]
        return running[0].address if running else None

    def holder(self):
        """Give a worker that holds outputs, None if there is none."""
        tasks = self.x.scheduler.tasks
        holders = [ws.address for f in self.outputs() if f.key in tasks for ws in tasks[f.key].who_has or ()]
        return holders[0] if holders else None


def before(job):
    """Nobody has transferred anything."""
    job.x.gate("read")
    job.start()
    job.x.until(lambda: sum(n for name, n in job.x.calls.counts().items() if name.startswith("read")) >= 3)
    job.victim = job.x.addresses()[0]


def transferring(job):
    """Some have transferred their part."""
    job.x.gate("read-0")
    job.start()
    job.x.until(lambda: len(job.runs.of("transfer")) >= N - 2, what="most parts are transferred")
    job.victim = job.without("read0-0", "read1-0")


def at_the_barrier(job):
    """All is transferred; the worker of the barrier is lost."""
    job.x.gate("barrier")
    job.start()
    job.victim = job.x.until(job.barrier, what="the barrier runs")
    job.x.until(lambda: job.runs.of("barrier", "begun"), what="the barrier is held")


def beside_the_barrier(job):
    """All is transferred; a worker with parts of it is lost, and not that of the barrier."""
    at_the_barrier(job)
    job.victim = next(address for address in job.x.addresses() if address != job.victim)


def unpacking(job):
    """All but one output are there, so the shuffle is not over; a worker that holds some of the others is lost."""
    job.x.gate("unpack-0")
    job.start()
    job.victim = job.x.until(job.holder, what="a worker has an output")


def unpacked(job):
    """All outputs are there."""
    job.start()
    job.finish()
    job.victim = job.holder()


def consuming(job):
    """The outputs are being consumed, and nobody else wants them."""
    job.start()
    job.finish()
    job.saved()
    job.x.gate("follow")
    job.held = job.x.client.persist(job.op.consume(job.held))
    job.x.ran("follow", 3)
    job.victim = job.x.addresses()[0]


STAGES = (before, transferring, at_the_barrier, beside_the_barrier, unpacking, unpacked, consuming)


@contextlib.contextmanager
def everything_saved(x: Processes, kind: Any, n: int = N) -> Iterator[Job]:
    """Have the plugin and the hook installed; afterwards the store has nothing of the shuffle's inner parts."""
    (x.where / "runs").mkdir()
    x.install()
    x.client.register_plugin(Everything(x.where))
    job = Job(x, kind, n)
    yield job
    x.free()
    x.whole()
    x.client.unregister_worker_plugin(Everything.name)
    inner = job.runs.inner()
    assert inner
    receipts = {json.loads(path.read_text())["key"] for path in x.store.glob("commit/*/*.json")}
    assert receipts
    assert not receipts & set(inner)
    assert not set(x.loads()) & set(inner.values())
    refused = [row for row in x.handle.checkpoints() if row["reason"].startswith("an inner part of a P2P shuffle")]
    assert refused
