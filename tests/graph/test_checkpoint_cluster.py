"""Milestones on a cluster without the plugin: everything Dask does with a graph goes on as before."""

from __future__ import annotations

import operator

import dask
import dask.array as da
import dask.bag as db
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from dask.delayed import delayed
from pandas.testing import assert_frame_equal, assert_series_equal

from dask_resilient.graph import checkpoint
from dask_resilient.tasks import SaveTask

LEFT = pd.DataFrame({"k": [i % 7 for i in range(60)], "x": range(60)})
RIGHT = pd.DataFrame({"k": range(7), "y": list("abcdefg")})


def left():
    return dd.from_pandas(LEFT, npartitions=4)


def right():
    return dd.from_pandas(RIGHT, npartitions=2)


def rows(frame):
    """Order rows, which a shuffle does not."""
    return frame.sort_values(list(frame.columns)).reset_index(drop=True)


SHUFFLES = {
    "shuffle below": lambda: checkpoint(left().shuffle("k"), "clean"),
    "shuffle above": lambda: checkpoint(left(), "clean").shuffle("k"),
    "shuffle both": lambda: checkpoint(left().shuffle("k"), "clean").shuffle("x"),
}


@pytest.mark.parametrize("make", SHUFFLES.values(), ids=SHUFFLES)
def test_a_p2p_shuffle_may_stand_on_either_side(make, client):
    """Rows come out of a P2P shuffle below or above a milestone as they went in."""
    with dask.config.set({"dataframe.shuffle.method": "p2p"}):
        x = make()
        names = {type(e).__name__ for e in x.optimize().expr.walk()}
        assert {"P2PShuffle", "Checkpoint"} <= names
        assert_frame_equal(rows(x.compute()), rows(LEFT))


MERGES = {
    "merge below": lambda: checkpoint(left().merge(right(), on="k", broadcast=False), "clean"),
    "merge above": lambda: checkpoint(left(), "a").merge(checkpoint(right(), "b"), on="k", broadcast=False),
}


@pytest.mark.parametrize("make", MERGES.values(), ids=MERGES)
def test_a_p2p_merge_may_stand_on_either_side(make, client):
    """A merge below or above a milestone gives the rows of the plain merge."""
    with dask.config.set({"dataframe.shuffle.method": "p2p"}):
        x = make()
        assert any("P2P" in type(e).__name__ for e in x.optimize().expr.walk())
        assert_frame_equal(rows(x.compute()), rows(LEFT.merge(RIGHT, on="k")), check_dtype=False)


def test_an_array_rechunked_by_p2p_may_stand_on_either_side(client):
    """P2P rechunking below and above a milestone gives the same array."""
    with dask.config.set({"array.rechunk.method": "p2p"}):
        plain = np.arange(64).reshape(8, 8)
        marked = checkpoint(da.from_array(plain, chunks=(2, 8)).rechunk((8, 2)), "clean")
        assert (marked.rechunk((2, 8)).compute() == plain).all()


def test_marked_collections_can_be_persisted_together(client):
    """`dask.persist` of four kinds at once keeps kinds and values, and the persisted ones can be marked again."""
    x = [da.arange(8, chunks=4), db.from_sequence(range(5), npartitions=2), delayed(operator.add, pure=True)(1, 2)]
    persisted = [*dask.persist(*[checkpoint(c, "clean") for c in x]), *dask.persist(checkpoint(left(), "clean"))]
    assert [type(p) for p in persisted] == [da.Array, db.Bag, type(x[2]), dd.DataFrame]
    again = [checkpoint(p, "again") for p in persisted]
    assert dask.compute(again[0].sum(), again[1].sum(), again[2]) == (28, 10, 3)
    assert_frame_equal(again[3].compute(), LEFT)


def test_a_collection_over_futures_can_be_marked(client):
    """Futures may stand below a milestone, in dataframes and in delayed values."""
    parts = client.scatter([LEFT[:30], LEFT[30:]])
    x = checkpoint(dd.from_delayed(parts, meta=LEFT), "clean")
    assert_series_equal(x.groupby("k").x.sum().compute(), LEFT.groupby("k").x.sum())
    assert checkpoint(delayed(len)(parts[1]), "clean").compute() == 30


def test_the_nodes_of_a_bag_arrive_on_the_scheduler(client):
    """The optimiser of bags, which rebuilds tasks, hands the nodes on with their type."""
    persisted = checkpoint(db.from_sequence(range(6), npartitions=3).map(operator.neg), "bagged").persist()
    assert persisted.sum().compute() == -15
    specs = [client.cluster.scheduler.tasks[key].run_spec for key in persisted.__dask_keys__()]
    assert [type(spec) for spec in specs] == [SaveTask] * 3
    assert [spec.ticket["key"] for spec in specs] == persisted.__dask_keys__()


def test_a_worker_says_once_that_nothing_is_saved(client, caplog):
    """On a worker without the plugin, the log says once which checkpoint is not saved, and no warning is raised."""
    with caplog.at_level("WARNING", logger="dask_resilient"):
        assert checkpoint(da.arange(12, chunks=2), "clean").sum().compute() == 66
    said = [r.getMessage() for r in caplog.records if r.name == "dask_resilient"]
    assert len(said) == 1
    assert said[0].startswith("checkpoint 'clean' is not saved: the plugin does not run on this worker")
