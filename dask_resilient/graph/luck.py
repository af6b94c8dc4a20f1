"""What draws at random without saying so: another run would get other partitions, whatever else is the same.

Each row names what it is and what to do instead. What is drawn on the client is in the graph, and differs there.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import numpy as np

SAMPLED = "cuts its partitions by a random sample"

_EXPRESSIONS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "SetIndex": (
        lambda expr: expr.operand("user_divisions") is None,
        f"set_index() {SAMPLED}, another in each process: give it divisions=",
    ),
    "SortValues": (lambda _: True, f"sort_values() {SAMPLED}, another in each process: mark what it sorts"),
    "RepartitionQuantiles": (lambda _: True, "approximate quantiles are those of a random sample"),
    "Split": (
        lambda expr: expr.operand("random_state") is None,
        "random_split() without a seed: give it random_state=",
    ),
}
"""Expressions of dataframes that draw when they are lowered, each with whether it does."""

_LIBRARY = ("dask.bag.random",)
"""Modules of libraries whose functions draw from `random` when they run."""

_MAKERS = frozenset(
    {
        *("numpy.random.default_rng", "numpy.random._generator.default_rng", "numpy.random.RandomState"),
        *("numpy.random.mtrand.RandomState", "numpy.random.bit_generator.SeedSequence", "numpy.random.SeedSequence"),
        *(
            f"numpy.random.{module}.{name}"
            for module, name in (
                ("_pcg64", "PCG64"),
                ("_pcg64", "PCG64DXSM"),
                ("_mt19937", "MT19937"),
                ("_philox", "Philox"),
                ("_sfc64", "SFC64"),
            )
        ),
        "random.Random",
    }
)
"""What makes a generator, which has no seed if it is called without arguments."""

UNSEEDED = "random numbers without a seed: give one, as in default_rng(7)"


def in_expression(expr: Any) -> str | None:
    """Say what a dataframe's expression draws, None if nothing."""
    row = _EXPRESSIONS.get(type(expr).__name__)
    if row is None or not type(expr).__module__.startswith("dask.dataframe"):
        return None
    draws, reason = row
    return reason if draws(expr) else None


def in_function(function: Any) -> str | None:
    """Say what a function of a library draws when it runs, None if nothing is known."""
    owner = getattr(function, "__self__", None)
    if isinstance(owner, random.Random) and owner is getattr(random, "_inst", None):
        return f"random.{function.__name__}() draws from a generator without a seed: make one, as random.Random(7)"
    if owner is not None and owner is getattr(np.random.mtrand, "_rand", None):
        return UNSEEDED  # also where it was seeded here: the workers have generators of their own
    if getattr(function, "__module__", None) in _LIBRARY:
        return f"{function.__module__}.{getattr(function, '__name__', '?')}() draws without a seed"
    return None


def without_arguments(name: str) -> str | None:
    """Say what calling this without arguments draws, None if nothing."""
    return UNSEEDED if name in _MAKERS else None


def is_module(thing: object) -> bool:
    """Say whether something is a module: what its functions are bound to says nothing."""
    return thing is None or isinstance(thing, ModuleType)
