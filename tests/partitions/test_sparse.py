"""Sparse arrays of SciPy and of PyData's sparse: their parts come back untouched, and no index points out of them."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse
import sparse

from dask_resilient import partitions
from dask_resilient.core.outcome import Declined
from dask_resilient.errors import Foreign
from dask_resilient.testing.codecs import CodecContract, payload_of, round_trip, staged
from dask_resilient.testing.same import assert_same

DENSE = np.array([[0, 1.5, 0, 2], [0, 0, 0, 0], [3, 0, -0.0, 4], [0, 5, 6, 0]])
FORMATS = ("csr", "csc", "coo", "bsr", "dia")


def made(kind, form, dense=DENSE):
    return getattr(scipy.sparse, f"{kind}_{form}")(dense)


def changed(array, **attributes):
    for name, value in attributes.items():
        setattr(array, name, value)
    return array


def flagged():
    array = made("csr", "array")
    assert array.has_canonical_format
    return array


SCIPY = {
    **{
        f"{kind} {form}": (lambda kind=kind, form=form: made(kind, form))
        for kind in FORMATS
        for form in ("array", "matrix")
    },
    **{f"{kind}, no items": (lambda kind=kind: made(kind, "array", np.zeros((3, 4)))) for kind in FORMATS},
    "no rows": lambda: scipy.sparse.csr_array((0, 5)),
    "csr in one axis": lambda: scipy.sparse.csr_array(DENSE[0]),
    "coo in three axes": lambda: scipy.sparse.coo_array(np.arange(8).reshape(2, 2, 2)),
    "unsorted, duplicates": lambda: scipy.sparse.csr_array(
        ([1, 2, 3], [2, 0, 2], [0, 3, 3]), shape=(2, 3), dtype=np.float32
    ),
    "coo with duplicates": lambda: scipy.sparse.coo_matrix(([1, 2], ([0, 0], [1, 1])), shape=(2, 2)),
    "diagonal of one index": lambda: scipy.sparse.coo_array((np.ones(3), ((i := np.arange(3)), i)), shape=(3, 3)),
    "wide indices": lambda: changed(made("csr", "array"), **wide(made("csr", "array"))),
    "flags": flagged,
    "blocks": lambda: scipy.sparse.bsr_array(np.kron(np.eye(2), np.ones((2, 3)))),
    "long double": lambda: made("csr", "array", DENSE.astype(np.longdouble)),
    "bool": lambda: made("csc", "matrix", DENSE != 0),
    "shows all": lambda: changed(made("coo", "array"), maxprint=7),
    "strided data": lambda: changed(made("csr", "array"), data=np.arange(12.0)[::2]),
}


def wide(array):
    return {name: getattr(array, name).astype(np.int64) for name in ("indices", "indptr")}


class TestScipy(CodecContract):
    codec = "scipy.sparse"

    @pytest.fixture(params=list(SCIPY))
    def value(self, request):
        return SCIPY[request.param]()

    def assert_same(self, restored, original):
        assert_same(restored, original)
        assert (restored.todense() == original.todense()).all()


PYDATA = {
    "coo": lambda: sparse.COO.from_numpy(DENSE),
    "coo, fill value": lambda: sparse.COO.from_numpy(DENSE, fill_value=np.nan),
    "coo, four axes": lambda: sparse.COO.from_numpy(np.eye(4).reshape(2, 2, 2, 2)),
    "coo, one axis": lambda: sparse.COO(np.arange(3), np.ones(3), shape=(5,)),
    "coo, no items": lambda: sparse.COO(np.zeros((2, 0), np.int16), np.zeros(0), shape=(3, 0)),
    "coo, one number for all": lambda: sparse.COO(np.array([[0, 2]]), 1.0, shape=(3,)),
    "coo as it was said": lambda: sparse.COO(
        np.array([[2, 0, 2]], np.uint8), np.array([1j, 2, 3]), shape=(3,), sorted=True, has_duplicates=False
    ),
    "gcxs": lambda: sparse.COO.from_numpy(DENSE).asformat("gcxs"),
    "gcxs, axes": lambda: sparse.COO.from_numpy(np.arange(24.0).reshape(2, 3, 4)).asformat(
        "gcxs", compressed_axes=(0, 2)
    ),
    "gcxs, one axis": lambda: sparse.COO.from_numpy(DENSE[0]).asformat("gcxs"),
    "gcxs, fill value": lambda: sparse.COO.from_numpy(DENSE, fill_value=-1.0).asformat("gcxs", compressed_axes=(1,)),
}


class TestPydata(CodecContract):
    codec = "sparse"

    @pytest.fixture(params=list(PYDATA))
    def value(self, request):
        return PYDATA[request.param]()

    def assert_same(self, restored, original):
        assert_same(restored, original)
        np.testing.assert_array_equal(restored.todense(), original.todense())


def grown():
    array = made("csr", "array")
    return changed(array, indices=np.append(array.indices, np.int32(2**30)), data=np.append(array.data, 1))


DECLINED = {
    "lil": (lambda: made("lil", "matrix"), r"'lil' is made of Python objects; .*tocsr\(\)"),
    "dok": (lambda: made("dok", "array"), "'dok' is made of Python objects"),
    "sparse dok": (lambda: sparse.DOK.from_numpy(DENSE), "DOK is made of Python objects"),
    "attributes": (lambda: changed(made("csr", "array"), unit="m"), r"attributes of its own \(unit\)"),
    "index out of range": (
        lambda: changed(made("csc", "array"), indices=np.full(6, 4, np.int32)),
        "an index out of an axis of 4",
    ),
    "negative index": (
        lambda: changed(made("coo", "array"), coords=(np.full(6, -1), np.zeros(6, int))),
        "an index out of",
    ),
    "pointers": (lambda: changed(made("csr", "array"), indptr=np.array([0, 6, 2, 2, 6], "i4")), "do not run upwards"),
    "room to grow": (grown, r"its rows end at 6; call its prune\(\)"),
    "small index dtype": (lambda: changed(made("dia", "array"), offsets=np.zeros(4, "i2")), "index arrays of int16"),
    "said to be sorted": (
        lambda: changed(SCIPY["unsorted, duplicates"](), has_sorted_indices=True),
        "has_sorted_indices set where",
    ),
    "said to be canonical": (
        lambda: changed(scipy.sparse.csr_array(([1, 2], [1, 1], [0, 2]), shape=(1, 3)), has_canonical_format=True),
        "has_canonical_format set where",
    ),
    "half floats of no kind": (lambda: changed(made("csr", "array"), data=np.array(["a"] * 6)), "items of <U1"),
    "indices in one memory": (
        lambda: changed(made("coo", "array"), coords=((i := np.arange(4))[1:], i[:3]), data=np.ones(3)),
        "coords.1 and coords.0 in the same memory",
    ),
    "data as coordinates": (
        lambda: sparse.COO((i := np.arange(3))[None], i, shape=(3,), sorted=True, has_duplicates=False),
        "two parts in the same memory",
    ),
    "repeated coordinates": (
        lambda: changed(sparse.COO.from_numpy(DENSE), coords=np.broadcast_to(0, (2, 6))),
        "repeat items",
    ),
    "fill value that is an array": (lambda: sparse.COO.from_numpy(np.array(5.0)), r"the fill value array\(5.\)"),
    "coordinates out of range": (
        lambda: sparse.COO(np.array([[9]]), np.ones(1), shape=(3,), sorted=True, has_duplicates=False),
        "an index out of an axis of 3",
    ),
}


@pytest.mark.parametrize("name", DECLINED)
def test_what_cannot_be_exact_is_declined(name):
    """A sparse array without an exact form, or one that would break compiled code, is declined with the reason."""
    make, reason = DECLINED[name]
    assert isinstance(partitions.stage(make()), Declined)
    with pytest.raises(AssertionError, match=reason):
        staged(make())


def test_staging_finds_nothing_out():
    """What a sparse array has not found out about itself, neither it nor its copy knows afterwards."""
    array = made("csr", "matrix")
    restored = round_trip(array)
    for each in (array, restored):
        assert "_has_sorted_indices" not in vars(each)
    assert restored.has_canonical_format


def test_row_pointers_of_one_number_are_foreign():
    """A few bytes never pass for the row pointers of a million million rows: nothing is computed on them."""
    result = staged(made("csr", "array"))
    one = {**result.schema["arrays"]["indptr"], "shape": [2**40 + 1], "core": [5], "axes": [0]}
    schema = {**result.schema, "shape": [2**40, 4], "arrays": {**result.schema["arrays"], "indptr": one}}
    with pytest.raises(Foreign):
        partitions.restore(result.codec, schema, payload_of(result))
    few = {**one, "core": [1], "nbytes": 4}
    schema["arrays"]["indptr"] = few
    with pytest.raises(Foreign, match="stand for an array of"):
        partitions.restore(result.codec, schema, payload_of(result))


def test_one_index_stays_one():
    """Rows and columns that are one array are one again: a change of one shows in the other, as before."""
    restored = round_trip(SCIPY["diagonal of one index"]())
    assert restored.coords[0] is restored.coords[1]


@pytest.mark.parametrize("make", [SCIPY["csr array"], SCIPY["dia array"], PYDATA["coo"], PYDATA["gcxs"]])
def test_parts_are_views_of_the_payload(make):
    """Restoring copies nothing."""
    result = staged(make())
    payload = payload_of(result)
    assert np.shares_memory(partitions.restore(result.codec, result.schema, payload).data, payload)
