"""Milestones of xarray objects."""

from __future__ import annotations

import dask.array as da
import numpy as np
import pytest

from dask_resilient.errors import SettingError, UnsupportedType
from dask_resilient.graph import checkpoint
from dask_resilient.tasks import SaveTask

pytestmark = pytest.mark.filterwarnings("ignore::dask_resilient.errors.ResilienceWarning")
xarray = pytest.importorskip("xarray")


def dataset():
    ds = xarray.Dataset(
        {
            "t": (("y", "x"), da.arange(24.0, chunks=6).reshape(4, 6).rechunk((2, 3)), {"units": "K"}),
            "plain": ("x", np.arange(6)),
            "level": ((), da.asarray(3.0)),
        },
        coords={"y": [1, 2, 3, 4], "lon": (("y", "x"), da.zeros((4, 6), chunks=(2, 3)), {"long_name": "lon"})},
        attrs={"title": "T"},
    )
    ds.encoding["unlimited_dims"] = ["x"]
    ds.t.encoding["dtype"] = "f4"
    ds.lon.encoding["zlib"] = True
    return ds


def encodings(x):
    return [x.encoding, *({k: v.encoding} for k, v in x.coords.items())]


OBJECTS = {
    "Dataset": dataset,
    "DataArray": lambda: dataset().t,
    "Dask in a coordinate only": lambda: dataset()[["plain"]].expand_dims(y=4).assign_coords(lon=dataset().lon),
}


@pytest.mark.parametrize("make", OBJECTS.values(), ids=OBJECTS)
def test_an_object_comes_back_the_same_and_the_original_is_untouched(make):
    """Names, attrs, dims, coords, encodings, chunks and values come through; the input keeps its own graph."""
    x = make()
    before = set(x.__dask_graph__())
    marked = checkpoint(x, "clean")
    assert type(marked) is type(x)
    assert encodings(marked) == encodings(x)
    assert marked.chunks == x.chunks
    assert set(x.__dask_graph__()) == before
    assert marked.compute(scheduler="sync").identical(x.compute(scheduler="sync"))


def test_each_dask_variable_is_marked_and_the_rest_passes_through():
    """Data variables and coordinates that are Dask arrays are marked, with the partitions of all counted together."""
    ds = dataset()
    marked = checkpoint(ds, "clean", keep=True)
    for name in ("t", "level", "lon"):
        assert marked[name].data.name.startswith("checkpoint-clean-")
        assert marked[name].chunks == ds[name].chunks
    assert marked.plain.data is ds.plain.data
    nodes = [t for t in dict(marked.__dask_graph__()).values() if isinstance(t, SaveTask)]
    n = sum(ds[v].data.npartitions for v in ("t", "level", "lon"))
    assert len(nodes) == n
    assert {(t.ticket["npartitions"], t.ticket["keep"]) for t in nodes} == {(n, True)}


def test_the_coordinates_of_a_data_array_are_marked():
    """A DataArray holds coordinates that may be Dask arrays of their own."""
    array = dataset().plain.expand_dims(y=4).assign_coords(lon=dataset().lon)
    marked = checkpoint(array, "clean")
    assert marked.coords["lon"].data.name.startswith("checkpoint-clean-")
    assert not array.coords["lon"].data.name.startswith("checkpoint")
    assert marked.identical(array)


def test_a_bare_variable_can_be_marked():
    """xarray's Variable is a Dask collection too."""
    marked = checkpoint(dataset().variables["t"], "clean")
    assert marked.identical(dataset().variables["t"])
    assert marked.data.name.startswith("checkpoint-clean-")


def test_a_variable_that_is_not_loaded_yet_is_not_read():
    """Marking is lazy also beside variables that stand in a file."""

    class Untouchable(xarray.backends.BackendArray):
        shape, dtype = (6,), np.dtype("f8")

        def __getitem__(self, key):
            raise AssertionError("the variable was read")

    ds = dataset()
    ds["lazy"] = xarray.Variable("x", xarray.core.indexing.LazilyIndexedArray(Untouchable()))
    assert checkpoint(ds, "clean").t.data.name.startswith("checkpoint-clean-")


@pytest.mark.parametrize("kind", ["Dataset", "DataArray"])
def test_an_object_without_dask_arrays_is_refused(kind):
    """There is nothing to keep in memory that no task makes; the error says how to get there."""
    ds = dataset().compute(scheduler="sync")
    with pytest.raises(UnsupportedType, match=rf"this {kind} has no variable that is a Dask collection.*\.chunk\(\)"):
        checkpoint(ds if kind == "Dataset" else ds.t, "clean")


@pytest.mark.parametrize("make", [lambda: xarray.DataTree(dataset()), lambda: dataset().coords], ids=["tree", "coords"])
def test_other_objects_of_xarray_are_refused(make):
    """A tree would be marked in part only, so it is not marked at all."""
    with pytest.raises(UnsupportedType, match="cannot be marked; mark its datasets"):
        checkpoint(make(), "clean")


def test_a_name_among_the_ancestors_of_one_variable_is_refused():
    """The search goes through variables and coordinates."""
    ds = dataset()
    ds["lon"] = ("y", "x"), checkpoint(ds.lon.data, "clean")
    with pytest.raises(SettingError, match="'clean' already stands below"):
        checkpoint(ds + 1, "clean")
