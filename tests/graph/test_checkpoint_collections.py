"""What comes back from `checkpoint`: the same kind of collection, lazy, with right results under every later use."""

from __future__ import annotations

import operator
import pickle
import subprocess
import sys

import dask
import dask.array as da
import dask.bag as db
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from dask.base import collections_to_expr
from dask.core import flatten
from dask.delayed import Delayed, delayed
from pandas.testing import assert_frame_equal, assert_index_equal, assert_series_equal

from dask_resilient.core.milestones import read_description
from dask_resilient.graph import checkpoint
from dask_resilient.tasks import SaveTask

pytestmark = pytest.mark.filterwarnings("ignore::dask_resilient.errors.ResilienceWarning")

PLAIN = pd.DataFrame({"k": [1, 2, 3, 4] * 10, "x": range(40), "s": [0.5, 1.5] * 20})


def frame():
    return dd.from_pandas(PLAIN, npartitions=4)


def array():
    return da.arange(20, chunks=5)


def bag():
    return db.from_sequence(range(10), npartitions=3)


COLLECTIONS = {
    "array": array,
    "array of unknown chunks": lambda: array()[array() > 7],
    "0-d array": lambda: array().sum(),
    "dataframe": frame,
    "dataframe of unknown divisions": lambda: frame().clear_divisions(),
    "series": lambda: frame().x,
    "index": lambda: frame().index,
    "scalar": lambda: frame().x.sum() + 0,
    "bag": bag,
    "item": lambda: bag().sum(),
    "delayed": lambda: delayed(operator.add, pure=True)(1, 2),
    "delayed literal": lambda: delayed([1, 2]),
    "delayed attribute": lambda: delayed(3, pure=True).real,
    "part of a frame": lambda: frame().to_delayed()[1],
    "block of an array": lambda: da.ones((4, 4), chunks=2).to_delayed()[1, 0],
}


def describe(x):
    """Give everything about a collection that has to come through, as text."""
    facts = {a: getattr(x, a, None) for a in ("chunks", "dtype", "divisions", "npartitions")}
    facts["shape"] = x.shape if isinstance(x, da.Array) else None  # computed lazily from the frame itself otherwise
    facts["name"] = getattr(x, "name", None) if isinstance(x, dd.Series | dd.Index) else None
    facts["columns"] = list(x.columns) if isinstance(x, dd.DataFrame) else None
    return repr({**facts, "meta": getattr(x, "_meta", None)}) if not isinstance(x, Delayed) else ""


def equal(a, b) -> bool:
    checks = {pd.DataFrame: assert_frame_equal, pd.Series: assert_series_equal, pd.Index: assert_index_equal}
    for kind, check in checks.items():
        if isinstance(b, kind):
            check(a, b)
            return True
    return type(a) is type(b) and bool(np.all(a == b))


@pytest.mark.parametrize("make", COLLECTIONS.values(), ids=COLLECTIONS)
def test_the_same_kind_of_collection_comes_back_and_computes_the_same(make):
    """Type, meta, chunks, divisions and names come through; so does the value, on both local schedulers."""
    x = make()
    marked = checkpoint(x, "clean")
    assert type(marked) is (Delayed if isinstance(x, Delayed) else type(x))
    assert describe(marked) == describe(x)
    expected = x.compute(scheduler="sync")
    assert equal(marked.compute(scheduler="sync"), expected)
    assert equal(marked.compute(scheduler="threads"), expected)
    assert equal(marked.compute(scheduler="sync", optimize_graph=False), expected)


