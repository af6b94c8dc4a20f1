"""The table of faults, continued: the store, its files, and loads."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from tests.fuzz.faults import Fault, end, soon
from tests.fuzz.faults_clients import second_graph
from tests.fuzz.play import raising
from tests.support.damage import cut, flip

if TYPE_CHECKING:
    from tests.fuzz.run import Run


def foreign(file: Path) -> None:
    """Let a receipt name another key, sealed as it should be."""
    body = json.loads(file.read_text())
    del body["sha256"]
    body["key"] = "0" * 64
    seal = hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
    file.write_text(json.dumps({**body, "sha256": seal}))


DAMAGE: tuple[tuple[str, Callable[[Path], None]], ...] = (
    ("chunk", Path.unlink),
    ("chunk", flip),
    ("chunk", cut),
    ("metadata", flip),
    ("receipt", Path.unlink),
    ("receipt", cut),
    ("receipt", foreign),
)


def places(run: Run) -> dict[str, Any]:
    """Give the places of all copies, by key."""
    watch = run.judge.watch
    entries = watch.ledger.entries if watch is not None else {}
    return {key: entries[key].place for key in sorted(entries) if entries[key].place is not None}


async def damage(run: Run, rng: Random) -> bool:
    """A third of the copies is damaged on disk."""
    known = places(run)
    for key in rng.sample(list(known), (len(known) + 2) // 3):
        place = known[key]
        what, do = rng.choice(DAMAGE)
        data = run.x.store / place.data
        files = {"chunk": data / "0", "metadata": data / "zarr.json", "receipt": run.x.store / place.receipt}
        before = place.attempt in run.judge.damaged
        run.judge.spoiled.add(place.attempt)
        run.judge.damaged.add(place.attempt)
        if not before and files[what].exists():  # what was revoked meanwhile is gone
            do(files[what])
    return bool(known)


async def hold_writes(run: Run, rng: Random) -> bool:
    """Copies become durable late."""
    run.gate.before_write, go = run.gate.hold()
    gate = run.gate.before_write

    def free() -> None:
        go()
        if run.gate.before_write is gate:
            run.gate.before_write = None

    run.later(rng.choice([0.02, 0.1, 0.3]), free)
    return True


async def commit_then_kill(run: Run, rng: Random) -> bool:
    """A copy turns up while its function still runs, and that worker ends; where nothing runs, a new graph does."""
    run.play.hold("behind")
    if not any(ts.state == "processing" for ts in run.x.scheduler.tasks.values()):
        await second_graph(run, rng)
    try:
        return await _commit_then_kill(run, rng)
    finally:
        run.play.free()


async def _commit_then_kill(run: Run, rng: Random) -> bool:
    def running() -> list[str]:
        known = places(run)
        tasks = run.x.scheduler.tasks
        return [k for k in list(run.play.held) if k in known and k in tasks and tasks[k].state == "processing"]

    keys = await soon(running, 0.25)
    for key in rng.sample(keys, len(keys)):
        ws = run.x.scheduler.tasks[key].processing_on
        workers = [w for w in run.live() if ws is not None and w.address == ws.address]
        if workers:
            await end(run, rng, workers[0], rng.choice(["remove", "abort", "race"]))
            await run.join()
            return True
    return False


def _read_trouble(run: Run, rng: Random, before: Callable[[], None], undo: Callable[[], None]) -> None:
    run.judge.trouble = True
    run.gate.before_read = before

    def free() -> None:
        undo()
        if run.gate.before_read is before:
            run.gate.before_read = None

    run.later(rng.choice([0.02, 0.1, 0.2]), free)


async def store_away(run: Run, rng: Random) -> bool:
    """Reads raise `OSError` for a while."""
    _read_trouble(run, rng, raising(OSError(5, "the disk is away")), lambda: None)
    return True


async def odd_error(run: Run, rng: Random) -> bool:
    """Reads raise what nobody expects."""
    _read_trouble(run, rng, raising(rng.choice([MemoryError(), ValueError("odd"), ImportError("gone")])), lambda: None)
    return True


async def store_hangs(run: Run, rng: Random) -> bool:
    """Reads hang for a while."""
    before, go = run.gate.hold()
    _read_trouble(run, rng, before, go)
    return True


async def store_fails_to_write(run: Run, rng: Random) -> bool:
    """Writes raise for a while; where three fail one after the other, that worker saves nothing more."""
    before = run.gate.before_write = raising(OSError(5, "the disk is away"))

    def free() -> None:
        if run.gate.before_write is before:
            run.gate.before_write = None

    run.later(rng.choice([0.02, 0.05]), free)
    return True


def explode(ticket: Mapping[str, Any]) -> None:
    """Be a load that ends as no load may end."""
    raise MemoryError(f"nobody expected this of {ticket['dask_key']}")


async def load_raises(run: Run, rng: Random) -> bool:
    """Loads that begin in the next moment end as errors; each such copy is not used again."""
    watch = run.judge.watch
    if watch is None or watch.detour._load is explode:
        return False
    right, watch.detour._load = watch.detour._load, explode
    ticket = watch.ticket

    def told(ts: Any) -> Any:
        given = ticket(ts)
        if given is not None:
            run.judge.spoiled.add(given["place"]["attempt"])
        return given

    watch.ticket = told
    run.judge.exploding = True

    def free() -> None:
        run.judge.exploding = False
        watch.detour._load = right
        del watch.ticket

    run.later(rng.choice([0.02, 0.05]), free)
    return True


STORE: dict[str, Fault] = {
    "damage": damage,
    "hold writes": hold_writes,
    "commit then kill": commit_then_kill,
    "store away": store_away,
    "odd error": odd_error,
    "store hangs": store_hangs,
    "store fails to write": store_fails_to_write,
    "load raises": load_raises,
}
