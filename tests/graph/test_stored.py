"""What `dask_resilient.open` gives: the same kind of collection with the same values, or an error that says why."""

from __future__ import annotations

import math
import shutil
import subprocess
import sys
from pathlib import Path

import dask
import dask.array as da
import dask.bag as db
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from dask.base import is_dask_collection
from dask.delayed import Delayed, delayed
from distributed import Client, LocalCluster, wait

import dask_resilient as dr
from dask_resilient.errors import Damaged, NotStored
from dask_resilient.graph import describe as describe_module
from tests.support.keeper import PLAIN, array, dataset, dr_archive, frame, same
from tests.support.waiting import wait_until

COLLECTIONS = {
    "array": array,
    "array of unknown chunks": lambda: array()[array()[:, 0] > 20],
    "0-d array": lambda: array().sum(),
    "one axis without length": lambda: da.zeros((0, 3), chunks=(1, 3)),
    "datetimes": lambda: da.from_array(np.arange("2020-01", "2021-01", dtype="M8[M]"), chunks=5),
    "structured array": lambda: da.from_array(np.zeros(6, "i4,f8"), chunks=4),
    "booleans": lambda: array() > 3,
    "frame": frame,
    "frame of unknown divisions": lambda: frame().clear_divisions(),
    "frame of dates": lambda: dd.from_pandas(PLAIN.set_index("t"), npartitions=4),
    "frame of strings": lambda: dd.from_pandas(PLAIN.set_index("s").sort_index(), npartitions=2),
    "empty frame": lambda: frame()[frame().k > 9],
    "series": lambda: frame().k,
    "categories": lambda: frame().c,
    "index": lambda: frame().index,
    "scalar": lambda: frame().k.sum() + 0,
    "bag": lambda: db.from_sequence(range(10), npartitions=3),
    "bag of dicts": lambda: db.from_sequence([{"a": 1, "b": [None, 2.5]}, {"c": "x"}], npartitions=2),
    "item of a bag": lambda: db.from_sequence(range(10), npartitions=3).sum(),
    "delayed": lambda: delayed(np.arange, pure=True)(5),
    "delayed frame": lambda: delayed(PLAIN),
}


def alike(left, right):
    """Check that two collections promise the same."""
    assert is_dask_collection(left)
    if isinstance(right, da.Array):
        assert isinstance(left, da.Array)
        assert left.dtype == right.dtype
        assert type(left._meta) is type(right._meta)
        same_nan = [
            (a == b) or (math.isnan(a) and math.isnan(b))
            for x, y in zip(left.chunks, right.chunks, strict=True)
            for a, b in zip(x, y, strict=True)
        ]
        assert all(same_nan)
    elif isinstance(right, Delayed):
        assert isinstance(left, Delayed)
    elif hasattr(right, "expr"):
        assert type(left) is type(right)
        assert left.divisions == right.divisions
        if not np.isscalar(right._meta):
            same(left._meta, right._meta)
    elif isinstance(right, db.Bag):
        assert isinstance(left, db.Bag)
        assert left.npartitions == right.npartitions


@pytest.mark.parametrize("scheduler", ["sync", "threads"])
@pytest.mark.parametrize("kind", COLLECTIONS)
def test_comes_back_as_it_was(keeper, path, kind, scheduler):
    """What was marked comes back: same kind, same promises, same values; nothing is read before it is computed."""
    collection = COLLECTIONS[kind]()
    value = keeper.keep(collection)
    found = dr.open(path, "clean")
    alike(found, collection)
    same(dask.compute(found, scheduler=scheduler)[0], value)


def test_opening_reads_no_partition(keeper, path, monkeypatch):
    """Opening looks at names and descriptions; it writes nothing and reads no data."""
    keeper.keep(array())
    keeper.keep(frame(), "table")
    before = {p: p.stat().st_mtime_ns for p in Path(path).rglob("*")}
    monkeypatch.setattr("dask_resilient.store.reading.read_partition", None)
    assert dr.open(path, "clean").shape == (10, 7)
    assert list(dr.open(path, "table").columns) == list(PLAIN)
    assert {p: p.stat().st_mtime_ns for p in Path(path).rglob("*")} == before


def test_what_is_opened_is_an_ordinary_collection(keeper, path):
    """Slices, projections and reductions of it work, and only what they need is read."""
    value = keeper.keep(array())
    table = keeper.keep(frame(), "table")
    shutil.rmtree(Path(path) / next(p for p in keeper.places if p.index == "2.1").data)
    found = dr.open(path, "clean")
    np.testing.assert_array_equal((found[:8] + 1).compute(scheduler="sync"), value[:8] + 1)
    total = dr.open(path, "table").groupby("k").s.count().compute(scheduler="sync")
    pd.testing.assert_series_equal(total, table.groupby("k").s.count())
    with pytest.raises(Damaged, match=r"2\.1"):
        found.compute(scheduler="sync")


