"""Shrinks a failing case: fewer faults, a smaller graph, plainer settings.

What happens depends on threads, so each candidate is run several times, and counts as failing if one of the runs does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from time import monotonic
from typing import Any

from tests.fuzz.case import Case
from tests.fuzz.graphs import without
from tests.fuzz.run import run_case
from tests.support.world import lineage

Fails = Callable[[Case], bool]

PLAIN: dict[str, Any] = {
    "amm": False,
    "stealing": False,
    "priorities": False,
    "settled": True,
    "resources": (),
    "pinned": (),
    "retries": 0,
    "errors": {},
    "threads": 1,
    "saturation": 1.1,
    "timeout": 2.0,
    "workers": 2,
    "seconds": {},
}


def shrink(case: Case, kinds: set[str], seconds: float = 120.0, times: int = 4) -> Case:
    """Give a smaller case that still fails in one of these ways."""

    def fails(candidate: Case) -> bool:
        return any(run_case(candidate).kinds & kinds for _ in range(times))

    return smaller(case, fails, monotonic() + seconds)


def smaller(case: Case, fails: Fails, deadline: float) -> Case:
    """Give the smallest case that is found before the deadline."""
    changed = True
    while changed and monotonic() < deadline:
        changed = False
        for part in PARTS:
            found = _first(part(case), fails, deadline)
            while found is not None:
                case, changed = found, True
                found = _first(part(case), fails, deadline)
    return case


def _first(cases: Iterator[Case], fails: Fails, deadline: float) -> Case | None:
    """Give the first that fails."""
    for case in cases:
        if monotonic() > deadline:
            return None
        if fails(case):
            return case
    return None


def _steps(case: Case) -> Iterator[Case]:
    yield from (replace(case, steps=steps) for steps in _shorter(case.steps))


def _settings(case: Case) -> Iterator[Case]:
    plain = {name: value for name, value in PLAIN.items() if getattr(case, name) != value}
    yield from (
        replace(case, **{name: plain[name] for name in names}) for names in (plain, *([n] for n in plain)) if names
    )


def _outputs(case: Case) -> Iterator[Case]:
    yield from (replace(case, outputs=outputs) for outputs in _shorter(case.outputs) if outputs)


def _keys(case: Case) -> Iterator[Case]:
    others = [key for key in case.spec if key not in case.outputs]
    unneeded = [key for key in others if key not in lineage(case.spec, case.outputs)]
    kept = [[], *_shorter(others)] if others else []
    candidates = [unneeded, *([key for key in others if key not in set(keys)] for keys in kept)]
    yield from (_cut(case, keys) for keys in candidates if keys)


def _marked(case: Case) -> Iterator[Case]:
    yield from (replace(case, marked=marked) for marked in _shorter(case.marked))


PARTS: tuple[Callable[[Case], Iterator[Case]], ...] = (_steps, _settings, _outputs, _keys, _marked)
"""Each gives smaller cases, those that drop most first."""


def candidates(case: Case) -> Iterator[Case]:
    """Give all smaller cases that are tried."""
    for part in PARTS:
        yield from part(case)


def _shorter(items: Sequence[Any]) -> Iterator[list[Any]]:
    """Give a sequence without its halves, quarters, ... and single items."""
    items = list(items)
    size = len(items) // 2
    while size:
        for begin in range(0, len(items), size):
            yield items[:begin] + items[begin + size :]
        size //= 2
    if len(items) == 1:
        yield []


def _cut(case: Case, gone: Sequence[str]) -> Case:
    spec = without(case.spec, gone)

    def kept(keys: Sequence[str]) -> list[str]:
        return [key for key in keys if key in spec]

    return replace(
        case,
        spec=spec,
        marked=kept(case.marked),
        resources=kept(case.resources),
        pinned=kept(case.pinned),
        seconds={key: value for key, value in case.seconds.items() if key in spec},
        errors={key: value for key, value in case.errors.items() if key in spec},
    )
