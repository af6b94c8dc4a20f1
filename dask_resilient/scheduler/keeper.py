"""The keeper of devices: what is heard of them becomes events of the core, and what the core decides is carried out."""

from __future__ import annotations

import logging
from collections.abc import Hashable, Mapping
from time import time
from typing import TYPE_CHECKING, Any

from dask_resilient.core.actions import (
    OURS,
    Action,
    Admit,
    Avoid,
    Cause,
    Decision,
    Event,
    Joined,
    Judged,
    Left,
    Phase,
    Quarantine,
    Release,
    Tick,
    Tried,
    words,
)
from dask_resilient.core.breaker import Breaker
from dask_resilient.core.devices import CULPRIT
from dask_resilient.core.faults import Class
from dask_resilient.core.health import Verdict
from dask_resilient.core.limits import Limits
from dask_resilient.core.phases import Times
from dask_resilient.core.quarantine import Book
from dask_resilient.core.readings import Name
from dask_resilient.scheduler.audit import Audit
from dask_resilient.scheduler.enact import Enact
from dask_resilient.scheduler.heard import MILD, heard
from dask_resilient.scheduler.members import HOLD_SECONDS, Member
from dask_resilient.scheduler.memory import Memory
from dask_resilient.scheduler.tries import Met, Tries
from dask_resilient.scheduler.verdicts import Record

if TYPE_CHECKING:
    from dask_resilient.scheduler.watch import Watch

logger = logging.getLogger("dask_resilient")

SILENT = Limits().hung_silence
"""Seconds after which a suspect whose worker is silent too is left."""


