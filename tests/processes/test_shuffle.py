"""A P2P shuffle around a milestone: its inner parts are never saved, and what comes out of it is."""

from __future__ import annotations

import json
from pathlib import Path

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from distributed import wait
from distributed.client import futures_of

import dask_resilient as dr
from tests.processes.preload import pass_gate
from tests.support.calls import Calls

ROWS = 300
N = 6


def read(i, where):
    """Be the user's reader of one partition."""
    Calls(f"{where}/calls").add(f"read-{i}")
    pass_gate(Path(where, "gates", f"read-{i}"))
    rng = np.random.default_rng(i)
    return pd.DataFrame({"k": rng.integers(0, 40, ROWS), "v": rng.integers(0, 1000, ROWS)})


def follow(df, where, name):
    """Be a user function behind."""
    Calls(f"{where}/calls").add(name)
    pass_gate(Path(where, "gates", name))
    return df


def frame(x):
    """Give the unshuffled collection."""
    where = str(x.where)
    meta = pd.DataFrame({"k": np.array([], dtype=int), "v": np.array([], dtype=int)})
    return dd.from_map(read, range(N), where=where, meta=meta)


def shuffle(df):
    """Shuffle over the workers' network."""
    with dask.config.set({"dataframe.shuffle.method": "p2p"}):
        return df.shuffle("k", npartitions=N)


def right(x, df):
    """Check that every row is there once, and rows of one key in one partition."""
    parts = dask.compute(*df.to_delayed())
    got = pd.concat(parts).sort_values(["k", "v"], ignore_index=True)
    expected = pd.concat([read(i, str(x.directory)) for i in range(N)])
    pd.testing.assert_frame_equal(got, expected.sort_values(["k", "v"], ignore_index=True))
    keys = [set(part["k"]) for part in parts]
    assert sum(map(len, keys)) == len(set().union(*keys))


def reads(x):
    """Give how often the readers ran, all together."""
    return sum(n for name, n in x.calls.counts().items() if name.startswith("read"))


@pytest.fixture
def job(x):
    """The plugin is installed; afterwards the store holds partitions of the milestone only, and no inner part."""
    (x.directory / "calls").mkdir(exist_ok=True)
    (x.directory / "gates").mkdir(exist_ok=True)
    x.install()
    yield x
    rows = x.handle.checkpoints()
    assert rows
    assert {row["name"] for row in rows} == {"clean"}
    receipts = [json.loads(path.read_text()) for path in x.store.glob("commit/*/*.json")]
    assert len(receipts) >= N
    assert {receipt["codec"] for receipt in receipts} == {"pandas"}


def holder(x, df):
    """Give a worker that holds partitions of a persisted frame alone, and how many."""
    keys = [future.key for future in futures_of(df)]
    tasks = x.scheduler.tasks

    def count():
        counts = {}
        for key in keys:
            (ws,) = tasks[key].who_has
            counts[ws.address] = counts.get(ws.address, 0) + 1
        return sorted(counts.items())

    return x.ask(count)[0]


def test_kill_after_the_shuffle_reloads_its_output(job):
    """The milestone is what the shuffle gave: no reader and no transfer runs again, also after a second loss."""
    x = job
    df = x.client.persist(dr.checkpoint(shuffle(frame(x)), "clean"))
    wait(futures_of(df), 30)
    x.durable(N)
    before = reads(x)
    total = 0
    for _ in range(2):
        victim, lost = holder(x, df)
        total += lost
        x.kill(victim)
        wait(futures_of(df), 30)
    right(x, df)
    assert before == N
    assert reads(x) == N
    rows = x.incidents()
    assert [(row["lost"], row["reloaded"]) for row in rows] == [(row["lost"],) * 2 for row in rows]
    assert sum(row["lost"] for row in rows) == total


@pytest.mark.slow
def test_kill_before_the_shuffle_reloads_its_input(job):
    """The milestone is what goes into the shuffle, which has not begun: no reader runs again."""
    x = job
    marked = dr.checkpoint(frame(x), "clean")
    df = x.client.persist(marked)
    wait(futures_of(df), 30)
    x.durable(N)
    victim, lost = holder(x, df)
    x.kill(victim)
    right(x, shuffle(df))
    assert reads(x) == N
    (row,) = x.incidents()
    assert (row["lost"], row["reloaded"]) == (lost, lost)


@pytest.mark.slow
@pytest.mark.parametrize("x", [{"threads": 2}], indirect=True)
def test_kill_during_the_shuffle_starts_it_again_from_the_milestone(job):
    """Dask starts the shuffle again; what is below the milestone, and durable, does not run again."""
    x = job
    x.gate("read-0")
    marked = dr.checkpoint(frame(x), "clean")
    df = x.client.persist(shuffle(marked))
    x.ran("read-0")
    x.durable(N - 1)

    def transferred():
        done = [ts for ts in x.scheduler.tasks.values() if "transfer" in str(ts.key) and ts.state == "memory"]
        return len(done) >= N - 1

    x.until(transferred, what="all but one part are transferred")
    reader = next(int(file.name) for file in (x.where / "calls").iterdir() if "read-0" in file.read_text().split())
    victim = x.ask(lambda: next(ws.address for ws in x.scheduler.workers.values() if ws.pid != reader))
    x.kill(victim)
    x.free()
    right(x, df)
    # The reader that was running is sent back by the restart of the shuffle, and begun anew, maybe elsewhere.
    assert {name for name, n in x.calls.counts().items() if n > 1} <= {"read-0"}


@pytest.mark.slow
def test_kill_while_the_output_is_consumed(job):
    """Outputs that P2P has pinned to workers are reloaded elsewhere, and used."""
    x = job
    out = dr.checkpoint(shuffle(frame(x)), "clean")
    held = x.client.persist(out)
    wait(futures_of(held), 30)
    x.durable(N)
    x.gate("behind")
    df = x.client.persist(out.map_partitions(follow, str(x.where), "behind", meta=out._meta))
    del held
    x.ran("behind", 3)
    x.kill(x.addresses()[0])
    x.free()
    right(x, df)
    assert reads(x) == N
