"""The table of faults: what happens to workers, and what Dask moves. Its other parts have modules of their own."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from random import Random
from time import monotonic, time
from typing import TYPE_CHECKING, Any

from distributed import Status, Worker

from dask_resilient.plugin import NAME

if TYPE_CHECKING:
    from tests.fuzz.run import Run

ACTIVE = frozenset({"waiting", "queued", "no-worker", "processing"})

Fault = Callable[["Run", Random], Awaitable[bool]]
"""Says whether there was anything to do it to."""


async def soon(condition: Callable[[], Any], seconds: float = 0.3) -> Any:
    """Wait a moment for something that may never come."""
    deadline = monotonic() + seconds
    while True:
        value = condition()
        if value or monotonic() > deadline:
            return value
        await asyncio.sleep(0.002)


# -- workers -------------------------------------------------------------------------------------------------------


async def end(run: Run, rng: Random, worker: Worker, how: str = "") -> None:
    """Let one worker end in one of four ways."""
    run.judge.kills += 1
    how = how or rng.choice(["remove", "abort", "close", "race"])
    if how == "remove":
        await run.x.scheduler.remove_worker(worker.address, stimulus_id=f"fuzz-{time()}")
    elif how == "abort":
        worker.batched_stream.abort()
    elif how == "close":
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(worker.close(nanny=False, executor_wait=False), 5)
    else:
        run.closing.append(asyncio.ensure_future(worker.close(nanny=False, executor_wait=False)))
    run.gone.add(worker.address)


@contextlib.contextmanager
def slow_loads(run: Run) -> Iterator[None]:
    """Let loads take as long as this lasts; where loads are given up soon, some will be."""
    before, go = run.gate.hold()
    run.gate.before_read = run.gate.before_read or before
    run.judge.trouble |= run.case.timeout < 1
    try:
        yield
    finally:
        go()
        if run.gate.before_read is before:
            run.gate.before_read = None


async def kill(run: Run, rng: Random) -> bool:
    """Lose a worker; mostly another one joins."""
    workers = run.live()
    if not workers:
        return False
    await end(run, rng, rng.choice(workers))
    if rng.random() < 0.8 or not run.live():
        await run.join()
    return True


async def kill_two(run: Run, rng: Random) -> bool:
    """Lose two at once."""
    workers = run.live()
    if len(workers) < 2:
        return False
    for worker in rng.sample(workers, 2):
        await end(run, rng, worker)
    await run.join()
    return True


async def kill_twice_running(run: Run, rng: Random) -> bool:
    """Lose one, and another while the first loss is worked off."""
    return await kill(run, rng) and await kill(run, rng)


async def racing_close(run: Run, rng: Random) -> bool:
    """A worker closes by itself while everything goes on."""
    workers = run.live()
    if not workers:
        return False
    await end(run, rng, rng.choice(workers), "race")
    await run.join()
    return True


async def kill_loader(run: Run, rng: Random) -> bool:
    """Lose a worker that loads; where none does, some values are dropped first, and loads take long."""

    def loading() -> list[Worker]:
        at = {ts.processing_on.address for ts in run.parked_tasks() if ts.processing_on}
        return [w for w in run.live() if w.address in at]

    with slow_loads(run):
        if not loading():
            await drop(run, rng)
        workers = await soon(loading, 0.05)
        if not workers:
            return False
        await end(run, rng, rng.choice(workers))
        await run.join()
    return True


async def retire(run: Run, rng: Random) -> bool:
    """A worker leaves as planned."""
    workers = run.live()
    if len(workers) < 2:
        return False
    worker = rng.choice(workers)
    try:
        await asyncio.wait_for(run.x.scheduler.retire_workers([worker.address], stimulus_id="fuzz-retire"), 4)
    except TimeoutError:
        await end(run, rng, worker, "remove")
    run.gone.add(worker.address)
    return True


async def pause(run: Run, rng: Random) -> bool:
    """A worker pauses for a moment."""
    workers = run.live()
    if not workers:
        return False
    worker = rng.choice(workers)
    worker.status = Status.paused

    def unpause() -> None:
        if worker.status == Status.paused:
            worker.status = Status.running

    run.later(rng.choice([0.02, 0.1]), unpause)
    return True


async def newcomer(run: Run, rng: Random) -> bool:
    """Another worker joins."""
    if len(run.live()) > 4:
        return False
    await run.join()
    return True


async def bare_newcomer(run: Run, rng: Random) -> bool:
    """A worker joins that does not get our side, so it never reports."""
    if len(run.live()) > 4:
        return False
    scheduler = run.x.scheduler
    if run.judge.watch is None or NAME not in scheduler.worker_plugins:
        return False
    ours = scheduler.worker_plugins.pop(NAME)
    try:
        await run.join()
    finally:
        if run.x.plugin._undoing is None:  # else it has left meanwhile
            scheduler.worker_plugins[NAME] = ours
    return True


# -- Dask moves things ---------------------------------------------------------------------------------------------


async def amm(run: Run, rng: Random) -> bool:
    """The active memory manager drops replicas."""
    run.x.scheduler.extensions["amm"].run_once()
    return True


async def replicate(run: Run, rng: Random) -> bool:
    """A worker gets replicas of some values."""
    keys = sorted(key for key, ts in run.x.scheduler.tasks.items() if ts.state == "memory")
    workers = run.live()
    if not keys or not workers:
        return False
    chosen = rng.sample(keys, min(len(keys), 5))
    run.x.scheduler.request_acquire_replicas(rng.choice(workers).address, chosen, stimulus_id="fuzz-replicate")
    return True


async def steal(run: Run, rng: Random) -> bool:
    """Work is balanced."""
    stealing = run.x.scheduler.extensions.get("stealing")
    if stealing is None:
        return False
    stealing.balance()
    return True


async def nothing(run: Run, rng: Random) -> bool:
    """Nothing happens for a while."""
    await asyncio.sleep(rng.choice([0.02, 0.1]))
    return True


async def drop(run: Run, rng: Random) -> bool:
    """A value is lost without its worker."""
    keys = sorted(key for key, ts in run.x.scheduler.tasks.items() if ts.state == "memory")
    for key in rng.sample(keys, min(len(keys), 3)):
        if (ts := run.x.scheduler.tasks.get(key)) is not None and ts.state == "memory":
            run.x.scheduler.transitions({key: "released"}, "fuzz-drop")
    return bool(keys)


WORKERS: dict[str, Fault] = {
    "kill": kill,
    "kill two": kill_two,
    "kill twice running": kill_twice_running,
    "racing close": racing_close,
    "kill loader": kill_loader,
    "retire": retire,
    "pause": pause,
    "newcomer": newcomer,
    "bare newcomer": bare_newcomer,
    "amm": amm,
    "replicate": replicate,
    "steal": steal,
    "nothing": nothing,
    "drop": drop,
}
