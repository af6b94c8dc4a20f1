"""What happens to a store under record: saves, revocations, races and deaths, as functions of a `Life`."""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pandas as pd

from dask_resilient import partitions
from dask_resilient.core.manifest import Place
from dask_resilient.store.archive import Archive
from dask_resilient.store.garbage import Collector
from tests.support.store_life import Dying, Stopped, Turns, stage

FIRST = Place("m", "0", 0, "a")
SECOND = Place("m", "1", 0, "b")
AFTER = Place("m", "0", 1, "c")


def first_save(life):
    """An empty directory becomes a store with one partition."""
    life.save(life.open(), FIRST, stage(1))


def second_partition(life):
    """A milestone has its directories already."""
    first_save(life)
    life.save(life.open(), SECOND, stage(2))


def next_generation(life):
    """A copy is revoked, and its place saved anew, twice."""
    first_save(life)
    store = life.open()
    for generation in range(2):
        life.revoke(store, replace(FIRST, generation=generation, attempt="ac"[generation]))
        life.save(store, replace(AFTER, generation=generation + 1, attempt="cd"[generation]), stage(3 + generation))


def many_chunks(life):
    """More files than are waited for together, larger than a sector."""
    life.save(life.open(), FIRST, stage(1, rows=140, chunks=7))


def frame(life):
    """A table with labels, through its codec."""
    df = pd.DataFrame({"k": ["a", "b", None], "x": [1.5, 2.5, -0.0]}, index=pd.Index([3, 1, 2], name="id"))
    staged = partitions.stage(df)
    store = life.open()
    life.save(store, FIRST, staged)
    life.save(store, SECOND, partitions.stage(df.iloc[:0]))


def described(life):
    """A milestone is described before its first receipt, and again by the next worker."""
    for name, place in (("a", FIRST), ("b", SECOND)):
        store = life.open()
        life.declare(store, "m")
        life.save(store, replace(place, attempt=name), stage(ord(name)))


def overtaken(life):
    """A writer loses when everything but the link of its receipt is done."""
    rival = life.open()

    class Overtaken:
        def link(self, source, target):
            if "commit" in target:
                life.save(rival, replace(FIRST, attempt="winner"), stage(9))
            life.recorder.link(source, target)

        def __getattr__(self, name):
            return getattr(life.recorder, name)

    life.save(life.open(Overtaken()), FIRST, stage(1))


def whole_life(life):
    """Everything above, one after the other, in one store."""
    store = life.open()
    life.declare(store, "m")
    life.save(store, FIRST, stage(1))
    life.save(life.open(), SECOND, stage(2, rows=10, chunks=5))
    life.revoke(store, FIRST)
    life.save(life.open(), AFTER, stage(3))


def collected(life):
    """Revoked copies and what a dead writer left are collected; then the whole milestone is removed."""
    store = life.open()
    life.declare(store, "m")
    next_generation(life)
    with contextlib.suppress(Stopped):
        life.save(life.open(Dying(life.recorder, len(life.recorder.log) + 25)), SECOND, stage(2))
    collector = Collector(Archive(store.url, store.token, store.calls), delete=True, idle=0.0)
    kinds = [each.what for each in collector.collect("m", -1.0)]
    assert {"partition", "attempt"} <= set(kinds)
    store.calls.acknowledge(("removing", "m"))
    assert [each.what for each in collector.remove("m")][-1] == "description"


SCENARIOS = [
    first_save,
    second_partition,
    next_generation,
    many_chunks,
    frame,
    described,
    overtaken,
    whole_life,
    collected,
]


class Death:
    """A writer that is killed after some steps, and the next one on the same machine."""

    def __init__(self, at, *, asks):
        self.at = at
        self.asks = asks
        """Whether the second one revokes what is revoked already, or goes by the tombstone that it sees."""
        self.killed = False

    def __call__(self, life):
        try:
            store = life.open(Dying(life.recorder, self.at))
            life.declare(store, "m")
            life.save(store, FIRST, stage(1))
            life.revoke(store, FIRST)
            life.save(store, AFTER, stage(3))
        except Stopped:
            self.killed = True
        store = life.open()
        life.declare(store, "m")
        life.save(store, SECOND, stage(2))
        tried = Place("m", "0", 0, "e")
        if (life.base / "disk" / "store" / FIRST.tombstone).exists():
            if self.asks:
                life.revoke(store, FIRST)
            tried = replace(tried, generation=1)
        life.save(store, tried, stage(5))


def interleaved(seed, writers):
    """Give a scenario of some writers that make the store and save the same two places, one call at a time."""

    def scenario(life):
        turns = Turns(life.recorder, writers, seed)

        def write(who):
            try:
                store = life.open(turns.calls(who))
                life.declare(store, "m")
                life.save(store, replace(FIRST, attempt=f"w{who}"), stage(1 + who))
                life.save(store, replace(SECOND, attempt=f"w{who}"), stage(11 + who))
            finally:
                turns.leave(who)

        with ThreadPoolExecutor(writers) as pool:
            for done in [pool.submit(write, who) for who in range(writers)]:
                done.result()

    return scenario
