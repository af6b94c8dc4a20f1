"""One device: its phase, its workers, and what it has cost so far."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from dask_resilient.core.actions import (
    OURS,
    Action,
    Admit,
    Avoid,
    Cause,
    Decision,
    Drain,
    Evict,
    Judged,
    Phase,
    Restart,
    RunCanary,
)
from dask_resilient.core.faults import Class
from dask_resilient.core.phases import ASKED, Do, Times

CANARY = "canary"
"""The rule of what a canary found."""

CULPRIT = "culprit"
"""The rule by which a device is free again whose faults were those of tasks."""

MOST_STEPS = 6
"""How often a wait grows at most: to 4096 times the first."""

MOST_IDLE = 1000
"""Devices without workers that are remembered at most."""

MOST = 100
"""What is remembered at most of each thing that a device has cost."""


@dataclass(slots=True)
class Device:
    """What is known of one device."""

    name: str
    host: str = ""
    phase: Phase = Phase.ACTIVE
    since: float = 0.0
    cause: Cause | None = None
    """Of the phase, None for one that was never out of service."""
    workers: set[str] = field(default_factory=set)
    new: set[str] = field(default_factory=set)
    """Those that joined while it was out of service: processes that hold nothing."""
    leaving: set[str] = field(default_factory=set)
    """Those that have been told to go."""
    drained: set[str] = field(default_factory=set)
    """Those of which nothing is left that could be saved or moved."""
    strikes: list[tuple[float, str]] = field(default_factory=list)
    """When a process had to be replaced, and for what."""
    replaced: list[float] = field(default_factory=list)
    """The same, whoever was to blame."""
    deadline: float = math.inf
    due: float = 0.0
    """When the next canary may run."""
    checking: set[str] = field(default_factory=set)
    """Those that a canary has to try before it is known whether they have to go."""
    trying: dict[str, float] = field(default_factory=dict)
    """The workers whose canaries run, and since when."""
    untried: int = 0
    failed: int = 0
    returned: float = -math.inf
    locked: bool = False
    """Whether only an operator brings it back."""

    verdicts: dict[str, Judged] = field(default_factory=dict)
    """The last of each worker."""
    overruled: dict[str, tuple[Class | None, str]] = field(default_factory=dict)
    """Verdicts in spite of which it came back: they count again once they change."""

    @property
    def present(self) -> set[str]:
        """Give the workers that are there to stay."""
        return self.workers - self.leaving

    def unremarkable(self, now: float, times: Times) -> bool:
        """Say whether nothing of it is worth remembering: it is in service, without a worker, and has cost nothing."""
        if self.workers or self.phase.held or self.failed:
            return False
        costs = (*self.replaced, *(at for at, _ in self.strikes))
        return now - max(costs, default=-math.inf) >= times.day

    # -- what its phase is ---------------------------------------------------------------------------------------------

    def enter(self, phase: Phase, cause: Cause, now: float, times: Times) -> None:
        """Put it into another phase."""
        before, self.phase, self.since, self.cause = self.phase, phase, now, cause
        self.trying, self.untried, self.checking = {}, 0, set()
        match phase:
            case Phase.ACTIVE:
                again = before is Phase.QUARANTINED and cause.rule != CULPRIT
                self.returned = now if again else self.returned
                self.new.clear()
                if cause.by != OURS:
                    self.failed, self.locked, self.strikes = 0, False, []
                if before is not Phase.SUSPECT or cause.by != OURS:
                    # A suspect that is used for want of another one comes out again once there is one.
                    self.overruled = {w: _said(verdict) for w, verdict in self.verdicts.items() if verdict.cls in ASKED}
            case Phase.DRAINING:
                self.drained, self.deadline = set(), now + times.drain
            case Phase.QUARANTINED:
                wrong = before is Phase.PROBATION and cause.rule == CANARY
                self.fail(wrong or now - self.returned < times.relapse, now, times)
            case Phase.PROBATION:
                self.due = now
                self.new.clear()
            case Phase.SUSPECT:
                pass

    def recall(self, cause: Cause, since: float, failed: int, locked: bool, times: Times) -> None:
        """Take in that it was quarantined in an earlier run; what it holds by now may be kept, and may be read."""
        self.failed = max(self.failed, failed)
        self.locked = self.locked or locked or self.failed >= times.failed
        if self.phase in {Phase.DRAINING, Phase.QUARANTINED}:
            return
        self.phase, self.since, self.cause = Phase.QUARANTINED, since, cause
        self.trying, self.untried, self.new = {}, 0, self.present
        self.fail(False, since, times)

    def fail(self, failed: bool, now: float, times: Times) -> None:
        """Take in whether a requalification has failed: the next one comes later, and after some none comes."""
        self.failed += failed
        self.locked = self.locked or self.failed >= times.failed
        delay = times.host_delay if self.name.startswith("host:") else times.return_delay
        self.due = now + delay * 4.0 ** min(self.failed, MOST_STEPS)

    def struck_out(self, now: float, times: Times) -> bool:
        """Say whether one more process that fails would be one too many within a day."""
        self.strikes = [strike for strike in self.strikes[-MOST:] if now - strike[0] < times.day]
        return len(self.strikes) + 1 >= times.strikes

    def one_too_many(self, cause: Cause, now: float, times: Times) -> Cause | None:
        """Give why it is to go together with a process that failed, None if it need not; that is a judgement."""
        if cause.culprit or self.phase is Phase.DRAINING or not self.struck_out(now, times):
            return None
        why = f"processes of this device have failed {times.strikes} times within a day"
        return replace(cause, evidence=(*cause.evidence, why), fact=False)

    def decide(
        self,
        before: Phase,
        cause: Cause,
        worker: str,
        now: float,
        actions: tuple[Action, ...] = (),
        declined: str = "",
    ) -> Decision:
        """Write down what was decided about it, after it was."""
        return Decision(now, self.name, self.host, worker, before, self.phase, cause, actions, declined)

    def acquit(self, label: str) -> bool:
        """Take back what tasks of a label have cost it; say whether nothing else keeps it out of service."""
        self.strikes = [strike for strike in self.strikes if strike[1] != label]
        if self.phase is not Phase.QUARANTINED or self.cause is None or self.cause.label != label:
            return False
        return self.cause.by == OURS and not self.locked and not self.bad()

    def all_drained(self) -> bool:
        """Say whether nothing is left that could be saved or moved."""
        return self.phase is Phase.DRAINING and self.present <= self.drained

    def overdue(self, now: float, times: Times) -> str:
        """Give a worker whose canary does not answer, empty if there is none."""
        return min((worker for worker, began in self.trying.items() if now - began > times.answer), default="")

    def inconclusive(self, now: float, times: Times) -> None:
        """Take in that a canary could not run: the next one comes later."""
        self.untried += 1
        self.due = max(self.due, now + times.try_delay * 4.0 ** min(self.untried - 1, MOST_STEPS))

    # -- what is said of it --------------------------------------------------------------------------------------------

    def hear(self, event: Judged) -> bool:
        """Take in a verdict of one of its workers; say whether it counts."""
        if event.worker in self.leaving:
            return False
        self.verdicts[event.worker] = event
        if self.overruled.get(event.worker) == _said(event):
            return False
        self.overruled.pop(event.worker, None)
        return True

    def bad(self) -> list[tuple[str, Judged]]:
        """Give the verdicts that count and ask for something."""
        workers = sorted(self.present & self.verdicts.keys() - self.overruled.keys())
        return [(w, self.verdicts[w]) for w in workers if self.verdicts[w].cls in ASKED]

    def sign(self) -> str:
        """Give a new process that says that the device may be used again, where nobody says otherwise, or nothing."""
        if self.locked or self.bad():
            return ""
        workers = self.new & self.present & self.verdicts.keys()
        return min((worker for worker in workers if self.verdicts[worker].sign), default="")

    def able(self, now: float, times: Times) -> str:
        """Give the worker that a canary may try on probation, empty if there is none."""
        # Where the nanny brings no new process, another worker of the same device may say how it is.
        began = max(self.replaced, default=self.since)
        workers = (self.new | self.checking) & self.present or (self.present if now - began > times.answer else set())
        return min(workers, default="")

    # -- what is done to its workers -----------------------------------------------------------------------------------

    def act(  # noqa: C901 - one arm a thing to do
        self, do: Do, worker: str, one: str, cause: Cause, now: float, times: Times
    ) -> Iterator[Action]:
        """Give the actions that something to be done comes to: on one worker if it is given, else on all of them.

        Only the process of the worker that it comes from is replaced.
        """
        workers = {one} if one else self.present
        match do:
            case Do.AVOID:
                yield from map(Avoid, sorted(workers))
            case Do.ADMIT:
                yield from map(Admit, sorted(workers))
            case Do.DRAIN:
                yield from (Drain(each, self.deadline) for each in sorted(workers))
            case Do.EVICT:
                yield from map(Evict, sorted(workers))
                self.leaving |= workers
                self.trying = {}
            case Do.RESTART:
                yield Restart(worker)
                self.leaving.add(worker)
                self.trying.pop(worker, None)
                self.untried = 0
                self._cost(cause, now, times)
            case Do.CHECK:
                self.checking.add(worker)
                if not cause.fact:
                    self.strikes.append((now, cause.label))
            case Do.TRY:
                self.trying[worker] = now
                yield RunCanary(worker)

    def _cost(self, cause: Cause, now: float, times: Times) -> None:
        """Count a process that failed: the next one gets tasks later than the one before."""
        self.replaced = [at for at in self.replaced[-MOST:] if now - at < times.calm]
        n = len(self.replaced)
        self.due = now + (min(times.delay * 4.0 ** min(n - 1, MOST_STEPS), times.most_delay) if n else 0.0)
        self.replaced.append(now)
        if not cause.culprit:
            self.strikes.append((now, cause.label))

    def forget(self, worker: str) -> None:
        """Take in that a worker is gone."""
        for workers in (self.workers, self.new, self.leaving, self.drained, self.checking):
            workers.discard(worker)
        self.verdicts.pop(worker, None)
        self.overruled.pop(worker, None)
        self.trying.pop(worker, None)


def forgettable(devices: Iterable[Device], now: float, times: Times) -> list[str]:
    """Give the devices to be forgotten: where nothing is worth remembering, and the oldest of too many without workers.

    Hosts' go before GPUs': names of workers without a GPU come and go, GPUs are few.
    """
    idle = [device for device in devices if not device.workers]
    idle.sort(key=lambda each: (not each.name.startswith("host:"), each.locked, each.since, each.name))
    extra = len(idle) - MOST_IDLE
    return [each.name for n, each in enumerate(idle) if n < extra or each.unremarkable(now, times)]


def _said(verdict: Judged) -> tuple[Class | None, str]:
    return verdict.cls, verdict.cause.rule
