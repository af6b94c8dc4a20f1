"""A loop that was interrupted ends as one that was not; what fails protects less, and says so once."""

from __future__ import annotations

import logging
import random
import warnings
from dataclasses import dataclass, field
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_resilient import partitions
from dask_resilient.client import loop as module
from dask_resilient.client.loop import Loop, loop
from dask_resilient.core.fingerprints import Fingerprint, changes
from dask_resilient.core.loops import LoopPlan
from dask_resilient.core.outcome import Declined
from dask_resilient.errors import Damaged, ResilienceWarning, SettingError, StoreError, Unreachable, UnsupportedType


@dataclass
class Memory:
    """Snapshots in the memory of this process, as bytes; failures come from a table."""

    devices = 1

    kept: dict[tuple[str, int], Any] = field(default_factory=dict)
    calls: list[Any] = field(default_factory=list)
    failing: dict[Any, Exception] = field(default_factory=dict)
    lineages: list[Fingerprint] = field(default_factory=list)
    reasons: tuple[str, ...] = ()
    identity: str = ""

    def _called(self, *call):
        self.calls.append(call)
        for known in (call, call[0]):
            if known in self.failing:
                raise self.failing[known]

    def open(self, name, identity, lineage, reasons, steps):
        self._called("open", name)
        self.identity, self.reasons = identity, reasons
        self.lineages.append(lineage)
        return sorted(step for known, step in self.kept if known == identity)

    def restore(self, step):
        self._called("restore", step)
        codec, schema, raw, collections = self.kept[self.identity, step]
        return partitions.restore(codec, schema, np.frombuffer(bytearray(raw), np.uint8)) | collections

    def save(self, step, plain, collections):
        self._called("save", step)
        staged = partitions.stage(plain)
        assert not isinstance(staged, Declined)
        raw = b"".join(bytes(buffer) for chunk in staged.chunks for buffer in chunk)[: staged.nbytes]
        kept = {name: each.persist(scheduler="sync") for name, each in collections.items()}
        self.kept[self.identity, step] = staged.codec, dict(staged.schema), raw, kept
        return kept

    def drop(self, steps):
        self._called("drop", *steps)
        for step in steps:
            del self.kept[self.identity, step]

    @property
    def steps(self):
        return [step for _, step in self.kept]


@pytest.fixture
def memory(monkeypatch):
    """Give where snapshots go in this test."""
    made = Memory()
    monkeypatch.setattr(module, "find_snapshots", lambda: made)
    return made


class Interrupted(Exception):
    """What ends a run."""


class Switch(logging.Logger):
    """Interrupts at a step; a logger takes no part in what a loop is known by."""

    def __init__(self, at=-1):
        super().__init__("switch")
        self.at, self.seen = at, []

    def tick(self, step):
        self.seen.append(step)
        if step == self.at:
            raise Interrupted(step)


def walk(switch, **how):
    """Run a loop that uses all kinds of state, in place and not."""
    x = np.arange(6.0)
    made = loop("walk", 8, **{"every": 3, **how})
    for step, state in made(
        x=x, rng=np.random.default_rng(7), old=np.random.RandomState(3), r=random.Random(5), seen=[]
    ):
        state.x += state.rng.normal(size=6)
        state.seen.append((step, state.old.randn(), state.r.gauss(0, 1)))
        if step == 4:
            state.added = {"rngs": [state.rng, state.r]}
        if step > 4:
            state.x[0] += state.added["rngs"][0].random()
        switch.tick(step)
    return made.state


def text_of(state):
    """Give all of a state as text, bits of numbers included."""
    shown = {name: value for name, value in vars(state).items() if name not in ("rng", "old", "r", "added")}
    return repr(shown) + state.x.tobytes().hex() + repr((state.rng.random(), state.old.rand(), state.r.random()))


@pytest.mark.parametrize("at", range(8))
@pytest.mark.parametrize("every", [1, 3, "auto"])
def test_an_interrupted_run_ends_as_an_uninterrupted_one(at, every, memory):
    switch = Switch(at)
    with pytest.raises(Interrupted):
        walk(switch, every=every)
    before = len(switch.seen)
    first = min(memory.steps, default=-1)
    again = Switch()
    state = walk(again, every=every)
    assert again.seen == list(range(again.seen[0], 8))
    assert (again.seen[0] > 0) == (first >= 0)
    assert again.seen[0] <= before
    kept, memory.kept = memory.kept, {}
    expected = walk(Switch(), every=every)
    assert text_of(state) == text_of(expected)
    assert kept
    assert state.added["rngs"][0] is state.rng


