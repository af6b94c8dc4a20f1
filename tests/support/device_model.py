"""A model of quarantine that knows only the events and the decisions, and holds the decisions against its rules."""

from __future__ import annotations

from dask_resilient.core.actions import (
    OURS,
    Admit,
    Avoid,
    Cause,
    Culprit,
    Drain,
    Evict,
    Joined,
    Judged,
    Left,
    Phase,
    Quarantine,
    Restart,
    RunCanary,
    Tick,
    Tried,
)
from dask_resilient.core.breaker import Breaker
from dask_resilient.core.faults import Class
from dask_resilient.core.phases import TABLE, Times
from dask_resilient.core.quarantine import Book

TIMES = Times()
DAY = TIMES.day
EDGES = {(before, after) for (before, _), (after, _) in TABLE.items()}
BAD = [None, Class.KILL, Class.DRAIN, Class.EVICT]


def bad(verdict: Judged) -> bool:
    """Say whether a verdict asks for something."""
    return verdict.cls in BAD


class Model:
    """Sends events to a book, and replays its decisions."""

    def begin(self, n: int, each: int, observe: bool) -> None:
        """Have some devices with some workers each."""
        self.observe = observe
        self.book = Book(Breaker(observe=observe), TIMES)
        self.log: list[tuple[str, object, float, object]] = []
        self.now = 1e9
        self.clock = 0
        self.names = [f"GPU-{i}" for i in range(n)]
        self.where: dict[str, str] = {}  # worker -> device
        self.came: dict[str, int] = {}  # worker -> step
        self.going: set[str] = set()
        self.avoided: set[str] = set()
        self.said: dict[str, Judged] = {}
        self.overruled: dict[str, tuple[object, str]] = {}
        self.phases: dict[str, Phase] = {}
        self.entered: dict[str, tuple[int, float]] = {}
        self.deadline: dict[str, float] = {}
        self.returned: dict[str, float] = {}
        self.failed: dict[str, int] = {}
        self.strikes: dict[str, list[tuple[float, str]]] = {}
        self.replaced: dict[str, list[float]] = {}
        self.due: dict[str, float] = {}  # when a process may be tried
        self.untried: dict[str, int] = {}  # canaries that could not run, since it changed its phase or its process
        self.checked: set[str] = set()  # workers that are tried before they have to go
        self.label: dict[str, str] = {}  # what took a device out of service, empty if an operator or an earlier run did
        self.ordered: set[str] = set()  # devices that an operator wants out
        self.remembered: set[str] = set()
        self.taken: dict[str, float] = {}
        self.alarms: set[tuple[str, str, str]] = set()
        self.asked: dict[str, float] = {}  # when, by worker
        self.canaries: dict[str, str] = {}  # worker -> its device
        for i in range(n * each):
            self.send(Joined(f"w{i}", self.names[i // each], "node"))

    def phase(self, device: str) -> Phase:
        return self.phases.get(device, Phase.ACTIVE)

    def workers(self, device: str) -> set[str]:
        return {w for w, d in self.where.items() if d == device}

    def present(self, device: str) -> set[str]:
        return self.workers(device) - self.going

    def serving(self) -> set[str]:
        return {d for w, d in self.where.items() if w not in self.going and self.phase(d) is Phase.ACTIVE}

    def live(self, device: str) -> list[Judged]:
        """Give the verdicts about a device that ask for something and are not overruled."""
        said = [self.said[w] for w in self.present(device) if w in self.said and w not in self.overruled]
        return [verdict for verdict in said if bad(verdict)]

    def refused(self, device: str) -> bool:
        """Say whether no judgement may take a device."""
        recent = {d for d, at in self.taken.items() if self.now - at < 300} | {device}
        known = set(self.where.values()) | recent
        return not self.serving() - {device} or len(recent) > max(1, len(known) // 2)

    def locked(self, device: str) -> bool:
        return device in self.ordered or self.failed.get(device, 0) >= 2

    def send(self, event, dt: float = 0.0):
        self.now += dt
        self.clock += 1
        heard = self._heard(event)
        self.log.append(("handle", event, self.now, None))
        decided = self.book.handle(event, self.now)
        self.log[-1] = (*self.log[-1][:3], decided)
        for decision in decided:
            self.replay(decision, event)
        if not heard:
            assert decided == []
        return decided

    def _heard(self, event) -> bool:  # noqa: C901, PLR0912 - one arm an event
        """Take in an event; say whether anything may follow from it."""
        match event:
            case Joined(worker, device):
                if worker not in self.where:
                    self.came[worker] = self.clock
                if self.where.get(worker) not in {None, device}:
                    self.forget_alarms(worker)
                if self.where.get(worker) != device:
                    for known in (self.said, self.overruled, self.canaries):
                        known.pop(worker, None)
                self.where[worker] = device
            case Left(worker):
                self.forget_alarms(worker)
                for known in (self.where, self.came, self.said, self.overruled, self.canaries):
                    known.pop(worker, None)
                self.checked.discard(worker)
                self.going.discard(worker)
                self.avoided.discard(worker)
            case Judged(worker):
                if worker not in self.where or worker in self.going:
                    return False
                self.said[worker] = event
                if self.overruled.get(worker) == (event.cls, event.cause.rule):
                    return False
                self.overruled.pop(worker, None)
                if not bad(event) and not self.live(self.where[worker]):
                    self.alarms = {alarm for alarm in self.alarms if alarm[0] != self.where[worker]}
            case Quarantine(device):
                self.ordered.add(device)
            case Tried(worker, "unknown") if worker in self.canaries:
                self.inconclusive(worker)
            case Tried(worker):
                return worker in self.canaries
            case Tick():
                # One of each device is given up at a look.
                late = {d: w for w, d in sorted(self.canaries.items(), reverse=True) if self.now - self.asked[w] > 60}
                for worker in late.values():
                    self.inconclusive(worker)
                    del self.canaries[worker]
            case Culprit(label):
                for device, strikes in self.strikes.items():
                    self.strikes[device] = [strike for strike in strikes if strike[1] != label]
                return any(self.acquitted(device, label) for device in self.phases)
        return True

    def forget_alarms(self, worker: str) -> None:
        """Take in that a worker leaves its device: one without workers may be forgotten, then alarms are news again."""
        device = self.where.get(worker)
        if len(self.workers(device)) == 1:
            self.alarms = {alarm for alarm in self.alarms if alarm[0] != device}

    def inconclusive(self, worker: str) -> None:
        """Take in that a canary could not run: the next one comes later, unless the process has to go for it."""
        device = self.canaries[worker]
        if worker not in self.checked:
            n = self.untried[device] = self.untried.get(device, 0) + 1
            self.due[device] = max(self.due.get(device, 0), self.now + TIMES.try_delay * 4.0 ** min(n - 1, 6))

    def replay(self, decision, event) -> None:  # noqa: C901, PLR0912, PLR0915 - one check a rule
        """Take in a decision, and check it alone."""
        device, before, after, cause = decision.device, decision.before, decision.after, decision.cause
        assert before is self.phase(device)
        if decision.declined:
            assert not decision.actions
            assert before is after
            if cause.by == OURS:
                key = (device, cause.rule, decision.declined)
                assert key not in self.alarms
                self.alarms.add(key)
            return
        assert (before, after) in EDGES or event is None or isinstance(event, Joined)
        for action in decision.actions:
            if isinstance(action, Restart):
                being_tried = action.worker in self.checked and action.worker in self.canaries
                assert not being_tried or not self.said[action.worker].check or isinstance(event, Tried)
                self.replace(device, cause)
        if before is Phase.ACTIVE and after.held and cause.by == OURS and event is not None:
            assert not self.observe
            check = after is Phase.PROBATION and not self.restarts(decision)
            if check:
                self.check(event, decision.worker, device, cause)
            assert cause.fact or not self.refused(device)
        if self.takes(decision, event):
            self.taken[device] = self.now
        if before is Phase.QUARANTINED and after is Phase.ACTIVE and isinstance(event, Culprit):
            assert self.acquitted(device, event.label)
            self.taken.pop(device, None)
        elif before is Phase.QUARANTINED and after is Phase.ACTIVE and cause.by == OURS:
            assert isinstance(event, Tried)
            assert event.result == "right"
            assert not self.locked(device)
            assert not self.live(device)
        if after is not before:
            self.move(device, before, after, cause, event)
        if after is Phase.PROBATION and before is not after and not self.restarts(decision):
            self.checked.add(decision.worker)
            self.due[device] = self.now
        for action in decision.actions:
            self.act(action, device, after)
        if isinstance(event, Tried):
            self.canaries.pop(event.worker, None)

    def takes(self, decision, event) -> bool:
        """Say whether a judgement takes a device, or yet another process of it."""
        restarts = self.restarts(decision)
        check = decision.after is Phase.PROBATION and not restarts
        by_verdict = isinstance(event, Judged | Tick | Tried) and decision.worker and decision.cause.by == OURS
        changes = restarts or (decision.after is not decision.before and decision.after.held)
        return by_verdict and changes and not check and not decision.cause.fact

    def restarts(self, decision) -> bool:
        return any(isinstance(action, Restart) for action in decision.actions)

    def acquitted(self, device: str, label: str) -> bool:
        """Say whether only what tasks of a label are to blame for keeps a device out of service."""
        out = self.phase(device) is Phase.QUARANTINED and self.label.get(device) == label
        return out and not self.locked(device) and not self.live(device)

    def check(self, event, worker: str, device: str, cause: Cause) -> None:
        """Check that a process may be tried instead of being replaced."""
        strikes = [at for at, _ in self.strikes.get(device, ()) if self.now - at < DAY]
        asked = self.said[worker].check and (cause.culprit or not strikes or isinstance(event, Tick))
        assert asked or (len(strikes) > 1 and self.refused(device))
        if not cause.fact:
            self.strikes.setdefault(device, []).append((self.now, cause.label))

    def replace(self, device: str, cause: Cause) -> None:
        """Check that a process may be replaced, and note when the next one may be tried."""
        strikes = self.strikes.setdefault(device, [])
        assert cause.culprit or self.refused(device) or sum(self.now - at < DAY for at, _ in strikes) < 2
        if not cause.culprit:
            strikes.append((self.now, cause.label))
        replaced = self.replaced.setdefault(device, [])
        self.untried.pop(device, None)
        self.due[device] = self.now + [0, 5, 20, 60][min(3, sum(self.now - at < 600 for at in replaced))]
        replaced.append(self.now)

    def move(self, device, before, after, cause, event) -> None:  # noqa: C901 - one arm a phase
        self.phases[device] = after
        self.entered[device] = (self.clock, self.now)
        self.alarms = {alarm for alarm in self.alarms if alarm[0] != device}
        self.canaries = {w: d for w, d in self.canaries.items() if d != device}
        self.checked -= self.workers(device)
        self.untried.pop(device, None)
        self.label[device] = cause.label if cause.by == OURS else ""
        if after is Phase.QUARANTINED:
            wrong = before is Phase.PROBATION and isinstance(event, Tried)
            if wrong or self.now - self.returned.get(device, -1e9) < 3600:
                self.failed[device] = self.failed.get(device, 0) + 1
        if after is Phase.ACTIVE:
            if before is Phase.QUARANTINED and not isinstance(event, Culprit):
                self.returned[device] = self.now
            self.remembered.discard(device)
            if cause.by != OURS:
                self.strikes.pop(device, None)
                self.failed.pop(device, None)
                self.ordered.discard(device)
            if before is not Phase.SUSPECT or cause.by != OURS:
                for worker in self.workers(device):
                    self.overruled.pop(worker, None)
                    if worker in self.said and bad(self.said[worker]):
                        verdict = self.said[worker]
                        self.overruled[worker] = (verdict.cls, verdict.cause.rule)

    def act(self, action, device, after) -> None:
        worker = action.worker
        assert self.where[worker] == device
        assert worker not in self.going
        match action:
            case Avoid():
                assert after.held
                self.avoided.add(worker)
            case Admit():
                assert not after.held
                self.avoided.discard(worker)
            case Drain(_, deadline):
                assert after is Phase.DRAINING
                assert worker in self.avoided
                self.deadline[device] = deadline
            case Evict():
                assert after is Phase.QUARANTINED
                self.go(worker)
            case Restart():
                assert after is Phase.PROBATION
                self.go(worker)
            case RunCanary():
                assert worker in self.avoided
                assert after is not Phase.PROBATION or self.now >= self.due.get(device, 0)
                self.canaries[worker] = device
                self.asked[worker] = self.now
                if after is Phase.QUARANTINED:
                    step, at = self.entered[device]
                    assert self.came[worker] > step or device in self.remembered
                    assert self.said[worker].sign
                    assert not self.locked(device)
                    delay = TIMES.host_delay if device.startswith("host:") else TIMES.return_delay
                    assert self.now >= at + delay or device in self.remembered

    def go(self, worker) -> None:
        assert worker in self.avoided
        self.avoided.discard(worker)
        self.canaries.pop(worker, None)
        self.going.add(worker)
