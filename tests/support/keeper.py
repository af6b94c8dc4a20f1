"""Stores milestones in this process, without any cluster, for tests that open them."""

from __future__ import annotations

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import xarray as xr

import dask_resilient as dr
from dask_resilient import partitions
from dask_resilient.core.manifest import Place, digest, split_key
from dask_resilient.core.milestones import Milestone, read_description
from dask_resilient.core.outcome import Declined
from dask_resilient.store import open_store
from tests.support.store_life import Impatient


class Keeper:
    """Stands for the plugin on a worker: saves every partition at once, in this process."""

    def __init__(self, path):
        self.store = open_store(path, create=True, calls=Impatient())
        self.run, self.made = "run", 1.0
        self.skip: set[str] = set()
        self.places: list[Place] = []

    def save(self, value, ticket):
        collection, index = split_key(ticket["key"])
        place = Place(digest(self.run, collection)[:32], index, 0, "a")
        self.store.declare(Milestone(place.milestone, self.run, self.made, read_description(ticket["milestone"])))
        if index in self.skip:
            return
        staged = partitions.stage(value)
        assert not isinstance(staged, Declined), staged
        self.store.write(place, staged, {"key": digest(str(ticket["key"])), "run": self.run})
        self.places.append(place)

    def keep(self, collection, name="clean", **kwargs):
        """Mark and compute a collection, and give what came out."""
        return dask.compute(dr.checkpoint(collection, name, **kwargs), scheduler="sync")[0]


PLAIN = pd.DataFrame(
    {"k": [1, 2, 3, 4] * 5, "s": list("abcde") * 4, "t": pd.date_range("2020", periods=20, tz="UTC")},
    index=pd.Index(range(0, 40, 2), name="row"),
)
PLAIN["c"] = PLAIN["s"].astype("category")


def frame():
    return dd.from_pandas(PLAIN, npartitions=3)


def array():
    return da.from_array(np.arange(70.0).reshape(10, 7), chunks=((3, 5, 2), (4, 3)))


def dataset():
    """Give a dataset of two lazy variables, a lazy coordinate and one that is not."""
    return xr.Dataset(
        {"t": (("y", "x"), array()), "u": ("y", array()[:, 0])},
        {"z": ("x", array()[0]), "y": np.arange(10)},
        {"title": "weather"},
    )


def same(left, right):
    """Check that two computed values are exactly equal."""
    assert type(left) is type(right)
    if isinstance(left, pd.DataFrame | pd.Series | pd.Index):
        check = {pd.DataFrame: "frame", pd.Series: "series"}.get(type(left), "index")
        exact = {} if check == "index" else {"check_freq": False}
        getattr(pd.testing, f"assert_{check}_equal")(left, right, **exact)
    elif isinstance(left, np.ndarray):
        assert left.dtype == right.dtype
        np.testing.assert_array_equal(left, right)
    else:
        assert left == right


def dr_archive(path):
    """Open a store for reading."""
    from dask_resilient.store import open_archive

    return open_archive(path)
