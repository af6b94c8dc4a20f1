"""Any order of events keeps the rules of quarantine, as a model sees them that knows only events and decisions."""

from __future__ import annotations

from copy import deepcopy

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from dask_resilient.core.actions import (
    OURS,
    Cause,
    Culprit,
    Drained,
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
from dask_resilient.core.devices import MOST_IDLE
from dask_resilient.core.faults import Class
from dask_resilient.core.quarantine import Book
from tests.support.device_model import BAD, DAY, TIMES, Model

ADDRESSES = [f"w{n}" for n in range(12)]
STEPS = [0.0, 0.0, 0.0, 1.0, 5.0, 40.0, 61.0, 290.0, 310.0, 700.0, 3_500.0, 20_000.0, 2 * DAY]
LABELS = ["", "sum: 700", "mean: 719"]

steps = st.sampled_from(STEPS)
some = st.integers(0, 11)


class Machine(Model, RuleBasedStateMachine):
    """Any events in any order."""

    @initialize(n=st.integers(1, 6), each=st.integers(1, 2), observe=st.sampled_from([False] * 6 + [True]))
    def start(self, n: int, each: int, observe: bool) -> None:
        self.begin(n, each, observe)

    # -- events --------------------------------------------------------------------------------------------------------

    def one(self, i: int, among) -> str | None:
        among = sorted(among)
        return among[i % len(among)] if among else None

    @rule(i=some, d=st.integers(-1, 5), dt=steps)
    def join(self, i: int, d: int, dt: float) -> None:
        """A worker joins, of a known device or of one that is not known yet."""
        worker = self.one(i, set(ADDRESSES) - set(self.where))
        if worker is None:
            return
        device = f"host:{worker}" if d < 0 else self.names[d % len(self.names)]
        self.send(Joined(worker, device, "node"), dt)
        if self.phase(device) is Phase.PROBATION:
            assert self.now < self.due.get(device, 0) or device in self.canaries.values()

    @rule(i=some, d=st.integers(0, 5), dt=steps)
    def know(self, i: int, d: int, dt: float) -> None:
        """A worker's GPU becomes known."""
        worker = self.one(i, self.where)
        if worker is not None:
            self.send(Joined(worker, self.names[d % len(self.names)]), dt)

    @rule(i=some, dt=steps)
    def leave(self, i: int, dt: float) -> None:
        worker = self.one(i, self.going or self.where)
        if worker is not None:
            self.send(Left(worker), dt)

    @rule(
        i=some,
        cls=st.sampled_from(BAD),
        fact=st.booleans(),
        culprit=st.booleans(),
        label=st.sampled_from(LABELS),
        check=st.booleans(),
        dt=steps,
    )
    def judge(self, i: int, cls: Class | None, fact: bool, culprit: bool, label: str, check: bool, dt: float) -> None:
        """A verdict asks for something."""
        fact = fact and cls is not None
        cause = Cause(f"{cls}.{fact}", ("seen",), fact=fact, label=label, culprit=culprit and cls is Class.KILL)
        self.send(Judged(self.one(i, self.where or ADDRESSES), cls, cause, check), dt)

    @rule(verdicts=st.lists(st.tuples(some, st.sampled_from([*BAD, Class.OBSERVE])), min_size=2, max_size=8), dt=steps)
    def storm(self, verdicts: list[tuple[int, Class | None]], dt: float) -> None:
        """Many judgements come at once, then everybody looks again."""
        for i, cls in verdicts:
            self.send(Judged(self.one(i, self.where or ADDRESSES), cls, Cause(f"{cls}.False", ("seen",))), dt)
            dt = 0.0
        self.tick(0.0)

    @rule(i=some, culprit=st.booleans(), label=st.sampled_from(LABELS), dt=steps, then=steps)
    def text(self, i: int, culprit: bool, label: str, dt: float, then: float) -> None:
        """Only a text says that a process is broken; somebody looks before it has been tried, or after."""
        cause = Cause("cuda.700", ("seen",), fact=culprit, label=label, culprit=culprit)
        self.send(Judged(self.one(i, self.where or ADDRESSES), Class.KILL, cause, True), dt)
        self.send(Tick(), then)

    @rule(i=some, cls=st.sampled_from([Class.OBSERVE, Class.DEGRADE]), sign=st.booleans(), dt=steps)
    def clear(self, i: int, cls: Class, sign: bool, dt: float) -> None:
        """A verdict asks for nothing."""
        self.send(Judged(self.one(i, self.where or ADDRESSES), cls, Cause("fine"), sign=sign), dt)

    @precondition(lambda self: Phase.QUARANTINED in self.phases.values())
    @rule(d=st.integers(0, 5), dt=st.sampled_from([70.0, 5_000.0]))
    def come_back(self, d: int, dt: float) -> None:
        """A new process of a quarantined device says that it is fine."""
        device = self.one(d, [name for name, phase in self.phases.items() if phase is Phase.QUARANTINED])
        worker = self.one(0, set(ADDRESSES) - set(self.where))
        if worker is not None:
            self.send(Joined(worker, device, "node"))
            self.send(Judged(worker, Class.OBSERVE, Cause("fine"), sign=True), dt)

    @rule(i=some, dt=steps)
    def drained(self, i: int, dt: float) -> None:
        self.send(Drained(self.one(i, ADDRESSES)), dt)

    @rule(
        i=some,
        result=st.sampled_from(["right", "right", "wrong", "unknown"]),
        asked=st.booleans(),
        dt=st.sampled_from([0.1, 9.0, 70.0]),
    )
    def tried(self, i: int, result: str, asked: bool, dt: float) -> None:
        worker = self.one(i, (self.canaries if asked else self.going) or ADDRESSES)
        device = self.canaries.get(worker)
        out = device is not None and self.phase(device) is Phase.QUARANTINED
        decided = self.send(Tried(worker, result, "reason"), dt)
        self.canaries.pop(worker, None)
        if device is None:
            return
        if out:
            self.failed[device] = self.failed.get(device, 0) + (result == "wrong")
        elif result != "unknown":
            assert [decision.after for decision in decided] == [
                Phase.ACTIVE if result == "right" else Phase.QUARANTINED
            ]

    @rule(label=st.sampled_from(LABELS[1:]), dt=steps)
    def culprit(self, label: str, dt: float) -> None:
        self.send(Culprit(label), dt)

    @rule(d=st.integers(0, 5), dt=steps)
    def quarantine(self, d: int, dt: float) -> None:
        """An operator's word is done at once."""
        device = self.names[d % len(self.names)]
        decided = self.send(Quarantine(device, "alice", "why"), dt)
        assert self.phase(device) in {Phase.DRAINING, Phase.QUARANTINED}
        assert decided

    @rule(d=st.integers(0, 5), dt=steps)
    def release(self, d: int, dt: float) -> None:
        """An operator's word is done at once."""
        device = self.one(d, self.phases) or self.names[0]
        assert self.send(Release(device, "alice"), dt)
        assert self.phase(device) is Phase.ACTIVE

    @rule(d=st.integers(0, 5), ago=steps, failed=st.integers(0, 2), by=st.sampled_from([OURS, "alice"]))
    def remember(self, d: int, ago: float, failed: int, by: str) -> None:
        """A device was quarantined in an earlier run."""
        device = self.names[d % len(self.names)]
        args = (device, "node", Cause("xid.79", ("seen",), by=by), self.now - ago, failed, by != OURS)
        self.clock += 1
        decided = self.book.remember(*args)
        self.log.append(("remember", args, self.now, decided))
        if self.observe and by == OURS:
            assert not any(decision.actions for decision in decided)
            return
        before = self.phase(device)
        self.failed[device] = max(self.failed.get(device, 0), failed)
        if by != OURS:
            self.ordered.add(device)
        if before in {Phase.DRAINING, Phase.QUARANTINED}:
            assert decided == []
            return
        self.remembered.add(device)
        was = self.failed[device]
        for decision in decided:
            self.replay(decision, None)
        if not decided:
            assert not self.present(device)
            self.move(device, before, Phase.QUARANTINED, Cause("xid.79"), None)
        self.failed[device] = was

    @rule(dt=steps)
    def tick(self, dt: float) -> None:
        """Time passes until nothing more is decided: soon, and then nothing waits that need not."""
        decided = self.send(Tick(), dt)
        assert all(phase is not Phase.SUSPECT for phase in self.phases.values()) or self.serving()
        for _ in range(40):
            if not decided:
                break
            decided = self.send(Tick())
        assert decided == []
        for device, phase in self.phases.items():
            if phase is Phase.DRAINING:
                assert self.now < self.deadline.get(device, self.now + 1)
            if phase is Phase.SUSPECT:
                assert self.live(device)
            if phase is Phase.ACTIVE and not self.observe:
                assert all(self.refused(device) and not verdict.cause.fact for verdict in self.live(device))

    # -- what always holds ---------------------------------------------------------------------------------------------

    @invariant()
    def held_workers_get_no_tasks(self) -> None:
        """Workers that are there to stay are avoided exactly where their device is held."""
        held = {w for w, d in self.where.items() if self.phase(d).held} - self.going
        assert self.avoided == held

    @invariant()
    def phases_are_told(self) -> None:
        """No phase changes without a decision that says so."""
        for device in {*self.phases, *self.book.devices}:
            assert self.book.phase(device) is self.phase(device)
        assert self.book.serving() == self.serving()
        if self.observe:
            assert all(d in self.ordered for d, phase in self.phases.items() if phase.held)

    def teardown(self) -> None:
        if hasattr(self, "book"):
            self.same_again()
            for device in [name for name, phase in self.phases.items() if phase.held]:
                self.ways_out(device)
            self.forgotten()

    def same_again(self) -> None:
        """The same events at the same times lead to the same decisions."""
        book = Book(Breaker(observe=self.observe), TIMES)
        for what, event, now, decided in self.log:
            assert (book.handle(event, now) if what == "handle" else book.remember(*event)) == decided

    def ways_out(self, device: str) -> None:
        """An operator ends any phase, and unless it is locked, so do new processes that are sound."""
        book = deepcopy(self.book)
        book.handle(Release(device, "alice"), self.now)
        assert book.phase(device) is Phase.ACTIVE
        book, now = deepcopy(self.book), self.now
        for worker in self.workers(device):
            book.handle(Left(worker), now)
        for _ in range(60):
            if book.phase(device) is Phase.ACTIVE:
                break
            now += 3 * DAY
            book.handle(Joined("new", device), now)
            decided = book.handle(Judged("new", Class.OBSERVE, Cause("fine"), sign=True), now)
            decided += book.handle(Tick(), now)
            book.handle(Tried("new", "right"), now)
        assert (book.phase(device) is Phase.ACTIVE) is not self.locked(device)

    def forgotten(self) -> None:
        """What has no worker and is in service is forgotten, unless it failed a requalification."""
        for worker in sorted(self.where):
            self.send(Left(worker))
        self.send(Tick(), 2 * DAY)
        self.send(Tick())
        assert len(self.book.devices) <= MOST_IDLE
        for name in self.book.devices:
            assert self.phase(name).held or self.failed.get(name)
        assert not self.avoided


def test_any_order_of_events_keeps_the_rules() -> None:
    """Short lives of small clusters."""
    run_state_machine_as_test(Machine, settings=settings(max_examples=100, stateful_step_count=40, deadline=None))


@pytest.mark.slow
def test_any_long_order_of_events_keeps_the_rules() -> None:
    """Long lives of small clusters."""
    run_state_machine_as_test(Machine, settings=settings(max_examples=400, stateful_step_count=100, deadline=None))