def test_a_run_that_is_interrupted_again_and_again_ends_too(memory):
    for at in (1, 4, 5, 7):
        with pytest.raises(Interrupted):
            walk(Switch(at), every=2)
    state = walk(Switch(), every=2)
    memory.kept.clear()
    assert text_of(state) == text_of(walk(Switch(), every=2))


def test_a_loop_that_is_done_gives_nothing_but_its_state(memory):
    expected = text_of(walk(Switch()))
    again = Switch()
    assert text_of(walk(again)) == expected
    assert again.seen == []


def test_the_callers_objects_stay_as_they_are(memory):
    """Whether a step changes its field in place, or another run begins in the middle."""
    x, made = np.zeros(2), loop("l", 3)
    for _, state in made(x=x):
        state.x += 1
    assert x.tolist() == [0, 0]
    assert made.state.x.tolist() == [3, 3]


# -- when --------------------------------------------------------------------------------------------------------------


def test_snapshots_at_each_nth_step_and_the_last(memory):
    walk(Switch(), every=3)
    assert [call for call in memory.calls if call[0] != "open"] == [
        ("save", 2),
        ("save", 5),
        ("save", 7),
        ("drop", 2),
    ]


def test_what_is_kept_beside_the_last(memory):
    walk(Switch(), every=1, last=1, nth=4)
    assert memory.steps == [3, 7]


def test_auto_measures_the_first_snapshot_then_waits(memory):
    """A clock of one second a reading: a snapshot costs one, and Daly's interval for that and 13 s is 4.5."""
    now = iter(range(1000))
    made = Loop("l", LoopPlan(20, mttf=13.0), clock=lambda: float(next(now)))
    for _ in made(x=1):
        pass
    assert [step for what, step in (call[:2] for call in memory.calls) if what == "save"] == [0, 5, 10, 15, 19]


def test_break_leaves_no_snapshot_of_the_step(memory):
    made = loop("l", 5, every=1)
    for step, state in made(x=0):
        state.x += 1
        if step == 2:
            break
    assert memory.steps == [0, 1]
    assert made.state.x == 3


def test_an_exception_of_the_body_goes_through_untouched(memory):
    error = Interrupted("mine")

    def run():
        for _ in loop("l", 5, every=1)(x=0):
            raise error

    with pytest.raises(Interrupted) as caught:
        run()
    assert caught.value is error
    assert memory.steps == []


def test_going_on_after_a_break_takes_no_more_snapshots(memory):
    """The state is that of a step that has not ended."""
    steps = loop("l", 5, every=1)(x=0)
    for _ in steps:
        break
    with pytest.warns(ResilienceWarning, match="after step 0 was left before its end") as caught:
        assert [step for step, _ in steps] == [1, 2, 3, 4]
    assert caught[0].filename == __file__
    assert memory.steps == []


def test_more_steps_go_on_and_fewer_begin_where_they_can(memory):
    def run(steps):
        SEEN.seen.clear()
        made = loop("l", steps, every=2, last=9)
        for step, state in made(x=0):
            SEEN.tick(step)
            state.x += 1
        return list(SEEN.seen), made.state.x

    assert run(6) == ([0, 1, 2, 3, 4, 5], 6)
    assert run(8) == ([6, 7], 8)
    assert run(5) == ([4], 5)
    assert memory.steps[:4] == [1, 3, 5, 7]


@pytest.mark.parametrize("ask", [lambda it: [s for s, _ in it], lambda it: [s for _, (s, _) in enumerate(it)]])
def test_without_a_for_of_its_own_it_resumes_too(ask, memory):
    assert ask(loop("l", 3)(x=0)) == [0, 1, 2]
    assert ask(loop("l", 3)(x=0)) == []


def test_next_gives_steps_until_the_end(memory):
    steps = loop("l", 2)(x=0)
    assert [next(steps)[0], next(steps)[0], next(steps, None), next(steps, None)] == [0, 1, None, None]
    assert memory.steps == [0, 1]


# -- what it is known by -----------------------------------------------------------------------------------------------


SEEN = Switch()


def counting(start, factor, version=None):
    """Count, and give the steps that were run."""
    SEEN.seen.clear()
    made = loop("count", 4, every=1, version=version)
    for step, state in made(x=start):
        SEEN.tick(step)
        state.x = state.x * factor
    return list(SEEN.seen), made.state.x


