"""Carrying out what was decided about devices: from an action to calls of Dask, and back to an event.

Nothing here decides. Whatever fails is written down, and Dask does with the worker what it would have done without us.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Coroutine, Mapping
from time import time
from typing import TYPE_CHECKING, Any

import dask
from dask.utils import parse_timedelta
from distributed.comm.core import CommClosedError

from dask_resilient.core.absence import Absences
from dask_resilient.core.actions import Action, Admit, Avoid, Drain, Drained, Event, Evict, Restart, RunCanary, Tried
from dask_resilient.internals.gate import Gate
from dask_resilient.internals.rebind import rebind, stranded
from dask_resilient.scheduler.drain import Drains
from dask_resilient.scheduler.members import Member

if TYPE_CHECKING:
    from dask_resilient.scheduler.watch import Watch

logger = logging.getLogger("dask_resilient")

STOP = 1.0
"""Seconds in which a process is to end by itself; then its nanny kills it. What it holds is lost already."""

RESCUE = 5.0
"""Seconds for what a process that is to be ended holds to be saved or moved, where it can be."""

READY = 0.25
"""Seconds for a worker to get ready to leave."""

NANNY = 10.0
"""Seconds for the answer of a nanny."""

FORMER = 1_000
"""Processes that were ended and are remembered, the newest."""

NO_SIDE = "this worker has no side of ours"


class Enact:
    """Carries out actions.

    Parameters
    ----------
    watch
        Of the same scheduler.
    tell
        Takes the event in which an action ended.
    ended
        Writes down what came of the actions on a worker.
    """

    def __init__(self, watch: Watch, tell: Callable[[Event], object], ended: Callable[..., None]) -> None:
        self._watch = watch
        self._scheduler = watch.scheduler
        self._tell = tell
        self._ended = ended
        self._tasks: set[asyncio.Task[None]] = set()
        self._leaving: dict[str, asyncio.Event] = {}
        """Workers that are getting ready to leave."""
        self._former: dict[str, str] = {}
        """By the address of a process that was ended, the name of its worker."""
        self._stranded: set[str] = set()
        """Of those, the ones of which it was told that tasks wait for them."""
        self._waiting: set[str] = set()
        """Workers that are to run the canary as soon as their side is up."""
        self._absences = Absences(parse_timedelta(dask.config.get("distributed.deploy.lost-worker-timeout", "15s")))
        self.gate = Gate(watch.scheduler)
        self.drains = Drains(watch, self.gate, self._send)

    def stop(self) -> None:
        """Open all gates, and leave what is under way."""
        for task in self._tasks:
            task.cancel()
        for address in self.gate.shut_workers:
            self._send(address, "gate", shut=False)
        self.gate.undo()

    def joined(self, member: Member) -> None:
        """Take in a worker, or that it is known by now which device it has."""
        self._absences.back(member.name, time())
        self.rebind()

    def removed(self, address: str) -> None:
        """Take in that a worker is gone."""
        self._waiting.discard(address)
        self.gate.removed(address)
        if member := self._watch.members.get(address):
            self._absences.left(member.name, time())

    def hello(self, address: str) -> None:
        """Take in that a worker's side is up: it learns what it missed."""
        if address in self.gate.shut_workers:
            self._send(address, "gate", shut=True)
        if address in self._waiting:
            self._waiting.discard(address)
            self._send(address, "canary")

    def without_side(self, address: str) -> None:
        """Take in that a worker has no side of ours, so that it cannot run a canary."""
        if address in self._waiting:
            self._waiting.discard(address)
            self._tell(Tried(address, "unknown", NO_SIDE))

    def rebind(self) -> None:
        """Bind tasks that wait for a process that was ended to the one in its place, and tell of those without one."""
        if not self._former or not self._scheduler.unrunnable:
            return
        names = {member.name: member.worker for member in self._watch.members.all()}
        heirs = {former: names[name] for former, name in self._former.items() if name in names}
        rebind(self._scheduler, heirs)
        gone = self._former.keys() - heirs.keys() - self._stranded
        for worker, count in stranded(self._scheduler, gone).items():
            self._stranded.add(worker)
            reason = (
                f"{count} tasks may run only on worker {worker}, whose process was ended: they wait until a worker "
                f"with the name {self._former[worker]!r} joins"
            )
            logger.warning("dask-resilient: %s", reason)
            self._watch.event("stranded", worker=worker, count=count, reason=reason)

    def reopen(self, worker: str) -> None:
        """Have a worker go on that stopped by itself, for an error of which nothing follows."""
        self._send(worker, "gate", shut=False)

    # -- actions -----------------------------------------------------------------------------------------------------

    def do(self, action: Action, keep: Collection[Any]) -> None:
        """Begin an action; what can be done at once is done when this returns.

        Parameters
        ----------
        keep
            Keys of tasks that are not taken back: what they end in is on its way.
        """
        match action:
            case Avoid(worker):
                # One that computes on, or may come back, is asked what it executes: nothing of that is to run twice.
                asked = self._send(worker, "gate", shut=True)
                self.gate.shut(worker, keep=keep, ask=asked)
            case Admit(worker):
                self._send(worker, "gate", shut=False)
                self.gate.open(worker)
            case RunCanary(worker):
                self._canary(worker)
            case Drain(worker, deadline):
                self._begin(worker, "drain", self._drain(worker, deadline))
            case Evict(worker):
                self.gate.shut(worker, keep=keep)
                self._begin(worker, "evict", self._evict(worker))
            case Restart(worker):
                self.gate.shut(worker, keep=keep)
                self._begin(worker, "restart", self._restart(worker))

    def _begin(self, worker: str, what: str, doing: Coroutine[Any, Any, str]) -> None:
        async def run() -> None:
            try:
                outcome = await doing
            except Exception as e:
                logger.warning("dask-resilient: could not %s worker %s: %r", what, worker, e, exc_info=True)
                outcome = f"could not {what} {worker}: {e!r}"
            self._ended(worker, outcome)

        task = asyncio.ensure_future(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _send(self, worker: str, do: str, **fields: Any) -> bool:
        """Send a message to a worker if it has our side; say whether it has."""
        member = self._watch.members.get(worker)
        there = member is not None and member.side and worker in self._scheduler.stream_comms
        if there:
            self._scheduler.worker_send(worker, {"op": "resilience", "do": do, "run": self._watch.run, **fields})
        return there

    def _canary(self, worker: str) -> None:
        member = self._watch.members.get(worker)
        if member is not None and member.side:
            self._send(worker, "canary")
        else:
            self._waiting.add(worker)

    async def _evict(self, worker: str) -> str:
        """Take a worker out for good; its data is not asked for any more."""
        self._send(worker, "leaving")
        nanny = await self._remove(worker, "evict")
        if nanny is None:
            return f"{worker} was removed; it has no nanny"
        await self._end(nanny, "terminate", last=True)
        self._watch.nanny_closed(nanny)
        return f"{worker} was removed and its nanny closed"

    async def _restart(self, worker: str) -> str:
        """Replace a process; what it holds and can be neither saved nor moved at once is lost."""
        member = self._watch.members.get(worker)
        if member is not None:
            await asyncio.sleep(self._absences.wait(member.name, time()))
        if member is not None and not member.gpu:
            # What it holds is in host memory, which an error of CUDA leaves as it was.
            done = await self.drains.drain(worker, time() + RESCUE)
            self._ended(worker, "", moved=done.moved, saved=done.saved)
        else:
            self._ended(worker, "", saved=await self.drains.rescue(worker, RESCUE))
        await self._ready(worker)
        nanny = await self._remove(worker, "restart")
        if nanny is None:
            return f"{worker} was closed; it has no nanny that could start another process"
        begin = time()
        await self._end(nanny, "kill")
        return f"the process of {worker} was ended in {time() - begin:.1f} s, for its nanny to start another one"

    async def _ready(self, worker: str) -> None:
        """Have a worker get ready to leave: else it may close its nanny, since nobody knows it when it next reports.

        One that does not answer does not report either.
        """
        ready = self._leaving[worker] = asyncio.Event()
        if self._send(worker, "leaving"):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(ready.wait(), READY)
        del self._leaving[worker]

    def busy(self, worker: str, msg: Mapping[str, Any]) -> None:
        """Hear what a worker that was shut executes."""
        self.gate.told(worker, msg["keys"])

    def leaving(self, worker: str, msg: Mapping[str, Any]) -> None:  # noqa: ARG002
        """Hear that a worker is ready to leave."""
        if worker in self._leaving:
            self._leaving[worker].set()

    async def _remove(self, worker: str, why: str) -> str | None:
        """Take a worker out of the scheduler's books; gives the address of its nanny."""
        ws = self._scheduler.workers.get(worker)
        if ws is None:
            return None
        nanny: str | None = ws.nanny
        self._former[worker] = str(ws.name)
        if len(self._former) > FORMER:
            del self._former[next(iter(self._former))]
        await self._scheduler.remove_worker(
            worker, expected=True, close=nanny is None, stimulus_id=f"resilience-{why}-{time()}"
        )
        return nanny

    async def _end(self, nanny: str, own: str, **fields: Any) -> None:
        """Have a nanny end its worker's process; one without our side does by an operation of its own."""
        rpc = self._scheduler.rpc(nanny)
        with contextlib.suppress(CommClosedError):  # one that closes may do so before it answers
            if await asyncio.wait_for(rpc.resilience(timeout=STOP, **fields), NANNY) != "OK":
                await asyncio.wait_for(getattr(rpc, own)(timeout=NANNY / 2), NANNY)

    async def _drain(self, worker: str, deadline: float) -> str:
        """Move away or save what only this worker holds, and let end what it executes."""
        done = await self.drains.drain(worker, deadline)
        self._ended(worker, done.text, moved=done.moved, saved=done.saved)
        if not done.stopped:
            self._tell(Drained(worker))
        return ""  # by now it would be taken for the outcome of what follows