@pytest.mark.parametrize("make", COLLECTIONS.values(), ids=COLLECTIONS)
def test_nodes_come_through_optimising_twice_and_pickling(make):
    """Every partition is one node with its own key in its ticket, also after two optimisations and a trip by pickle."""
    marked = checkpoint(make(), "clean")
    # dask.optimize fails on most dataframes, milestone or not: it asks for a graph before lowering.
    if hasattr(type(marked), "optimize"):
        twice = marked.optimize().optimize()
    else:
        (twice,) = dask.optimize(*dask.optimize(marked))
    graph = pickle.loads(pickle.dumps(collections_to_expr([twice]).optimize())).__dask_graph__()
    nodes = {k: t for k, t in dict(graph).items() if isinstance(t, SaveTask)}
    n = len(set(flatten(make().__dask_keys__())))
    assert len(nodes) == n
    for key, node in nodes.items():
        description = node.ticket["milestone"]
        ticket = {name: said for name, said in node.ticket.items() if name not in ("ids", "lineage")}
        assert ticket == {"name": "clean", "key": key, "npartitions": n, "keep": False, "milestone": description}
        assert read_description(description).name == "clean"
        assert node.dependencies == {node.source} != {key}
    assert len({tuple(sorted(node.ticket.get("ids", {}).items())) for node in nodes.values()}) == 1
    assert sum("lineage" in node.ticket for node in nodes.values()) == 1


def test_the_length_of_a_delayed_value_is_kept():
    """A delayed value that can be unpacked can still be."""
    one, two = checkpoint(delayed(divmod, nout=2)(17, 5), "clean")
    assert dask.compute(one, two, scheduler="sync") == (3, 2)


def test_nothing_is_computed_at_the_call():
    """Marking is lazy: not even divisions that Dask would have to compute are asked for."""
    ran = []

    def part(p):
        ran.append(len(p))
        return p

    x = frame().map_partitions(part, meta=PLAIN).sort_values("x")
    checkpoint(x, "clean")
    assert ran == []


USES = {
    "projection": (lambda x: x[["x"]], lambda p: p[["x"]]),
    "filter": (lambda x: x[x.x > 33], lambda p: p[p.x > 33]),
    "filter of a projection": (lambda x: x[x.k == 2].x, lambda p: p[p.k == 2].x),
    "label": (lambda x: x.loc[3:12], lambda p: p.loc[3:12]),
    "last partition": (lambda x: x.partitions[3], lambda p: p.loc[30:]),
    "assign": (lambda x: x.assign(z=x.x + x.k), lambda p: p.assign(z=p.x + p.k)),
    "index": (lambda x: x.index, lambda p: p.index),
    "renamed": (lambda x: x.rename(columns={"x": "y"}).y, lambda p: p.rename(columns={"x": "y"}).y),
}


@pytest.mark.parametrize(("use", "plain"), USES.values(), ids=USES)
def test_later_uses_of_a_dataframe_are_right_and_do_not_change_what_is_kept(use, plain):
    """A projection or filter above the milestone gives the right result; below it, all columns and rows are kept."""
    marked = checkpoint(frame(), "clean")
    used = use(marked)
    assert equal(used.compute(scheduler="sync"), plain(PLAIN))
    kept = next(e for e in used.optimize().expr.walk() if type(e).__name__ == "Checkpoint")
    assert list(kept.frame.columns) == ["k", "x", "s"]
    assert kept._name == next(e for e in marked.optimize().expr.walk() if type(e).__name__ == "Checkpoint")._name


def test_a_milestone_is_aligned_with_its_source_of_unknown_divisions():
    """A column of the source can still be combined with the milestone made of it."""
    source = frame().clear_divisions()
    marked = checkpoint(source, "clean")
    assert equal((marked.x + source.x).compute(scheduler="sync"), PLAIN.x + PLAIN.x)


def test_length_and_head_of_a_dataframe():
    """`len` and `head`, which Dask answers by other ways than `compute`, are right."""
    with dask.config.set(scheduler="sync"):
        assert len(checkpoint(frame(), "clean")) == 40
        assert equal(checkpoint(frame(), "clean").head(3), PLAIN.head(3))


def test_slices_blocks_masks_and_assignment_of_an_array():
    """Indexing an array above its milestone gives what it gives without."""
    marked, plain = checkpoint(array(), "clean"), np.arange(20)
    for got, expected in [
        (marked[3:7], plain[3:7]),
        (marked.blocks[1], plain[5:10]),
        (marked[marked > 16], plain[plain > 16]),
        (marked.rechunk(7)[::-1], plain[::-1]),
    ]:
        assert equal(got.compute(scheduler="sync"), expected)
    marked[0] = 99
    assert marked.compute(scheduler="sync").tolist() == [99, *range(1, 20)]