@pytest.fixture
def counted(memory):
    given, _ = counting(1, 2)
    assert given == [0, 1, 2, 3]
    return memory


def test_equal_ones_go_on(counted):
    assert counting(1, 2) == ([], 16)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((3, 2), "field state.x changed from 1 to 3"),
        ((1, 3), "value tests.client.test_loop.counting.factor changed from 2 to 3"),
    ],
)
def test_others_begin_at_step_0_and_the_store_knows_why(arguments, said, counted):
    assert counting(*arguments)[0] == [0, 1, 2, 3]
    assert changes(*counted.lineages) == [said]


def test_another_version_is_another_loop(counted):
    assert counting(1, 2, version="2")[0] == [0, 1, 2, 3]
    assert changes(*counted.lineages) == []
    assert counting(1, 2, version="2")[0] == []


@pytest.mark.filterwarnings("ignore::dask_resilient.ResilienceWarning")
def test_what_cannot_be_pinned_down_is_not_resumed(memory):
    """A list that grows beside the state is no part of a snapshot; what the run itself can use is saved."""
    unknown = (i for i in range(3))

    def run(version=None):
        SEEN.seen.clear()
        for step, state in loop("l", 2, version=version)(x=0):
            SEEN.tick(step)
            state.y = unknown is None
        return list(SEEN.seen)

    with pytest.warns(ResilienceWarning, match="'l' cannot be resumed by a later run, since .* or give version="):
        assert run() == [0, 1]
    assert memory.reasons
    assert run() == [0, 1]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert run(version=1) == [0, 1]
        assert run(version=1) == []
    assert memory.reasons == ()


def test_code_that_nobody_can_read_is_a_reason(memory, monkeypatch):
    def fail(*_):
        raise KeyError("FOR_ITER")

    monkeypatch.setattr(module, "for_of", fail)
    monkeypatch.setattr(module, "fingerprint_loop", fail)
    with pytest.warns(ResilienceWarning, match="its code cannot be read"):
        assert [step for step, _ in loop("l", 2)(x=0)] == [0, 1]


# -- what fails --------------------------------------------------------------------------------------------------------


