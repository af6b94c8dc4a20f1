"""One table: event -> how it is caused -> what runs again, and what is reloaded.

The numbers of a row are sets of partitions, noted before the event: the scheduler chooses which one lies where.
A row's function causes the event on a job that stands as the row says, and leaves it free to end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

import numpy as np
from distributed import wait
from distributed.client import futures_of

from tests.processes import copies
from tests.processes.jobs import SIZE, Job, UserError, value
from tests.support.processes import Processes


class Stand(Enum):
    """How a job stands when its event comes. The milestone is durable, as far as it is computed."""

    HELD = "the milestone is computed and wanted"
    CONSUMED = "every worker is at work above the milestone"
    QUEUED = "some of it; what comes next is running, the rest queued on the scheduler"
    DONE = "the result is computed and wanted, the milestone released"


class These(Enum):
    """Sets of partitions that a row speaks of."""

    NONE = "no partition"
    ALL = "every partition"
    LOST = "those whose milestone was on the lost workers only"
    BAD = "those whose copy is not good"
    LOST_AND_BAD = "both"
    LOST_NOT_BAD = "lost, but with a good copy"
    FAILED = "the one whose function above raised, and was asked for again"

    def of(self, job: Job) -> set[int]:
        """Give the partitions."""
        return {
            These.NONE: set(),
            These.ALL: set(range(job.n)),
            These.LOST: job.lost,
            These.BAD: job.bad,
            These.LOST_AND_BAD: job.lost & job.bad,
            These.FAILED: job.failed,
            These.LOST_NOT_BAD: job.lost - job.bad,
        }[self]


@dataclass(frozen=True)
class Row:
    """One event."""

    event: str
    stand: Stand
    cause: Callable[[Processes, Job], None]
    below: These = These.NONE
    """For which partitions the functions below the milestone run again."""
    above: These = These.NONE
    """For which partitions the function above the milestone runs again. Whatever was running on a lost worker, above or
    below, runs again in every row."""
    reloaded: These = These.LOST
    """Which partitions are reloaded, as the incidents say."""
    tombstones: These = These.NONE
    worn: bool = False
    """Whether the event takes a worker out of the cluster for good."""
    slow: bool = False
    saturation: float = 1.1
    resume: str = "fingerprint"
    """Off where a forgotten key is to be computed anew: else it would be loaded."""


# -- a worker leaves ---------------------------------------------------------------------------------------------------


def kill(x: Processes, job: Job) -> None:
    """Kill one worker that holds partitions."""
    victim = job.holders()[0]
    job.look([victim])
    x.kill(victim)


def kill_two(x: Processes, job: Job) -> None:
    """Kill two workers at once."""
    victims = job.holders()[:2]
    job.look(victims)
    x.kill(*victims)


def kill_all(x: Processes, job: Job) -> None:
    """Kill every worker at once: keys are in "no-worker" until the nannies have started others."""
    victims = x.addresses()
    job.look(victims)
    x.kill(*victims)


def restart_by_nanny(x: Processes, job: Job) -> None:
    """Restart one worker, as a user would."""
    victim = job.holders()[0]
    job.look([victim])
    x.client.restart_workers([victim], timeout=30)


def remove(x: Processes, job: Job) -> None:
    """Let the scheduler remove one worker."""
    victim = job.holders()[0]
    job.look([victim])
    x.call(x.scheduler.remove_worker, victim, stimulus_id="test-remove")


def retire(x: Processes, job: Job) -> None:
    """Retire one worker: Dask itself moves what it holds to the others, so nothing is lost."""
    victim = job.holders()[0]
    job.look([victim])
    job.lost.clear()
    x.client.retire_workers([victim])


def kill_the_loader(x: Processes, job: Job) -> None:
    """Kill a worker, then the one that is loading what was lost."""
    x.hold("load")
    kill(x, job)
    loader = x.until(lambda: _loader(x), what="a load has begun")
    job.look([loader])
    x.kill(loader)
    x.free("load")


def _loader(x: Processes) -> str | None:
    begun = set(x.loads())
    for key in x.watch.detour.parked:
        ws = x.scheduler.tasks[key].processing_on
        if ws is not None and str(key) in begun:
            return str(ws.address)
    return None


def kill_in_turn(x: Processes, job: Job) -> None:
    """Kill a worker, wait until all is whole again, and kill another one: the second loss finds the whole lineage."""
    kill(x, job)
    wait(job.futures(), 30)
    x.incidents()
    job.first_lost = len(job.lost)
    victim = next(address for address in job.holders() if address != job.holders()[0])
    job.lost.clear()
    job.look([victim])
    x.kill(victim)


# -- keys come and go meanwhile ----------------------------------------------------------------------------------------


def want_again(x: Processes, job: Job) -> None:
    """Ask with another graph for a milestone that is long released, but known; nobody died."""
    job.lost = set(range(job.n))
    extra = job.persist(job.then(job.milestone, "e"))
    wait(futures_of(extra), 30)
    job.right(extra, "abce")


def want_again_after_a_loss(x: Processes, job: Job) -> None:
    """Lose results above the milestone: they run again on what is reloaded."""
    tasks = x.scheduler.tasks
    victim = x.addresses()[0]
    results = [future.key for future in job.futures()]
    gone = x.ask(lambda: {key[1] for key in results if {ws.address for ws in tasks[key].who_has} == {victim}})
    assert gone
    x.kill(victim)
    job.lost = gone
    job.begun["d"] = gone


def resubmit(x: Processes, job: Job) -> None:
    """Submit the same graph again while its keys are being loaded."""
    x.hold("load")
    kill(x, job)
    x.until(lambda: len(x.watch.detour.parked) >= 1, what="keys are being loaded")
    again = job.persist(job.milestone if job.held.name == job.milestone.name else job.result)
    x.free("load")
    wait(futures_of(again), 30)


def second_graph(x: Processes, job: Job) -> None:
    """Submit another graph on the same milestone while it is being loaded."""
    x.hold("load")
    kill(x, job)
    x.until(lambda: len(x.watch.detour.parked) >= 1, what="keys are being loaded")
    extra = job.persist(job.then(job.milestone, "e"))
    x.free("load")
    job.right(extra, "abce")


def release_meanwhile(x: Processes, job: Job) -> None:
    """Let go of the futures while the keys are being loaded, and begin again: forgotten keys are computed anew."""
    x.hold("load")
    kill(x, job)
    x.until(lambda: len(x.watch.detour.parked) >= 1, what="keys are being loaded")
    job.held = None
    _begin_again(x, job)


def cancel_meanwhile(x: Processes, job: Job) -> None:
    """Cancel the futures while the keys are being loaded, and begin again."""
    x.hold("load")
    kill(x, job)
    x.until(lambda: len(x.watch.detour.parked) >= 1, what="keys are being loaded")
    x.client.cancel(job.futures())
    job.held = None
    _begin_again(x, job)


def _begin_again(x: Processes, job: Job) -> None:
    x.until(lambda: not x.scheduler.tasks, what="every key is forgotten")
    x.free("load")
    # The word that the keys are cancelled comes by the client's stream, and would cancel new futures of these keys as
    # well; what comes behind it shows that it has arrived.
    x.client.submit(int, pure=False).result(30)
    job.held = job.persist(job.milestone)


def wait_for_others(x: Processes, job: Job) -> None:
    """Lose milestones while tasks that need them wait for something else too."""
    x.gate("g")
    job.extra = job.persist(job.plus("g"))
    job.held = None
    x.ran("g-0")
    x.until(lambda: not any(x.scheduler.tasks[key].who_wants for key in job.milestone_keys()))
    worker = x.ask(lambda: x.scheduler.tasks[f"g-{job.token}"].processing_on.address)
    victim = next(address for address in job.holders() if address != worker)
    job.look([victim])
    x.kill(victim)
    x.open_gate("g")
    wait(futures_of(job.extra), 30)
    g = value("g", 0, np.arange(SIZE, dtype=float))
    np.testing.assert_array_equal(job.gather(job.extra), job.expected("abc") + np.tile(g, job.n))
    job.held = job.persist(job.milestone)


def err_above(x: Processes, job: Job) -> None:
    """Let a function above raise after the loss: the user's own error arrives; then ask for that one again."""
    kill(x, job)
    failed = min(job.lost - job.begun["d"])
    job.failed = {failed}
    x.gate(f"error-d-{failed}")
    x.open_gate("d")
    futures = {future.key[1]: future for future in job.futures()}
    wait(list(futures.values()), 30)
    assert {i for i, future in futures.items() if future.status == "error"} == {failed}
    error = futures[failed].exception()
    assert (type(error), error.args) == (UserError, (f"d-{failed}",))
    x.open_gate(f"error-d-{failed}")
    futures[failed].retry()