def test_partitions_of_a_bag_that_are_iterators_can_be_used_twice():
    """An iterator becomes a list in the milestone; else the second consumer of a partition would find nothing."""
    marked = checkpoint(bag().map_partitions(lambda part: (2 * i for i in part)), "clean")
    got = dask.compute(marked.sum(), marked.max(), marked.count(), marked, scheduler="sync")
    assert got == (90, 18, 10, list(range(0, 20, 2)))


def test_a_bag_survives_going_through_delayed_values():
    """The optimiser of bags rebuilds each `Task`; the node is none, so that fusing a second time leaves it alone."""
    again = db.from_delayed(checkpoint(bag(), "clean").to_delayed()).map(operator.neg)
    graph = collections_to_expr([again]).optimize().__dask_graph__()
    assert sum(isinstance(t, SaveTask) for t in graph.values()) == 3
    assert again.sum().compute(scheduler="sync") == -45


def test_a_dataframe_survives_going_through_delayed_values():
    """`to_delayed` and `from_delayed` keep the nodes and the values."""
    again = dd.from_delayed(checkpoint(frame(), "clean").to_delayed(), meta=PLAIN)
    graph = again.optimize().__dask_graph__()
    assert sum(isinstance(t, SaveTask) for t in graph.values()) == 4
    assert equal(again.compute(scheduler="sync"), PLAIN)


@pytest.mark.parametrize("make", [array, frame, bag], ids=["array", "dataframe", "bag"])
def test_keys_depend_on_input_name_and_version_only(make):
    """The same call gives the same keys; another name, version or input gives others; `keep` does not change them."""

    def keys(x, name="clean", **kw):
        return list(flatten(checkpoint(x, name, **kw).__dask_keys__()))

    x = make()
    assert keys(x) == keys(x) == keys(x, keep=True) == keys(make())
    different = [x, "clean", {}], [x, "other", {}], [x, "clean", {"version": 1}], [x, "clean", {"version": "1"}]
    other = x.map(abs) if make is bag else abs(x[["x"]] if make is frame else x)
    names = {keys(y, name, **kw)[0][0] for y, name, kw in [*different, [other, "clean", {}]]}
    assert len(names) == 5


def test_keys_are_the_same_in_another_process():
    """A name is made of names, never of addresses or hashes that differ between processes."""
    code = (
        "import dask.array as da, dask.dataframe as dd, pandas as pd; from dask_resilient.graph import checkpoint;"
        "d = dd.from_pandas(pd.DataFrame({'x': range(6)}), npartitions=2);"
        "print(checkpoint(da.arange(20, chunks=5), 'clean').name, checkpoint(d, 'clean')._name)"
    )
    local = dd.from_pandas(pd.DataFrame({"x": range(6)}), npartitions=2)
    expected = f"{checkpoint(array(), 'clean').name} {checkpoint(local, 'clean')._name}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == expected


@pytest.mark.parametrize("make", [array, frame], ids=["array", "dataframe"])
def test_a_second_mark_that_asks_to_keep_is_heard(make):
    """`keep=True` reaches the ticket even while a mark of the same keys without it is alive."""
    x = make()
    first, second = checkpoint(x, "clean"), checkpoint(x, "clean", keep=True)
    for marked, keep in ((first, False), (second, True)):
        graph = pickle.loads(pickle.dumps(collections_to_expr([marked]).optimize())).__dask_graph__()
        assert {t.ticket["keep"] for t in graph.values() if isinstance(t, SaveTask)} == {keep}


def test_two_milestones_in_one_graph_and_one_above_the_other():
    """Milestones of other names can stand beside and above one another; one name can serve two separate graphs."""
    low = checkpoint(frame(), "low")
    high = checkpoint(low.groupby("k").x.sum(), "high")
    beside = checkpoint(frame().x * 2, "beside")
    total = high.sum() + beside.sum()
    graph = total.optimize().__dask_graph__()
    assert (
        sorted(t.ticket["name"] for t in graph.values() if isinstance(t, SaveTask))
        == ["beside"] * 4 + ["high"] + ["low"] * 4
    )
    assert total.compute(scheduler="sync") == 3 * PLAIN.x.sum()
    assert checkpoint(array(), "low").sum().compute(scheduler="sync") == 190