def told(run):
    """Give the warnings of a run, all of them, and what it gives."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        given = run()
    assert all(each.category is ResilienceWarning for each in caught)
    return given, [str(each.message) for each in caught]


@pytest.mark.parametrize(
    ("broken", "rest", "where"),
    [({3}, [3], "goes on after step 2"), ({2, 3}, [0, 1, 2, 3], "begins at step 0")],
)
def test_a_snapshot_that_cannot_be_restored_gives_way_to_the_one_before(broken, rest, where, counted):
    errors = {2: Unreachable(None, "away"), 3: Damaged("half of it is missing")}
    counted.failing = {("restore", step): errors[step] for step in broken}
    (seen, x), texts = told(lambda: counting(1, 2))
    assert (seen, x) == (rest, 16)
    assert texts == [
        f"loop 'count' could not restore its snapshot after step 3 (half of it is missing) and {where}",
    ]


def test_a_snapshot_of_something_else_is_none(counted):
    counted.kept = {key: ("python", {}, b"", {}) for key in counted.kept}
    (seen, x), [text] = told(lambda: counting(1, 2))
    assert (seen, x) == ([0, 1, 2, 3], 16)
    assert "could not restore" in text


def test_a_store_that_fails_is_told_once_and_the_loop_goes_on(memory):
    memory.failing = {("save", 1): StoreError(None, "no space left")}
    (seen, x), texts = told(lambda: counting(1, 2))
    assert (seen, x) == ([0, 1, 2, 3], 16)
    assert texts == ["loop 'count' goes on unprotected: the snapshot after step 1 could not be saved (no space left)"]
    assert [call for call in memory.calls if call[0] == "save"] == [("save", 0), ("save", 1)]


def test_a_store_that_cannot_be_opened_is_told_and_the_loop_runs(memory):
    memory.failing = {"open": StoreError(None, "no such mount")}
    (seen, _), texts = told(lambda: counting(1, 2))
    assert seen == [0, 1, 2, 3]
    assert texts == ["loop 'count' runs unprotected: no such mount"]


def test_what_cannot_be_dropped_is_asked_for_again(memory, caplog):
    memory.failing = {("drop", 0): StoreError(None, "read-only")}
    assert told(lambda: counting(1, 2))[1] == []
    assert "could not be dropped" in caplog.text
    assert [call for call in memory.calls if call[0] == "drop"] == [("drop", 0), ("drop", 0, 1)]


def test_without_a_plugin_it_runs_unprotected_and_says_so_once():
    def run():
        return [step for step, _ in loop("l", 3)(x=0)]

    assert told(run) == ([0, 1, 2], [f"loop 'l' {module.UNPROTECTED}"])


def test_where_it_is_switched_off_it_is_silent(memory):
    with dask.config.set({"resilience.enabled": False}):
        assert told(lambda: counting(1, 2)) == (([0, 1, 2, 3], 16), [])
    assert memory.calls == []


def test_a_warning_points_at_the_loop():
    with pytest.warns(ResilienceWarning) as caught:
        for _ in loop("l", 1)(x=0):
            pass
    assert caught[0].filename == __file__


# -- the state ---------------------------------------------------------------------------------------------------------


def test_what_cannot_be_kept_is_refused_before_the_first_step(memory):
    with pytest.raises(UnsupportedType, match=r"state\.log is a "):
        loop("l", 3)(x=0, log=Switch())
    with pytest.raises(UnsupportedType, match=r"state\.x\[0\] is a "):
        loop("l", 3)(x=[{1}])


def test_what_cannot_be_kept_is_refused_where_it_is_assigned(memory):
    def run():
        for _, state in loop("l", 3)(x=0):
            state.y = Switch()

    with pytest.raises(UnsupportedType, match=r"state\.y is a "):
        run()


def test_what_gets_into_a_field_is_refused_at_the_snapshot(memory):
    def run():
        for _, state in loop("l", 3)(x=[]):
            state.x.append(Switch())

    with pytest.raises(UnsupportedType, match=r"state\.x\[0\] is a "):
        run()


def test_a_collection_goes_on_as_what_was_kept_of_it(memory):
    """So its graph does not grow from step to step."""
    tasks = Switch()

    def run():
        made = loop("l", 4, every=2)
        for _, state in made(x=da.ones(4, chunks=2)):
            state.x = state.x + 1
            tasks.seen.append(len(state.x.__dask_graph__()))
        return made.state.x.compute(scheduler="sync").tolist()

    assert run() == [5.0] * 4
    assert tasks.seen[2] < tasks.seen[1]
    assert run() == [5.0] * 4
    assert len(tasks.seen) == 4


def test_a_field_may_have_any_name(memory):
    made = loop("l", 1)
    for _, state in made(self=1, state=2, loop=3):
        assert (state.self, state.state, state.loop) == (1, 2, 3)


def test_before_it_is_called_a_loop_has_no_state():
    made = loop("l", 50)
    assert made.state is None
    assert (made.steps, repr(made)) == (50, "<dask_resilient.Loop 'l' of 50 steps>")


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"name": "a/b"}, "the name of a loop becomes a file name"),
        ({"steps": 0}, "steps=0"),
        ({"every": "often"}, "every='often'"),
        ({"mttf": "soon"}, "mttf = 'soon'"),
        ({"mttf": "0 s"}, r"mttf=0\.0"),
    ],
)
def test_an_argument_that_cannot_work_is_refused(how, words):
    with pytest.raises(SettingError, match=words):
        loop(**{"name": "l", "steps": 3, **how})


def test_a_time_may_be_text():
    assert loop("l", 3, mttf="24h").plan.mttf == 86_400


@given(st.lists(st.integers(0, 5), max_size=4), st.sampled_from([1, 2, 3, "auto"]), st.integers(1, 3))
def test_any_interruptions_end_in_the_same_state(stops, every, last):
    memory = Memory()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "find_snapshots", lambda: memory)
        for at in [*stops, -1]:
            switch = Switch(at)
            try:
                state = chain(switch, every, last)
            except Interrupted:
                continue
    assert state == CHAIN


def chain(switch, every, last):
    made = loop("chain", 6, every=every, last=last)
    for step, state in made(x=0.5, rng=random.Random(3)):
        state.x = state.x * 3 % 1 + state.rng.gauss(0, 1)
        switch.tick(step)
    return made.state.x


@pytest.fixture(scope="module", autouse=True)
def _chain():
    global CHAIN  # noqa: PLW0603 - known once for all examples
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResilienceWarning)
        CHAIN = chain(Switch(), 1, 1)
