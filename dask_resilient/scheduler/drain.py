"""Emptying a worker that is to leave: what only it holds is moved to others or saved, and what it executes ends.

Results are moved by `Scheduler.request_acquire_replicas`, as Dask's own memory manager does it. Dask's `retire_workers`
is not used: it moves everything or gives up, it makes the worker one that is closing, which an operator's release would
have to undo on both sides, and it says so in the log at each try.

A drain never spins: what was asked for is asked for again only when nothing has come of it for a while.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from time import perf_counter, time
from typing import TYPE_CHECKING, Any

from dask_resilient.core.drain import Held, Peer, plan, room
from dask_resilient.internals.gate import Gate
from dask_resilient.scheduler.holdings import STAYS, Holdings

if TYPE_CHECKING:
    from dask_resilient.scheduler.watch import Watch

POLL = 0.02
"""Seconds between two looks at a worker that is drained."""

SHARE = 20
"""Times as long as a look has taken until the next one: no more than a twentieth of the scheduler's time."""

RETRY = 0.5
"""Seconds without progress after which it is asked whether more can be done by now."""

STALL = 2.0
"""Seconds without progress, beyond those that the bytes need, after which a worker that was to take results is passed
over."""

TRIES = 3
"""Times that a result is offered to others."""

PATIENCE = 5.0
"""Seconds that saves under way may take before what they save is moved all the same."""

ANSWER = 0.25
"""Seconds for a worker to say what of its data is not on its device."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a drain ended."""

    text: str
    moved: int = 0
    saved: int = 0
    stopped: bool = False
    """Whether it was given up, since the worker is in service again or gone."""


@dataclass(slots=True)
class _Drain:
    """One worker that is drained."""

    deadline: float
    begun: float
    moving: dict[Hashable, str] = field(default_factory=dict)
    """Results that are on their way, and to whom."""
    tries: dict[Hashable, int] = field(default_factory=dict)
    saving: set[Hashable] = field(default_factory=set)
    """Results whose saving is under way, or asked for."""
    late: set[Hashable] = field(default_factory=set)
    """Results that were asked for here."""
    refused: dict[Hashable, str] = field(default_factory=dict)
    """Results that cannot be saved, and why."""
    left: dict[Hashable, str] = field(default_factory=dict)
    """Results of which nothing can be done at present, and why."""
    slow: set[str] = field(default_factory=set)
    """Workers that did not take what they were to take."""
    moved: int = 0
    saved: int = 0


