"""The table of faults, continued: a loss or a new graph while all is still, after which exactly what must run has run.

What must run is found on the graph alone: of what is wanted and in memory nowhere, all that has no intact copy, and
what that needs. Beside `tests.fuzz.judge`, which judges every decision, this compares the functions that really ran.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from random import Random
from typing import TYPE_CHECKING, Any

from distributed import Status

from dask_resilient.core.recovery import ATTEMPTS
from tests.fuzz.faults import ACTIVE, Fault, end, soon
from tests.fuzz.faults_clients import new_keys

if TYPE_CHECKING:
    from tests.fuzz.run import Run


def still(run: Run) -> bool:
    """Say whether nothing is under way."""
    scheduler, watch = run.x.scheduler, run.judge.watch
    return (
        watch is not None
        and all(future.done() for future in run.futures.values())
        and all(key in scheduler.tasks for key in run.futures)
        # What a client has let go of, unheard by the scheduler yet, is forgotten any moment, and its copy with it.
        and {ts.key for client in scheduler.clients.values() for ts in client.wants_what} <= set(run.futures)
        and not any(ts.state in ACTIVE for ts in scheduler.tasks.values())
        and all(closing.done() for closing in run.closing)
        and all(worker.status == Status.running for worker in run.live())
        and not run.gone & set(scheduler.workers)
        and not any(entry.attempt is not None or entry.suspect for entry in watch.ledger.entries.values())
    )


async def predictable(run: Run) -> bool:
    """Wait until all is still; where functions err or the store is away at times, nothing is foretold."""
    if run.play.erring or run.case.pinned or run.judge.trouble or run.judge.left:
        return False
    return bool(await soon(lambda: still(run), 2.0)) and not run.judge.exploding


def copy_of(run: Run, key: str) -> Any:
    """Give the entry of a key that has a copy, as far as anybody but the judge knows."""
    entry = run.judge.watch.ledger.entries.get(key)
    if entry is None or not entry.usable or entry.bad_loads >= ATTEMPTS:
        return None
    return entry


def must_run(run: Run, wanted: Iterable[str], lost: str = "") -> tuple[set[str], bool]:
    """Give what has to run so that some keys come back without a worker, and whether a copy is damaged on the way."""
    tasks, needed = run.x.scheduler.tasks, set[str]()
    stack, damaged = list(wanted), False
    seen = set[str]()
    while stack:
        key = stack.pop()
        ts = tasks.get(key)
        if key in seen or (ts is not None and any(ws.address != lost for ws in ts.who_has or ())):
            continue
        seen.add(key)
        entry = copy_of(run, key) if ts is not None else None
        if entry is not None and entry.place.attempt not in run.judge.damaged:
            continue
        damaged |= entry is not None
        needed.add(key)
        stack.extend(run.play.spec[key])
    return needed, damaged


async def compare(run: Run, what: str, before: Counter[str], needed: set[str], damaged: bool) -> None:
    """Compare what ran with what had to."""
    keys = list(run.futures)
    tasks = run.x.scheduler.tasks
    if not await soon(lambda: all(k in tasks and tasks[k].state == "memory" for k in keys), 10.0):
        run.judge.problem("HANG", f"after {what}: {[k for k in keys if k not in tasks or tasks[k].state != 'memory']}")
        return
    ran = run.play.runs - before
    # A copy that is found damaged late asks again for what was let go meanwhile.
    if set(ran) != needed or (not damaged and ran != Counter(needed)):
        more, less = ran - Counter(needed), Counter(needed) - ran
        run.judge.problem("EXACT", f"after {what} these ran, but had no need to: {more}; these did not: {less}")


async def exact_loss(run: Run, rng: Random) -> bool:
    """A worker is lost while all is still."""
    if not await predictable(run):
        return False
    able = [w for w in run.live() if (m := run.judge.watch.members.get(w.address)) is not None and m.ready]
    if len(able) < 2:
        return False
    worker = rng.choice(able)
    needed, damaged = must_run(run, run.futures, worker.address)
    before = run.play.runs.copy()
    await end(run, rng, worker, rng.choice(["remove", "abort"]))
    await soon(lambda: worker.address not in run.x.scheduler.workers, 5.0)
    await compare(run, "a loss", before, needed, damaged)
    return True


async def exact_graph(run: Run, rng: Random) -> bool:
    """A new graph comes while all is still."""
    if not await predictable(run) or not any(map(run.x.is_ready, run.live())):
        return False
    new = new_keys(run, rng)
    needed, damaged = must_run(run, new)
    before = run.play.runs.copy()
    run.submit(new, rng)
    await compare(run, "a new graph", before, needed, damaged)
    return True


EXACT: dict[str, Fault] = {"exact loss": exact_loss, "exact graph": exact_graph}