@pytest.mark.parametrize("limit", ["MAX_NBYTES", "MAX_UNPACKED"])
def test_description_without_large_parts(keeper, path, monkeypatch, limit):
    """Meta, chunks and divisions that are too large to travel are found out from the partitions, or left unknown."""
    monkeypatch.setattr(describe_module, limit, 1)
    value, table = keeper.keep(array()), keeper.keep(frame(), "table")
    found = dr.open(path, "clean")
    assert found.numblocks == (3, 2)
    assert found.dtype == "f8"
    assert all(math.isnan(n) for n in found.shape)
    same(found.compute(scheduler="sync"), value)
    found = dr.open(path, "table")
    assert not found.known_divisions
    same(found.compute(scheduler="sync"), table)


def test_object_columns_stay(keeper, path):
    """Texts in an object column come back as such, whatever Dask would make of new ones."""
    with dask.config.set({"dataframe.convert-string": False}):
        plain = pd.DataFrame({"o": pd.Series(["a", "b", None, "d"], dtype=object)})
        value = keeper.keep(dd.from_pandas(plain, npartitions=2))
    assert value.o.dtype == object
    with dask.config.set({"dataframe.convert-string": True}):
        same(dr.open(path, "clean").compute(scheduler="sync"), value)


def test_marking_again_what_was_opened(keeper, path):
    """What was opened can be marked anew, also under its own name: it stands on no milestone of this graph."""
    value = keeper.keep(array())
    again = dr.checkpoint(dr.open(path, "clean"), "clean")
    keeper.run = "later"
    same(again.compute(scheduler="sync"), value)
    assert len({place.milestone for place in keeper.places}) == 2


# -- xarray ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheduler", ["sync", "threads"])
def test_dataset(keeper, path, scheduler):
    """The lazy variables of a Dataset come back with the names of their axes, as one Dataset."""
    value = keeper.keep(dataset())
    found = dr.open(path, "clean")
    assert isinstance(found, xr.Dataset)
    assert set(found.variables) == {"t", "u", "z"}
    for name in ("t", "u", "z"):
        assert found[name].dims == value[name].dims
        assert found[name].chunks == dataset()[name].chunks
        same(found[name].compute(scheduler=scheduler).values, value[name].values)


def test_data_array(keeper, path):
    """A DataArray comes back as the Dataset of its lazy parts."""
    value = keeper.keep(dataset().t)
    found = dr.open(path, "clean")
    assert set(found.variables) == {"t", "z"}
    same(found.t.compute(scheduler="sync").values, value.values)


def test_dataset_without_all_variables(keeper, path):
    """A Dataset of which a variable was never saved is refused, not given without it."""
    keeper.keep(dataset())
    archive = {each.description.variable: each for each in dr_archive(path).milestones()}
    (Path(path) / "milestones" / f"{archive['u'].milestone}.json").unlink()
    with pytest.raises(
        NotStored, match=r"of 3 variables only 't', 'z' are there|of 3 variables only 'z', 't' are there"
    ):
        dr.open(path, "clean")
    with pytest.raises(NotStored, match="of 3 variables only"):
        dr.open(path, m=archive["t"].milestone)


def test_dataset_that_is_not_complete(keeper, path):
    """A Dataset of which a partition is missing is refused with its index."""
    keeper.skip = {"2.1"}
    keeper.keep(dataset())
    with pytest.raises(NotStored, match=r"of 11 partitions 1 is missing: 2\.1;"):
        dr.open(path, "clean")


def test_one_variable_by_its_m(keeper, path):
    """The m of any variable gives the whole object that it is of."""
    keeper.keep(dataset())
    for each in dr_archive(path).milestones():
        assert set(dr.open(path, m=each.milestone).variables) == {"t", "u", "z"}


# -- real clusters -----------------------------------------------------------------------------------------------------


def test_workers_in_other_processes(keeper, path):
    """Workers in other processes, without the plugin, compute what was opened; damage there is the same error."""
    value, table = keeper.keep(array()), keeper.keep(frame(), "table")
    with (
        LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=":0") as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        x, y = dr.open(path, "clean"), dr.open(path, "table")
        same(client.compute(x).result(30), value)
        same(client.compute(y).result(30), table)
        shutil.rmtree(Path(path) / keeper.places[0].data)
        with pytest.raises(Damaged, match="is absent"):
            client.compute(x + 1).result(30)


def test_saved_by_a_run_and_opened_elsewhere(client, tmp_path):
    """What a run with the plugin saved is opened by a process that knows nothing of it."""
    store = tmp_path / "store"
    with dr.install(client, store=store) as res:
        marked = [
            dr.checkpoint(array(), "array").persist(),
            dr.checkpoint(frame(), "table").persist(),
            dr.checkpoint(dataset(), "weather").persist(),
        ]
        wait(marked)
        wait_until(lambda: [r["state"] for r in res.checkpoints()].count("durable") == 20, what="all is durable")
        sums = [float(marked[0].sum().compute()), int(marked[1].k.sum().compute()), float(marked[2].u.sum().compute())]
    script = (
        "import dask_resilient as dr; s = {0!r}; w = dr.open(s, 'weather');"
        "print(dr.open(s, 'array').sum().compute(), dr.open(s, 'table').k.sum().compute(), w.u.sum().compute().item())"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script.format(str(store))], capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    assert [float(word) for word in done.stdout.split()] == sums