class Keeper:
    """Keeps tasks off devices that are out of service.

    Parameters
    ----------
    watch
        Of the same scheduler.
    """

    def __init__(self, watch: Watch) -> None:
        settings = watch.settings
        self._watch = watch
        self._on = settings.quarantine_enabled
        self._acts = self._on and not settings.quarantine_observe
        self._strict = self._acts and settings.quarantine_admission == "strict"
        self.book = Book(Breaker(observe=not self._acts), Times(drain=settings.quarantine_drain))
        self.audit = Audit(watch.run, watch.queue, watch.event)
        self.enact = Enact(watch, self.hear, self._ended)
        self._memory = Memory(watch.run, watch.queue, settings.quarantine_path)
        self.tries = Tries(watch, self.book, self.hear)
        self._open: dict[str, dict[str, Any]] = {}
        """The row of the last decision about each worker: what comes of it is written there."""
        self._mild: set[str] = set()
        """Workers in service whose last verdict asked for nothing."""
        self._gone: dict[str, str] = {}
        """Devices by names and addresses that their workers had: an operator may call them so later."""

    # -- who is there ------------------------------------------------------------------------------------------------

    def joined(self, member: Member) -> None:
        """Take in a worker, or that it is known by now which device it has."""
        self.enact.joined(member)
        self.hear(Joined(member.worker, member.device, member.host))
        member.phase = self.book.phase(member.device)
        if self._strict and not member.side:
            self.enact.do(Avoid(member.worker), ())
            self._watch.scheduler.loop.call_later(HOLD_SECONDS, self._overdue, member.worker)

    async def recall(self) -> None:
        """Take in what earlier runs have decided."""
        if self._on:
            for decision in await self._memory.recall(self.book):
                self._decided(decision)
            for member in self._watch.members.all():
                member.phase = self.book.phase(member.device)

    def hello(self, address: str) -> None:
        """Take in that a worker's side is up."""
        self.enact.hello(address)
        member = self._watch.members.get(address)
        if self._strict and member is not None and not self.book.phase(member.device).held:
            self.enact.do(Admit(address), ())

    def _overdue(self, address: str) -> None:
        """Tell of a worker that is refused, as it has no side of ours."""
        member = self._watch.members.get(address)
        if member is not None and not member.side and address in self.enact.gate.shut_workers:
            reason = "it has no side of ours, and resilience.quarantine.admission is strict: it gets no tasks"
            logger.warning("dask-resilient: worker %s: %s", address, reason)
            self._watch.event("refused", worker=address, reason=reason)

    def removed(self, address: str) -> None:
        """Take in that a worker is gone."""
        self.enact.removed(address)
        self.tries.removed(address)
        self._mild.discard(address)
        self.hear(Left(address))

    def lost(self, address: str, sizes: Mapping[Hashable, int]) -> None:
        """Take in what went with a worker: it belongs to what was decided about it, if anything was."""
        member = self._watch.members.get(address)
        if member is not None and member.phase.held:
            self._ended(address, "", lost=len(sizes), nbytes=sum(sizes.values()))

    def stop(self) -> None:
        """Undo what was done to workers that are there."""
        self.enact.stop()

    # -- what is heard of them ---------------------------------------------------------------------------------------

    def judged(self, record: Record, verdict: Verdict) -> None:
        """Hear what is made of a worker's readings."""
        member = record.member
        mild = verdict.health in MILD
        if mild and member.phase is Phase.ACTIVE and member.worker in self._mild:
            return  # most verdicts by far: nothing is asked for, as before
        (self._mild.add if mild else self._mild.discard)(member.worker)
        met = self.tries.met(member.worker) if verdict.rule.startswith("cuda") else Met()
        suspect = self.book.phase(member.device) is Phase.SUSPECT
        ws = self._watch.scheduler.workers.get(member.worker)
        nanny = ws is None or ws.nanny is not None
        self.hear(heard(record, verdict, met, suspect=suspect, nanny=nanny))

    def _silent(self, member: Member, now: float) -> None:
        """Have a suspect left whose worker is silent too: it may hang in a call into the device, and says no more.

        Those that wait for what it holds would wait for ever.
        """
        device = self.book.devices.get(member.device)
        if device is not None and now - device.since >= SILENT:
            evidence = (*(device.cause.evidence if device.cause else ()), "and its worker does not answer either")
            self.hear(Judged(member.worker, Class.EVICT, Cause("silence", evidence, label="silence")))

    def tried(self, worker: str, msg: Mapping[str, Any]) -> None:
        """Hear how a canary that was asked for ended."""
        result, reason = str(msg["result"]), str(msg.get("reason", ""))
        self._ended(worker, f"the canary could not run: {reason}" if result == "unknown" else f"it computed {result}")
        if (member := self._watch.members.get(worker)) is not None:
            self.canary(member.device, result, time())
        self.hear(Tried(worker, result, reason))

    def canary(self, device: str, result: object, at: float) -> None:
        """Hear how any canary ended, also one that nobody asked for."""
        self._watch.copies.distrust.tried(device, result, at)

    def tick(self) -> None:
        """See what time has brought."""
        now = time()
        for record in self._watch.care.verdicts.records.values():
            if record.member.phase is Phase.SUSPECT and Name.NOT_ANSWERING in record.seen:
                self._silent(record.member, now)
        self.hear(Tick())
        self.enact.rebind()

    # -- operators ---------------------------------------------------------------------------------------------------

    def operator(self, what: str, x: str, reason: str, by: str) -> list[dict[str, Any]]:
        """Quarantine or release a device at an operator's word; gives the rows of what was decided.

        Raises
        ------
        ValueError
            If no device, worker or name is `x`, or quarantine is switched off.
        """
        if not self._on:
            raise ValueError(f"cannot {what} {x!r}: resilience.quarantine.enabled is false")
        device = self._find(x)
        event = Quarantine(device, by, reason) if what == "quarantine" else Release(device, by, reason)
        rows = self.hear(event)
        if what == "release" and not any(member.device == device for member in self._watch.members.all()):
            self.audit.ended(rows[-1], "it has no worker now: start one, as its nanny may have been closed")
        return rows

    def _find(self, x: str) -> str:
        """Give the device that an operator means: by its own name, or by the address or the name of a worker."""
        members = self._watch.members.all()
        for member in members:
            if x in (member.worker, member.name, member.device):
                return member.device
        # Until its side says more a worker's device has a name that nobody will use again.
        remarkable = {
            name for name, each in self.book.devices.items() if not each.unremarkable(time(), self.book.times)
        }
        if x in remarkable:
            return x
        if x in self._gone or x in self._gone.values():
            return self._gone.get(x, x)
        known = sorted({member.device for member in members} | remarkable)
        raise ValueError(
            f"there is no worker and no device {x!r}; known devices are {', '.join(map(repr, known)) or 'none'}"
        )

    # -- deciding and doing ------------------------------------------------------------------------------------------

    def hear(self, event: Event) -> list[dict[str, Any]]:
        """Take in an event, carry out what is decided, and give the rows of that."""
        if not self._on:
            return []
        return [self._decided(decision) for decision in self.book.handle(event, time())]

    def _decided(self, decision: Decision) -> dict[str, Any]:
        row = self.audit.decided(decision)
        for member in self._watch.members.all():
            if member.device == decision.device:
                member.phase = decision.after
                self._mild.discard(member.worker)
        if decision.actions and all(isinstance(action, Avoid | Admit) for action in decision.actions):
            self.audit.ended(row, "")
        for action in decision.actions:
            self._do(action, row)
        if decision.after is not decision.before:
            self._moved(decision)
        if device := self.book.devices.get(decision.device):
            self._memory.decided(decision, device)
        return row

    def _do(self, action: Action, row: dict[str, Any]) -> None:
        if not isinstance(action, Avoid | Admit):
            self._open[action.worker] = row
        try:
            self.enact.do(action, () if self.tries.handled is None else (self.tries.handled,))
        except Exception:
            # A fault of ours never fails what Dask does.
            logger.exception("dask-resilient: could not %s", words(action))

    def _moved(self, decision: Decision) -> None:
        attribution = self._watch.care.blame
        if decision.after is Phase.QUARANTINED:
            for member in self._watch.members.all():
                if member.device == decision.device:
                    self._gone |= dict.fromkeys((member.name, member.worker), member.device)
            attribution.out_of_service(decision.device, decision.cause.label)
            self.tries.quarantined(decision.cause.label)
        elif decision.before is Phase.PROBATION:
            self._sound(decision.device)
        elif decision.before is Phase.QUARANTINED and decision.cause.rule != CULPRIT:
            attribution.released(decision.device)
            if decision.cause.by != OURS:
                self._watch.care.verdicts.released(decision.device)
        if decision.after.held and not self.book.serving():
            logger.warning("dask-resilient: no device is left in service: the computation waits for a worker")
            self._watch.event("no-device", reason="no device is left in service: the computation waits for a worker")

    def _sound(self, device: str) -> None:
        """Take in that the processes of a device were found sound: what their tasks met says nothing more of them."""
        for record in self._watch.care.verdicts.records.values():
            if record.member.device == device and record.seen.drop_kind(Name.CUDA_ERROR):
                self._watch.care.blame.sound(record.member.worker)
                self._watch.care.verdicts.judge(record, time())

    def _ended(self, worker: str, outcome: str, **counts: int) -> None:
        row = self._open.get(worker)
        if row is not None:
            self.audit.ended(row, outcome, **counts)