class Drains:
    """Empties workers.

    Parameters
    ----------
    watch
        Of the same scheduler.
    gate
        Says which workers are shut: only those are drained.
    send
        Sends a message to a worker if it has our side, and says whether it has.
    """

    def __init__(self, watch: Watch, gate: Gate, send: Callable[..., bool]) -> None:
        self._scheduler = watch.scheduler
        self._ledger = watch.ledger
        self._members = watch.members
        self._send = send
        self._holdings = Holdings(watch, gate)
        self._drains: dict[str, _Drain] = {}
        self._answers: dict[str, asyncio.Future[set[Hashable] | None]] = {}

    async def drain(self, worker: str, deadline: float) -> Outcome:
        """Empty a worker until nothing is left, nothing more can be done, or the deadline.

        Parameters
        ----------
        deadline
            UNIX seconds.
        """
        mine = self._drains[worker] = _Drain(deadline, time())
        seen, progress, asked = None, time(), 0.0
        try:
            while True:
                begin, now = perf_counter(), time()
                ws = self._scheduler.workers.get(worker)
                self._holdings.look()
                if ws is None or worker not in self._holdings.leaving or self._drains.get(worker) is not mine:
                    why = "it left meanwhile" if ws is None else "it was to take tasks again"
                    return Outcome(f"not drained: {why}", mine.moved, mine.saved, stopped=True)
                sole = self._sole(mine, ws)
                state = (len(sole), len(ws.processing), mine.moved, mine.saved, len(mine.refused))
                if state != seen:
                    seen, progress = state, now
                if progress == now or now - asked >= RETRY:
                    self._go(mine, ws, sole, now - progress)
                    asked = now
                if text := self._ended(mine, ws, sole, now):
                    return Outcome(text, mine.moved, mine.saved)
                await asyncio.sleep(max(POLL, min(RETRY, SHARE * (perf_counter() - begin))))
        finally:
            if self._drains.get(worker) is mine:
                del self._drains[worker]

    async def rescue(self, worker: str, seconds: float) -> int:
        """Save what a process with a broken context has in host memory or on disk, and give how many that are.

        Only of a worker with a GPU of its own: others have nothing that outlives the context and not the process.
        """
        member, ws = self._members.get(worker), self._scheduler.workers.get(worker)
        if ws is None or member is None or not member.gpu or self._holdings.unsavable(worker):
            return 0
        mine = self._drains[worker] = _Drain(time() + seconds, time())
        answer = self._answers[worker] = asyncio.get_running_loop().create_future()
        try:
            self._holdings.look()
            held = self._held(mine, worker, self._sole(mine, ws))
            saves = plan(held, (), seconds=seconds, bandwidth=float("inf")).saves
            if not (saves or mine.saving) or not self._late(worker, saves, spilled_only=True):
                return 0
            spilled = await asyncio.wait_for(answer, ANSWER)
            if spilled is None:
                return 0
            mine.late = spilled
            mine.saving |= spilled
            while mine.saving and worker in self._scheduler.workers and time() < mine.deadline:
                await asyncio.sleep(POLL)
                self._sole(mine, ws)
        except TimeoutError:
            return 0  # nothing is to be had from a worker that does not answer
        finally:
            del self._answers[worker]
            if self._drains.get(worker) is mine:
                del self._drains[worker]
        return mine.saved

    # -- what workers say --------------------------------------------------------------------------------------------

    def answered(self, worker: str, msg: Mapping[str, Any]) -> None:
        """Hear which results a worker has off its device; None = it has no levels of memory."""
        answer = self._answers.get(worker)
        if answer is not None and not answer.done():
            answer.set_result(None if msg["keys"] is None else set(msg["keys"]))

    def not_saved(self, worker: str, key: Hashable, reason: str) -> None:
        """Hear that a result that was asked for is not saved, and why."""
        mine = self._drains.get(worker)
        if mine is not None and key in mine.saving:
            mine.saving.discard(key)
            mine.refused[key] = reason

    # -- how things stand --------------------------------------------------------------------------------------------

    def _sole(self, mine: _Drain, ws: Any) -> list[Any]:
        """Give the tasks whose results would be lost with a worker, and count those that no longer would."""
        sole = {ts.key: ts for ts in ws.has_what if not self._holdings.stays(ts) and not self._holdings.durable(ts)}
        tasks, entries = self._scheduler.tasks, self._ledger.entries
        for key in mine.moving.keys() - sole.keys():
            del mine.moving[key]
            mine.moved += key in tasks and self._holdings.stays(tasks[key])
        for key in mine.saving - sole.keys():
            mine.saving.discard(key)
            mine.saved += key in tasks and self._holdings.durable(tasks[key])
        for key in sole.keys() & entries.keys():
            entry = entries[key]
            if entry.attempt is not None and entry.worker == ws.address:
                mine.saving.add(key)
            elif key not in mine.late:
                mine.saving.discard(key)
        return list(sole.values())

    def _ended(self, mine: _Drain, ws: Any, sole: list[Any], now: float) -> str:
        """Say how a drain has ended, empty if it has not."""
        busy = self._ledger.saving_on(ws.address)
        if not (sole or ws.processing or busy):
            return "drained"
        if now >= mine.deadline:
            left = f"{len(sole)} results neither moved nor saved and {len(ws.processing)} tasks not ended"
            return f"its time was up with {left}{_why(mine, sole)}"
        if ws.processing or busy or mine.moving or mine.saving:
            return ""
        if any(ts.key not in mine.left or (self._others(ws) and self._moves(mine, ts.key)) for ts in sole):
            return ""  # others may have room in a moment, or be running again
        return f"{len(sole)} results could be neither moved nor saved{_why(mine, sole)}"

    def _others(self, ws: Any) -> bool:
        workers = self._scheduler.workers.values()
        return any(w is not ws and w.address not in self._holdings.leaving and w.status.name in STAYS for w in workers)

    # -- doing -------------------------------------------------------------------------------------------------------

    def _go(self, mine: _Drain, ws: Any, sole: list[Any], idle: float) -> None:
        """Ask for everything that was not asked for yet."""
        tasks, bandwidth = self._scheduler.tasks, self._scheduler.bandwidth
        for key, peer in list(mine.moving.items()):
            if peer not in self._scheduler.workers:
                del mine.moving[key]
        on_their_way = sum(max(tasks[key].nbytes, 0) for key in mine.moving)
        if mine.moving and idle > STALL + on_their_way / bandwidth:
            mine.slow |= set(mine.moving.values())
            mine.moving.clear()
        patient = time() - mine.begun < PATIENCE
        todo = [ts for ts in sole if ts.key not in mine.moving and not (ts.key in mine.saving and patient)]
        made = plan(
            self._held(mine, ws.address, todo), self._peers(mine), seconds=mine.deadline - time(), bandwidth=bandwidth
        )
        for peer in dict.fromkeys(peer for _, peer in made.moves):
            keys = [key for key, taker in made.moves if taker == peer]
            self._scheduler.request_acquire_replicas(peer, keys, stimulus_id=f"resilience-drain-{time()}")
            mine.moving.update(dict.fromkeys(keys, peer))
            mine.tries.update({key: mine.tries.get(key, 0) + 1 for key in keys})
        if made.saves and self._late(ws.address, made.saves, spilled_only=False):
            mine.saving.update(made.saves)
            mine.late.update(made.saves)
        mine.left = dict(made.left)

    def _late(self, worker: str, keys: Iterable[Hashable], *, spilled_only: bool) -> bool:
        """Ask a worker to save results late; each with its run, so that no other run's value is taken for it."""
        runs = [(key, self._scheduler.tasks[key].run_id) for key in keys]
        return self._send(worker, "late", keys=runs, spilled_only=spilled_only)

    def _peers(self, mine: _Drain) -> list[Peer]:
        """Give the workers that could take results, without those that took none of what they were to take."""
        coming: Counter[str] = Counter()
        for key, peer in mine.moving.items():
            coming[peer] += max(self._scheduler.tasks[key].nbytes, 0)
        takers = [ws for ws in self._scheduler.running if ws.address not in self._holdings.leaving]
        if all(ws.address in mine.slow for ws in takers):
            mine.slow.clear()
        return [
            Peer(ws.address, room(ws.memory_limit, max(ws.nbytes, ws.memory.optimistic) + coming[ws.address]))
            for ws in takers
            if ws.address not in mine.slow and ws.address in self._scheduler.stream_comms
        ]

    def _held(self, mine: _Drain, worker: str, tasks: Iterable[Any]) -> list[Held]:
        reasons = mine.refused | dict.fromkeys(mine.saving, "its saving is under way")
        costs = self._holdings.costs(tasks, worker, reasons)
        return [replace(held, moves=self._moves(mine, held.key)) for held in costs]

    def _moves(self, mine: _Drain, key: Hashable) -> bool:
        return not self._scheduler.tasks[key].actor and mine.tries.get(key, 0) < TRIES


def _why(mine: _Drain, sole: list[Any]) -> str:
    """Give the reason that most of the results have."""
    reasons = Counter(mine.left[ts.key] for ts in sole if ts.key in mine.left)
    return f": {reasons.most_common(1)[0][0]}" if reasons else ""
