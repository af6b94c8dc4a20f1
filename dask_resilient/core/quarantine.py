"""The phases of devices: which event leads from which to which, and what is done about it.

Everything here is a function of the events and their times. What follows from an event in a phase stands in
`dask_resilient.core.phases.TABLE`; what it does not name changes nothing.

1. A device has the phase, its workers are treated alike; only replacing a process is about one worker.
2. Judgements wait where the `Breaker` says so, facts and operators do not.
3. Nothing comes back by time alone: an operator says so, or the device itself does and then passes a canary.
4. No phase is without a way out.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from dask_resilient.core.actions import (
    OURS,
    Admit,
    Avoid,
    Cause,
    Culprit,
    Decision,
    Drained,
    Event,
    Joined,
    Judged,
    Left,
    Phase,
    Quarantine,
    Release,
    Tick,
    Tried,
)
from dask_resilient.core.breaker import Breaker
from dask_resilient.core.decider import Decider
from dask_resilient.core.devices import CANARY, CULPRIT, Device, forgettable
from dask_resilient.core.phases import ASKED, Ask, Times


class Book(Decider):
    """The phases of all devices of one cluster; the parameters are those of `Decider`."""

    def __init__(self, breaker: Breaker | None = None, times: Times | None = None) -> None:
        super().__init__(breaker or Breaker(), times or Times())
        self._of: dict[str, Device] = {}
        """By worker."""
        self._came: dict[str, float] = {}
        """When each worker joined."""
        self._arms: dict[type, Callable[[Any, float], list[Decision]]] = {
            Joined: self._joined,
            Left: self._left,
            Judged: self._judged,
            Drained: self._drained,
            Tried: self._tried,
            Culprit: self._culprit,
            Quarantine: self._operator,
            Release: self._operator,
            Tick: self._tick,
        }

    def handle(self, event: Event, now: float) -> list[Decision]:
        """Take in an event; give what was decided, for the caller to enact in order."""
        return self._arms[type(event)](event, now)

    def remember(self, name: str, host: str, cause: Cause, since: float, failed: int, locked: bool) -> list[Decision]:
        """Take in that a device was quarantined in an earlier run; give what that means for workers that are there."""
        device = self._get(name)
        device.host, before = device.host or host, device.phase
        if self.breaker.observe and cause.by == OURS:
            return self._alarm(device, Ask.EVICT, cause, "", since, self._refusal(device, cause, since))
        device.recall(cause, since, failed, locked, self.times)
        if device.phase is before:
            return []
        self._alarms.forget(name)
        avoid = tuple(map(Avoid, sorted(device.present)))
        return [device.decide(before, cause, "", since, avoid)] if avoid else []

    # -- arms ----------------------------------------------------------------------------------------------------------

    def _joined(self, event: Joined, now: float) -> list[Decision]:
        worker, before = event.worker, self._of.get(event.worker)
        if before is not None and before.name == event.device:
            before.host = event.host or before.host
            return []
        shut, going = (before.phase.held, worker in before.leaving) if before is not None else (False, False)
        came = self._came.get(worker, math.inf)
        decided = self._left(Left(worker), now)  # its GPU became known only now
        self._came[worker] = min(came, now)
        device = self._of[worker] = self._get(event.device)
        device.workers.add(worker)
        device.host = event.host or device.host
        if going:
            device.leaving.add(worker)
        elif device.phase.held:
            if came > device.since:
                device.new.add(worker)
            decided += self._ask(device, Ask.JOINED, device.cause or Cause("joined"), worker, now)
            decided += self._try(device, now) if device.phase is Phase.PROBATION else []
        elif shut:
            cause = Cause("joined", (f"its device is {device.name}, which is in service",))
            decided.append(device.decide(device.phase, cause, worker, now, (Admit(worker),)))
        return decided

    def _left(self, event: Left, now: float) -> list[Decision]:
        device = self._of.pop(event.worker, None)
        self._came.pop(event.worker, None)
        if device is None:
            return []
        device.forget(event.worker)
        if device.workers:
            return self._all_drained(device, now)
        return self._ask(device, Ask.GONE, device.cause or Cause("left"), event.worker, now)

    def _judged(self, event: Judged, now: float, *, old: bool = False) -> list[Decision]:
        device = self._of.get(event.worker)
        if device is None or not device.hear(event):
            return []
        ask = ASKED.get(event.cls, Ask.CLEAR)
        if ask is Ask.CLEAR:
            if device.bad():
                return []  # another worker of the same device says otherwise
            self._alarms.forget(device.name)
            if device.phase is Phase.QUARANTINED:
                return self._try(device, now)
        if event.check and event.worker in device.checking:
            return self._try(device, now)  # it is about to be tried, or is just now
        if ask is Ask.KILL and event.check:
            # An old verdict is one that had to wait: by now it may well compute right.
            mild = event.cause.culprit or not device.strikes or old
            ask = Ask.CHECK if mild else Ask.KILL if event.nanny else Ask.DRAIN
        decided = self._ask(device, ask, event.cause, event.worker, now)
        return decided + (self._try(device, now) if event.worker in device.checking else [])

    def _drained(self, event: Drained, now: float) -> list[Decision]:
        if (device := self._of.get(event.worker)) is None:
            return []
        device.drained.add(event.worker)
        return self._all_drained(device, now)

    def _all_drained(self, device: Device, now: float) -> list[Decision]:
        return self._ask(device, Ask.DRAINED, device.cause or Cause("drained"), "", now) if device.all_drained() else []

    def _tried(self, event: Tried, now: float) -> list[Decision]:
        device = self._of.get(event.worker)
        if device is None or device.trying.pop(event.worker, None) is None:
            return []
        out = device.phase is Phase.QUARANTINED
        if event.result == "right":
            if out and not device.sign():
                return []  # it may not be used again after all
            cause = Cause(CANARY, ("its process computed right",))
            return self._ask(device, Ask.RIGHT, cause, event.worker, now)
        if event.result == "wrong":
            if out:
                device.fail(True, now, self.times)
            cause = Cause(CANARY, (event.reason or "the product of two matrices of integers was wrong",), fact=True)
            return self._ask(device, Ask.WRONG, cause, event.worker, now)
        return self._untried(device, event, now)

    def _untried(self, device: Device, event: Tried, now: float) -> list[Decision]:
        """Take in that a canary could not run."""
        if event.worker in device.checking:
            device.checking.discard(event.worker)
            cause = device.cause or Cause(CANARY)
            cause = replace(cause, evidence=(*cause.evidence, f"and its process cannot be tried: {event.reason}"))
            # Where a text is all there is, a process that is only busy is not lost for it.
            return self._ask(device, Ask.KILL if cause.fact else Ask.UNTRIED, cause, event.worker, now)
        device.inconclusive(now, self.times)
        if device.phase is not Phase.PROBATION or device.untried < self.times.tries:
            return []
        cause = Cause(CANARY, (f"it could not run, so the new process is taken as it is: {event.reason}",))
        return self._ask(device, Ask.UNTRIED, cause, event.worker, now)

    def _culprit(self, event: Culprit, now: float) -> list[Decision]:
        cause = Cause(CULPRIT, (event.reason,), label=event.label)
        free = [device for device in self.devices.values() if device.acquit(event.label)]
        self._taken = [one for one in self._taken if one[1] not in {device.name for device in free}]
        told = []
        if event.device and self._alarms.is_news("", event.label):
            device = self._get(event.device)
            told.append(device.decide(device.phase, cause, "", now))
        return told + [decision for device in free for decision in self._ask(device, Ask.RELEASE, cause, "", now)]

    def _operator(self, event: Quarantine | Release, now: float) -> list[Decision]:
        device = self._get(event.device)
        cause = Cause("operator", (event.reason,) if event.reason else (), by=event.by)
        wants_out = isinstance(event, Quarantine)
        news, device.locked = wants_out and not device.locked, device.locked or wants_out
        decided = self._ask(device, Ask.DRAIN if wants_out else Ask.RELEASE, cause, "", now)
        decided += self._all_drained(device, now)  # where it has no worker
        if news and not decided:
            device.cause = cause  # it is out already, and for longer now
            return [device.decide(device.phase, cause, "", now)]
        why = f"it is {device.phase} already"
        return decided or [device.decide(device.phase, cause, "", now, declined=why)]

    def _tick(self, event: Tick, now: float) -> list[Decision]:  # noqa: ARG002
        decided = [decision for device in list(self.devices.values()) for decision in self._look(device, now)]
        for name in forgettable(self.devices.values(), now, self.times):
            del self.devices[name]
            self._alarms.forget(name)
        return decided

    def _look(self, device: Device, now: float) -> list[Decision]:
        """See what time has brought for one device."""
        late = device.overdue(now, self.times)
        decided = self._tried(Tried(late, "unknown", f"no answer in {self.times.answer:g} s"), now) if late else []
        decided = decided or self._end(device, now)
        for _, verdict in device.bad():
            decided = decided or self._judged(verdict, now, old=True)  # what the breaker declined may be enacted by now
        return decided or self._try(device, now)

    def _end(self, device: Device, now: float) -> list[Decision]:
        """End what has lasted long enough."""
        if device.phase is Phase.DRAINING and now >= device.deadline:
            cause = device.cause or Cause("drain")
            cause = replace(cause, evidence=(*cause.evidence, "the time for draining it is up"))
            return self._ask(device, Ask.DRAINED, cause, "", now)
        if device.phase is Phase.SUSPECT and not (self.serving() and device.bad()):
            none = "no device is left in service, so it is used in spite of the doubt"
            cause = Cause("suspect", ("the worker in doubt is gone" if self.serving() else none,))
            return self._ask(device, Ask.CLEAR, cause, "", now)
        return []