DAMAGED = {"below": These.LOST_AND_BAD, "reloaded": These.LOST_NOT_BAD, "tombstones": These.LOST_AND_BAD}

ROWS = [
    Row("kill -9 while its results are wanted", Stand.HELD, kill),
    Row("kill -9 while functions above run (processing)", Stand.CONSUMED, kill),
    Row("kill -9 while functions above wait for others (waiting)", Stand.HELD, wait_for_others, slow=True),
    Row("kill -9 while functions below are queued", Stand.QUEUED, kill, saturation=1.0),
    Row("kill -9 of every worker (no-worker)", Stand.HELD, kill_all, slow=True),
    Row("kill -9 of two workers at once", Stand.CONSUMED, kill_two),
    Row("kill -9 of the worker that is loading", Stand.HELD, kill_the_loader),
    Row("a second kill -9 after the first is mended", Stand.HELD, kill_in_turn),
    Row("kill -9 when only results above are in memory", Stand.DONE, want_again_after_a_loss, slow=True),
    Row("nanny restart", Stand.HELD, restart_by_nanny, slow=True),
    Row("the worker is removed by the scheduler", Stand.CONSUMED, remove, worn=True, slow=True),
    Row("the worker is retired", Stand.HELD, retire, worn=True, slow=True),
    Row("a released milestone is wanted again", Stand.DONE, want_again, reloaded=These.NONE),
    Row("futures are released meanwhile", Stand.HELD, release_meanwhile, These.ALL, reloaded=These.NONE, resume="off"),
    Row(
        "futures are cancelled meanwhile",
        Stand.HELD,
        cancel_meanwhile,
        below=These.ALL,
        reloaded=These.NONE,
        slow=True,
        resume="off",
    ),
    Row("the same graph is submitted again meanwhile", Stand.HELD, resubmit),
    Row("a second graph shares the keys meanwhile", Stand.HELD, second_graph, slow=True),
    Row("a function above raises", Stand.CONSUMED, err_above, above=These.FAILED),
    Row("the copy is missing", Stand.HELD, copies.bad(copies.remove), **DAMAGED, slow=True),
    Row("the copy is truncated", Stand.HELD, copies.bad(copies.truncate), **DAMAGED, slow=True),
    Row("a bit of the copy is flipped", Stand.HELD, copies.bad(copies.flip), **DAMAGED),
    Row("the copy is foreign", Stand.HELD, copies.bad(copies.swap), below=These.BAD, reloaded=These.LOST_NOT_BAD),
    Row("the store is unreachable", Stand.HELD, copies.unreachable, below=These.LOST, reloaded=These.NONE),
]
"""Every event takes one worker of three, where it does not say otherwise."""

assert len({row.event for row in ROWS}) == len(ROWS)
