"""The fuzzer itself: a few seeds with every run of the tests, what it found before, and that it bites.

``python -m tests.fuzz --runs 2000`` is the long form.
"""

from __future__ import annotations

import logging
import os
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from tests.fuzz.case import LOUD, QUIET, Case, random_case
from tests.fuzz.cases import CASES
from tests.fuzz.faults_plugin import FAULTS
from tests.fuzz.graphs import KINDS, sinks
from tests.fuzz.log import HANDFUL, LOGGERS, Log
from tests.fuzz.mutations import MUTATIONS
from tests.fuzz.run import Outcome, run_case
from tests.fuzz.shrink import candidates, smaller
from tests.support.world import lineage

SHORT = range(10)
LONG_SECONDS = 90.0


@pytest.fixture(autouse=True)
def quiet_log() -> Iterator[None]:
    """Lost workers and damaged copies are warned of by the thousand."""
    before = {logging.getLogger(name): logging.getLogger(name).propagate for name in LOGGERS}
    for logger in before:
        logger.propagate = False
    yield
    for logger, propagate in before.items():
        logger.propagate = propagate


def clean(outcome: Outcome, case: Case) -> None:
    """Check that nothing is wrong; a failure prints what goes into `tests/fuzz/cases.py`."""
    assert not outcome.problems, "\n".join(["", *outcome.problems, repr(case)])


@pytest.mark.parametrize("seed", SHORT)
def test_some_seeds(seed: int) -> None:
    """Even seeds have many faults, odd ones many graphs."""
    case = random_case(seed)
    clean(run_case(case), case)


@pytest.mark.parametrize("name", CASES)
def test_found_before(name: str) -> None:
    """What a seed found once and was shrunk."""
    clean(run_case(CASES[name]), CASES[name])


@pytest.mark.slow
@pytest.mark.parametrize("part", [0, 1])
def test_many_seeds(part: int) -> None:
    """Twice a minute and a half of seeds that nobody has seen, and loads in most of them."""
    first = int(os.environ.get("FUZZ_SEED", time.time_ns() % 1_000_000_000)) + part * 1_000
    end = time.monotonic() + LONG_SECONDS
    seed, endings = first, Counter[str]()
    while time.monotonic() < end:
        case = random_case(seed)
        outcome = run_case(case)
        assert not outcome.problems, f"seed {seed}: {outcome.problems}\n{case!r}"
        endings += outcome.endings
        seed += 1
    assert endings["good"] > seed - first
    assert endings["damaged"] > 0


BITES: dict[str, dict[str, Any]] = {
    "unlink": {"steps": ["second graph"] * 4 + ["release", "second graph", "second graph"]},
    "discard": {"steps": ["commit then kill"] * 4},
    "overtaken": {"steps": ["overtake", "overtake", "drop"]},
    "run id": {"steps": ["overtake", "overtake", "drop"]},
    "poke": {"steps": ["hold writes", "second graph", "nothing", "drop", "second graph"] * 3},
    "clearing": {"steps": ["kill", "kill", "resubmit", "kill"], "pin": True},
    "lineage shown": {"steps": ["kill", "resubmit"] * 3},
    "liveness": {"steps": ["unregister", "drop", "second graph"]},
    "letting go": {"steps": ["let go while loading"] * 2},
}
"""Rules that are switched off, and faults by which that is noticed soon.

Of the others in the table, "look ahead" and "error rows" are noticed in one of a dozen or two of seeds, "blame" never.
"""


def biting(seed: int, steps: list[str], pin: bool = False) -> Case:
    """Give the graph and the settings of a seed with other faults."""
    case = random_case(seed)
    marked = list(case.spec)[seed % 2 :: 1 + seed % 2]
    return replace(
        case,
        steps=[(0.01, name, seed + i) for i, name in enumerate(steps)],
        marked=marked,
        seconds=dict.fromkeys(case.spec, 0.004),
        pinned=marked[-3:] if pin else (),
        errors={},
        settled=True,
        timeout=2.0,
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", BITES)
def test_it_bites(name: str) -> None:
    """With a rule switched off it finds a failure."""
    with MUTATIONS[name]():
        assert any(run_case(biting(seed, **BITES[name])).problems for seed in range(30)), f"not noticed: {name}"


# -- its parts -----------------------------------------------------------------------------------------------------


def test_a_seed_fixes_graph_settings_and_faults() -> None:
    """What is printed of a seed is the same every time, and can be read back."""
    case = random_case(7)
    assert case == random_case(7)
    assert case != random_case(8)
    assert eval(repr(case), {"case": Case, "inf": float("inf")}) == case


def test_every_fault_is_drawn() -> None:
    """The two tables of names hold what the table of functions holds."""
    assert {*LOUD, *QUIET} == set(FAULTS)


@pytest.mark.parametrize("kind", KINDS)
def test_graphs(kind) -> None:
    """They have between 8 and 170 tasks, and each key is behind what it is computed from."""
    for seed in range(20):
        spec = kind(Random(seed))
        assert 8 <= len(spec) <= 170
        seen: set[str] = set()
        for key, deps in spec.items():
            assert seen.issuperset(deps)
            seen.add(key)
        assert set(lineage(spec, sinks(spec))) == set(spec)


def test_shrinking() -> None:
    """Of a case that fails because of one step, one output and one key, only these are left."""
    case = random_case(3)
    step, output = case.steps[1], case.outputs[0]

    def fails(candidate: Case) -> bool:
        return step in candidate.steps and output in candidate.outputs

    small = smaller(case, fails, time.monotonic() + 60)
    assert list(small.steps) == [step]
    assert list(small.outputs) == [output]
    assert list(small.spec) == [output]
    assert not any(map(fails, candidates(small)))


def test_values_lost_while_they_are_fetched() -> None:
    """That is no failure a handful of times, unless the value is said to be there."""

    def bad(times: int, *states: str) -> list[str]:
        log = Log()
        text = {f"k-{i}": state for i, state in enumerate(states)}
        record = logging.makeLogRecord({"name": "distributed.scheduler", "levelno": logging.ERROR})
        record.msg, record.args = "Couldn't gather keys: %s", (text,)
        for _ in range(times):
            log.emit(record)
        return log.bad()

    assert not bad(HANDFUL, "processing", "waiting")
    assert bad(1, "processing", "memory")
    assert bad(1, "released")
    assert len(bad(HANDFUL + 1, "queued")) == HANDFUL + 1
