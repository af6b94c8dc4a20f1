"""What draws at random without a seed is for its run only, and says why; with a seed it is not."""

from __future__ import annotations

import random
import re

import dask.array as da
import dask.bag as db
import dask.bag.random
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

from dask_resilient.graph.fingerprint import fingerprint

GENERATOR = np.random.default_rng(7)


def by_numpy(x):
    return x + np.random.rand()


def by_random(x):
    return x + random.random()


def by_a_new_generator(x):
    return x + np.random.default_rng().random()


def by_a_new_state(x):
    return x + np.random.RandomState().rand() + random.Random().random()


def seeded(x):
    return x + np.random.default_rng(7).random() + random.Random(7).random()


def by_the_modules_own(x):
    return x + GENERATOR.random()


def frame():
    return dd.from_pandas(pd.DataFrame({"a": [3, 1, 2, 5], "b": [0.0, 1.0, 2.0, 3.0]}), npartitions=2)


def mapped(function):
    return lambda: da.ones(4, chunks=2).map_blocks(function, dtype=float)


LUCKY = {
    "numpy's own": (mapped(by_numpy), "without a seed"),
    "random's own": (mapped(by_random), r"random.random\(\) draws"),
    "a generator without a seed": (mapped(by_a_new_generator), "without a seed"),
    "a state without a seed": (mapped(by_a_new_state), "without a seed"),
    "set_index": (lambda: frame().set_index("a"), r"set_index\(\) cuts its partitions by a random sample"),
    "what stands on it": (lambda: frame().set_index("a").reset_index(), "set_index"),
    "sort_values": (lambda: frame().sort_values("a"), r"sort_values\(\) cuts its partitions"),
    "random_split": (lambda: frame().random_split([0.5, 0.5])[0], "random_state="),
    "a sample of a bag": (lambda: dask.bag.random.sample(db.from_sequence(range(5)), 2), "draws without a seed"),
}
NOT = {
    "a seed": mapped(seeded),
    "a generator of the module": mapped(by_the_modules_own),
    "divisions": lambda: frame().set_index("a", divisions=[1, 3, 5]),
    "sorted": lambda: frame().set_index("a", sorted=True),
    "a seed for the split": lambda: frame().random_split([0.5, 0.5], random_state=7)[0],
    "a seed for the sample": lambda: frame().sample(frac=0.5, random_state=7),
    "a seed for dask": lambda: da.random.default_rng(7).random(5),
    "a shuffle": lambda: frame().shuffle("a"),
}


@pytest.mark.parametrize(("make", "reason"), LUCKY.values(), ids=LUCKY)
def test_what_draws_without_a_seed_says_so(make, reason):
    found = fingerprint(make())
    assert not found.pinned
    assert re.search(reason, "; ".join(found.reasons))


def test_a_seed_for_the_generator_of_this_process_is_none_for_the_workers():
    before = np.random.get_state()
    np.random.seed(7)
    try:
        assert not fingerprint(mapped(by_numpy)()).pinned
    finally:
        np.random.set_state(before)


@pytest.mark.parametrize("make", NOT.values(), ids=NOT)
def test_what_has_a_seed_is_pinned(make):
    assert fingerprint(make()).pinned
