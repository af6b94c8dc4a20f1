"""Different operations on the same operands are different milestones: a table of what users do to collections."""

from __future__ import annotations

import dask
import dask.array as da
import dask.bag as db
import dask.dataframe as dd
import numpy as np
import pandas as pd

from dask_resilient.graph.fingerprint import fingerprint

TABLE = pd.DataFrame({"a": [3, 1, 2, 5], "b": [1.0, 2.0, 3.0, 4.0], "k": ["x", "y", "x", "y"]})


def frames():
    d, e = dd.from_pandas(TABLE, npartitions=2), dd.from_pandas(TABLE, npartitions=3)
    g = d.groupby("k")
    yield from (d, e, d.a, d.a.cumsum(), d.a.cumprod(), d.a.sum(), d.a.mean(), d.a.max(), d.a.min())
    yield from (g.a.sum(), g.a.mean(), g.a.var(), g.a.var(ddof=0), g.agg({"a": "sum"}), g.agg({"a": "max"}))
    yield from (d.merge(e, on="k", how=how) for how in ("left", "inner", "outer"))
    yield from (d.merge(e, on="a"), d.fillna(0), d.fillna(1), d.assign(c=1), d.assign(c=2), d.assign(e=1))
    yield from (d[d.a > 2], d[d.a > 3], d[d.a >= 2], d[d.a < 2], d[d.a.isin([1])], d[d.a.isin([2])])
    yield from (d.astype({"a": float}), d.astype({"a": "int32"}), d.shuffle("a"), d.shuffle("k"))
    yield from (d.repartition(npartitions=1), d.drop_duplicates(), d.drop_duplicates(subset=["k"]))
    yield from (d.nlargest(1, "a"), d.nlargest(2, "a"), d.nsmallest(1, "a"), d.k.value_counts(), d.reset_index())
    yield from (d.k.str.upper(), d.k.str.lower(), d.a.rolling(2).sum(), d.a.rolling(3).sum())
    yield from (d.a.quantile(0.5), d.a.quantile(0.9), d.rename(columns={"a": "z"}), d.rename(columns={"b": "z"}))


def readers(path):
    for name, add in (("p", 0), ("q", 1)):
        TABLE.assign(a=TABLE.a + add).to_parquet(f"{path}/{name}.parquet")
        TABLE.assign(a=TABLE.a + add).to_csv(f"{path}/{name}.csv", index=False)
        yield dd.read_parquet(f"{path}/{name}.parquet")
        yield dd.read_csv(f"{path}/{name}.csv")
    yield dd.read_parquet(f"{path}/p.parquet", columns=["a"])
    yield dd.read_parquet(f"{path}/p.parquet", filters=[("a", ">", 2)])
    yield from (
        dd.read_csv(f"{path}/p.csv", **options)
        for options in ({"blocksize": 20}, {"dtype": {"a": float}}, {"usecols": ["a"]})
    )


def arrays():
    x, y = da.arange(12, chunks=4), da.arange(12.0, chunks=4)
    square = x.reshape(3, 4)
    yield from (x, y, da.arange(12, chunks=3), x + 1, x - 1, x + 1.0, x.sum(), x.mean(), x.std(), x.std(ddof=1))
    yield from (x.rechunk(6), square, x.reshape(4, 3), square.T, x[::2], x[1::2], x.astype("i4"), x.astype("f4"))
    yield from (da.concatenate([x, y]), da.concatenate([y, x]), da.where(x > 3, x, 0), da.where(x > 4, x, 0))
    yield from (x.clip(0, 5), x.clip(0, 6), da.roll(x, 1), da.roll(x, 2), da.flip(x, 0), da.pad(x, 1), da.pad(x, 2))
    yield from (x.map_overlap(np.sort, depth=depth, boundary=edge) for depth, edge in ((1, 0), (1, 1), (2, 0)))
    yield from (da.zeros(4), da.ones(4), da.full(4, 2.0), da.full(4, 3.0), x.map_blocks(np.sin), x.map_blocks(np.cos))


def others():
    b = db.from_sequence(range(6), npartitions=2)
    yield from (b, db.from_sequence(range(7), npartitions=2), b.sum(), b.max(), b.filter(lambda v: v > 1))
    yield from (b.map(lambda v: v + 1), b.map(lambda v: v + 2), b.groupby(lambda v: v % 2))
    yield from (dask.delayed(f, pure=True)(v) for f, v in ((sum, [1, 2]), (sum, [1, 3]), (max, [1, 2])))
    yield from (dask.delayed(dict, pure=True)(a=1), dask.delayed(dict, pure=True)(b=1))


def test_no_two_operations_have_one_fingerprint(tmp_path):
    """And each of them can be known again."""
    made = [*frames(), *readers(tmp_path), *arrays(), *others()]
    found = [fingerprint(each) for each in made]
    assert len(made) > 100
    assert all(each.pinned for each in found)
    assert len({each.digest for each in found}) == len(made)
