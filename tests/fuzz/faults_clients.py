"""The table of faults, continued: what clients do with futures and graphs."""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING

from tests.fuzz.case import FOR_EVER
from tests.fuzz.faults import Fault, drop, slow_loads, soon

if TYPE_CHECKING:
    from tests.fuzz.run import Run


async def release(run: Run, rng: Random) -> bool:
    """Half of the futures are let go."""
    for key in rng.sample(sorted(run.futures), len(run.futures) // 2):
        run.futures.pop(key).release()
    return True


async def cancel(run: Run, rng: Random) -> bool:
    """A future is cancelled; only of keys that nothing depends on, since Dask's own `stimulus_cancel` asserts else."""
    tasks = run.x.scheduler.tasks
    if not await soon(lambda: all(key in tasks for key in run.futures)):
        return False  # a graph that is still on its way may depend on it
    keys = sorted(key for key in run.futures if key in tasks and not tasks[key].dependents)
    if not keys:
        return False
    await run.x.client.cancel([run.futures.pop(rng.choice(keys))])
    return True


async def resubmit(run: Run, rng: Random) -> bool:
    """Some of the same graph again."""
    outputs = list(run.case.outputs)
    run.submit(rng.sample(outputs, rng.randint(1, len(outputs))), rng)
    return True


async def second_graph(run: Run, rng: Random) -> bool:
    """A new graph over keys of the first, most of them released long ago; half of the new keys are saved."""
    run.submit(new_keys(run, rng), rng)
    return True


def new_keys(run: Run, rng: Random) -> list[str]:
    """Let the graph grow."""
    keys = list(run.case.spec)
    first = len(run.play.spec)
    new = [f"x{i}-0" for i in range(first, first + rng.randint(1, 4))]
    for key in new:
        run.play.spec[key] = rng.sample(keys, min(len(keys), rng.randint(1, 3)))
        if rng.random() < 0.5:
            run.play.marked.add(key)
    return new


async def other_function(run: Run, rng: Random) -> bool:
    """Everything is forgotten; then other functions come under the same keys."""
    if not await soon(lambda: all(key in run.x.scheduler.tasks for key in run.futures)):
        return False  # a graph is still on its way: it would come behind the release
    for future in run.futures.values():
        future.release()
    run.futures.clear()
    forgotten = await soon(lambda: not run.x.scheduler.tasks, 1.0)
    run.play.version += bool(forgotten)
    run.submit(run.case.outputs, rng)
    return bool(forgotten)


async def overtake(run: Run, rng: Random) -> bool:
    """Other functions come while those before still run, and hand in their values then; some are lost later."""
    run.play.hold("before")
    try:
        if not await other_function(run, rng) or not await soon(lambda: run.play.held):
            return False
        if not await other_function(run, rng):
            return False
        await soon(lambda: any(ts.state == "processing" for ts in run.x.scheduler.tasks.values()))
        await asyncio.sleep(0.01)  # the workers take that in
    finally:
        run.play.free()
    await soon(lambda: all(future.done() for future in run.futures.values()), 1.0)
    await soon(lambda: run.judge.watch is None or not run.judge.watch.ledger.saving(), 0.5)
    return await drop(run, rng)


async def break_function(run: Run, rng: Random) -> bool:
    """A function that worked raises from now on: copies of what was computed from it are still good."""
    key = rng.choice(list(run.case.spec))
    run.play.erring.add(key)
    run.play.errors[key] = FOR_EVER
    await drop(run, rng)
    run.submit(new_keys(run, rng), rng)
    return True


async def let_go_while_loading(run: Run, rng: Random) -> bool:
    """Four times, what a copy is loaded for is let go of: that proves nothing against the copy."""
    tasks, watch = run.x.scheduler.tasks, run.judge.watch
    entries = watch.ledger.entries if watch is not None else {}
    keys = sorted(key for key, entry in entries.items() if entry.usable and tasks[key].state == "released")
    if not keys:
        return False
    key = rng.choice(keys)

    def needing() -> str:
        new = f"x{len(run.play.spec)}-0"
        run.play.spec[new] = [key]
        run.submit([new], rng)
        return new

    with slow_loads(run):
        for _ in range(4):
            new = needing()
            await soon(lambda: key in tasks and tasks[key].state == "processing", 0.1)
            run.futures.pop(new).release()
            await soon(lambda: key not in tasks or tasks[key].state == "released", 0.1)
    needing()
    return True


async def restart(run: Run, rng: Random) -> bool:
    """`client.restart`: in one process, every worker goes."""
    run.futures.clear()
    run.gone.update(w.address for w in run.x.workers)
    await asyncio.wait_for(run.x.client.restart(timeout=5, wait_for_workers=False), 8)
    await run.join()
    await run.join()
    run.submit(run.case.outputs, rng)
    return True


CLIENTS: dict[str, Fault] = {
    "release": release,
    "cancel": cancel,
    "resubmit": resubmit,
    "second graph": second_graph,
    "other function": other_function,
    "overtake": overtake,
    "break": break_function,
    "let go while loading": let_go_while_loading,
    "restart": restart,
}
