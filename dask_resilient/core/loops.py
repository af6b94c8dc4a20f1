"""Loops that resume: how often a snapshot is worth its cost, which snapshots may go, and the arguments of a loop.

Steps count from 0. The snapshot of step k holds the state with which step k + 1 begins.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from dask_resilient.errors import SettingError

AUTO: Literal["auto"] = "auto"

PRIOR_MTTF = 50_000 * 3600.0
"""Mean seconds between two failures of one GPU, of which nothing else is known: 419 unexpected interruptions in 54 days
on 16,384 GPUs (Llama 3, Meta, 2024) are one in 50,700 hours."""


def interval(cost: float, mttf: float) -> float:
    """Give the best time between the end of one snapshot and the begin of the next, in seconds. Pure (no I/O).

    Parameters
    ----------
    cost
        Seconds that a snapshot holds the loop up, C.
    mttf
        Mean seconds between two failures, M.

    Notes
    -----
    Daly's higher-order estimate, sqrt(2CM) (1 + sqrt(C / 2M) / 3 + (C / 2M) / 9) - C for C < 2M, else M: J. T. Daly, "A
    higher order estimate of the optimum checkpoint interval for restart dumps", Future Generation Computer Systems 22
    (2006), equation 37.
    """
    if cost >= 2 * mttf:
        return mttf
    share = cost / (2 * mttf)
    return math.sqrt(2 * cost * mttf) * (1 + math.sqrt(share) / 3 + share / 9) - cost


def prior_mttf(devices: int) -> float:
    """Give the mean seconds between two failures of a cluster of so many devices; of none, those of one."""
    return PRIOR_MTTF / max(1, devices)


@dataclass(frozen=True, slots=True)
class LoopPlan:
    """The arguments of a loop, checked.

    Raises
    ------
    SettingError
        If one of them cannot work; the message names it and its value.
    """

    steps: int
    every: int | Literal["auto"] = AUTO
    mttf: float | None = None
    """Seconds; None takes the prior."""
    version: str | int | None = None
    last: int = 2
    """Snapshots that are kept, the newest of them."""
    nth: int | None = None
    """Kept is also the first snapshot at or after each so many-th step; None = no other."""

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        _set(self, "steps", _count("steps", self.steps, "50"))
        _set(self, "last", _count("last", self.last, "2"))
        if self.every != AUTO:
            _set(self, "every", _count("every", self.every, "5 (steps), or 'auto'"))
        if self.nth is not None:
            _set(self, "nth", _count("nth", self.nth, "100, or None"))
        if self.mttf is not None:
            _set(self, "mttf", _seconds(self.mttf))
        if self.version is not None and type(self.version) not in (str, int):
            raise SettingError(f"version={self.version!r} is no str, int or None; give one of these")


def _set(plan: LoopPlan, name: str, value: Any) -> None:
    object.__setattr__(plan, name, value)


def _count(name: str, value: Any, example: str) -> int:
    """Give a whole number from 1 on; those of NumPy are ones too."""
    try:
        number = 0 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = 0
    if number < 1:
        raise SettingError(f"{name}={value!r} must be a whole number of at least 1, such as {example}")
    return number


def _seconds(value: Any) -> float:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 < value < math.inf:
        raise SettingError(f"mttf={value!r} must be a time such as '24h', or a number of seconds above 0")
    return float(value)


def due(plan: LoopPlan, step: int, since: float, cost: float | None, mttf: float) -> bool:
    """Say whether a snapshot is due after a step. Pure (no I/O).

    Parameters
    ----------
    step
        The one that has ended.
    since
        Seconds since the last snapshot ended, or the loop began.
    cost
        Seconds that the last snapshot took; None before the first, which is taken at once so that its cost is known.
    mttf
        Mean seconds between two failures, where the plan says none.
    """
    if step == plan.steps - 1:
        return True
    if plan.every != AUTO:
        return (step + 1) % plan.every == 0
    return cost is None or since >= interval(cost, plan.mttf or mttf)


def superseded(steps: Iterable[int], last: int, nth: int | None) -> list[int]:
    """Say which complete snapshots may go, ascending; never the newest. Pure (no I/O).

    Parameters
    ----------
    steps
        Of the complete snapshots.
    last
        How many of the newest are kept.
    nth
        Also kept is, of each so many steps, the first snapshot: the one at each n-th step if there is one. So it does
        not depend on what went before, nor on when it is asked.
    """
    known = sorted(set(steps))
    kept = set(known[-max(1, last) :])
    if nth is not None:
        first: dict[int, int] = {}
        for step in known:
            first.setdefault((step + 1) // nth, step)
        kept |= {step for window, step in first.items() if window}
    return [step for step in known if step not in kept]
