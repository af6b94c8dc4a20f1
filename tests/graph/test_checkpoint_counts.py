"""T21: each side of a milestone is fused to exactly what it is fused to alone, plus one task a partition."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import NamedTuple

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from dask._task_spec import cull
from dask.base import collections_to_expr
from dask.core import flatten
from dask.delayed import delayed
from dask.task_spec import Alias
from dask.utils import key_split
from distributed import wait
from distributed.scheduler import convert_legacy_graph

from dask_resilient.graph import checkpoint
from dask_resilient.tasks import SaveTask

pytestmark = pytest.mark.filterwarnings("ignore::dask_resilient.errors.ResilienceWarning")


def submitted(x, optimize) -> Mapping:
    """Give the tasks that a scheduler gets for a collection, found as `persist` and the scheduler find them."""
    frame = isinstance(x, dd.DataFrame | dd.Series)
    expr = collections_to_expr([x.optimize() if frame and optimize else x], optimize).optimize()
    return cull(convert_legacy_graph(dict(expr.__dask_graph__())), list(flatten(expr.__dask_keys__())))


def persist(x, optimize):
    """Persist by the collection's own method, which alone fuses dataframes."""
    key = "fuse" if isinstance(x, dd.DataFrame | dd.Series) else "optimize_graph"
    return x.persist(**{key: optimize})


def count(x, optimize) -> int:
    """Count the tasks without the aliases by which dask.dataframe renames the parts of a persisted frame."""
    return sum(not isinstance(task, Alias) for task in submitted(x, optimize).values())


def graphs(client) -> list:
    """Give what the scheduler noted about each graph that it got."""
    return [event for _, event in client.get_events("scheduler") if event.get("action") == "update-graph"]


def array_below():
    x = da.from_array(np.arange(96.0).reshape(8, 12), chunks=(4, 3))
    return x.map_blocks(np.negative).map_blocks(np.cos)


def array_above(x):
    return x.map_blocks(np.sin).sum(axis=0)


def frame_below():
    frame = pd.DataFrame({"k": [1, 2, 3] * 20, "x": range(60)})
    return dd.from_pandas(frame, npartitions=4).assign(y=1).dropna()


def frame_above(x):
    return x.assign(z=x.x + x.y).groupby("k").z.sum()


def delayed_below():
    return delayed(operator.neg, pure=True)(delayed(operator.add, pure=True)(3, 4))


def delayed_above(x):
    return delayed(abs, pure=True)(delayed(operator.sub, pure=True)(x, 9))


class Case(NamedTuple):
    below: object
    above: object
    npartitions: int
    extra: dict
    """Tasks that the milestone adds to the unmarked graph, by whether it is optimised."""


CASES = {
    # With the optimiser on, a chain that was fused across the milestone is one task more a partition, besides the save.
    "array": Case(array_below, array_above, 8, {True: 16, False: 8}),
    "dataframe": Case(frame_below, frame_above, 4, {True: 8, False: 4}),
    "delayed": Case(delayed_below, delayed_above, 1, {True: 1, False: 1}),
}


@pytest.mark.parametrize("optimize", [True, False], ids=["optimized", "raw"])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_milestone_adds_one_task_a_partition_and_each_side_is_as_it_is_alone(case, optimize, client):
    """tasks(marked) = tasks(below alone) + partitions + tasks(above, over a persisted input)."""
    below = case.below()
    whole = case.above(checkpoint(below, "clean"))
    persisted = persist(below, optimize)
    wait(persisted)
    marked = count(whole, optimize)
    assert marked == count(below, optimize) + case.npartitions + count(case.above(persisted), optimize)
    assert marked == count(case.above(below), optimize) + case.extra[optimize]


@pytest.mark.parametrize("optimize", [True, False], ids=["optimized", "raw"])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_real_scheduler_gets_the_counted_tasks_with_the_type_of_the_nodes(case, optimize, client):
    """What was counted is what arrives on a scheduler; the nodes of the milestone keep their type and key."""
    whole = case.above(checkpoint(case.below(), "clean"))
    result = persist(whole, optimize)
    expected = case.above(case.below()).compute(scheduler="sync")
    wait(result)
    predicted = submitted(whole, optimize)
    arrived = [e for _, e in client.get_events("scheduler") if e.get("action") == "update-graph"]
    assert arrived[-1]["metrics"]["tasks"] == len(predicted)
    on_scheduler = dict(client.cluster.scheduler.tasks)
    assert predicted.keys() <= on_scheduler.keys()
    np.testing.assert_array_equal(result.compute(), expected)
    group = {k: on_scheduler[k] for k in predicted}
    saves = {k: ts for k, ts in group.items() if type(ts.run_spec) is SaveTask}
    assert len(saves) == case.npartitions
    for key, ts in saves.items():
        facts = {name: ts.run_spec.ticket[name] for name in ("name", "key", "npartitions", "keep")}
        assert facts == {"name": "clean", "key": key, "npartitions": case.npartitions, "keep": False}
        assert ts.prefix.name == "checkpoint-clean"
        assert {dep.key for dep in ts.dependencies} == {ts.run_spec.source}
    assert sum(key_split(k) == "checkpoint-clean" for k in group) == case.npartitions


def test_delayed_values_that_are_fused_stop_at_the_milestone():
    """The optional fusion of delayed values leaves the milestone a task of its own."""
    with dask.config.set({"optimization.fuse.delayed": True}):
        whole = delayed_above(checkpoint(delayed_below(), "clean"))
        plain = submitted(delayed_above(delayed_below()), True)
        assert sum(not isinstance(t, Alias) for t in plain.values()) == 1
        marked = submitted(whole, True)
        assert sum(not isinstance(t, Alias) for t in marked.values()) == 3
        assert sum(isinstance(t, SaveTask) for t in marked.values()) == 1
        assert whole.compute(scheduler="sync") == 16
