"""Masked arrays: everything that `numpy.ma` keeps about them comes back."""

from __future__ import annotations

import numpy as np
import pytest

from dask_resilient import partitions
from dask_resilient.core.outcome import Declined
from dask_resilient.errors import Foreign
from dask_resilient.testing.codecs import CodecContract, payload_of, round_trip, staged
from dask_resilient.testing.same import assert_same

RECORDS = np.dtype([("a", "i4"), ("b", "f8", (2,))])


def changed(array, change):
    change(array)
    return array


EXACT = {
    "no mask": lambda: np.ma.array([1.0, np.nan]),
    "mask of False": lambda: np.ma.array([1, 2], mask=[False, False]),
    "data under the mask": lambda: np.ma.array([1, 2, 3], mask=[0, 1, 0]),
    "fill value": lambda: np.ma.array([1, 2], mask=[0, 1], fill_value=7),
    "fill value that was asked for": lambda: changed(np.ma.array([1, 2]), lambda a: a.fill_value),
    "longer fill value of text": lambda: np.ma.array([b"a", b"b"], mask=[0, 1], fill_value=b"N/A"),
    "hard mask": lambda: np.ma.array([1, 2], mask=[0, 1], hard_mask=True),
    "mask of its own": lambda: changed(np.ma.array([1, 2], mask=[0, 1]), lambda a: a.unshare_mask()),
    "fields": lambda: np.ma.array(np.zeros(3, RECORDS), mask=[(True, [False, True])] * 3),
    "one field of many": lambda: np.ma.array(np.zeros(3, RECORDS), mask=[(True, [False, True])] * 3)["b"],
    "0-d": lambda: np.ma.array(5, mask=True),
    "no items": lambda: np.ma.zeros((0, 3)),
    "F": lambda: np.ma.array(np.arange(6).reshape(2, 3, order="F"), mask=np.eye(2, 3, dtype=bool).T.copy().T),
    "strided": lambda: np.ma.array(np.arange(20).reshape(4, 5), mask=np.eye(4, 5, dtype=bool))[::2, ::-2],
    "dates": lambda: np.ma.array(np.array(["2020-01-01", "NaT"], "M8[D]"), mask=[0, 1]),
}


class TestMasked(CodecContract):
    codec = "numpy.ma"

    @pytest.fixture(params=list(EXACT))
    def value(self, request):
        return EXACT[request.param]()

    def assert_same(self, restored, original):
        assert_same(restored, original)


def test_what_was_never_asked_for_stays_unset():
    """Staging does not set the fill value of the array that the task goes on with, nor that of its copy."""
    array = np.ma.array([1.5, 2])
    restored = round_trip(array)
    assert vars(array)["_fill_value"] is vars(restored)["_fill_value"] is None
    assert restored.astype(int).fill_value == 999999


def test_hard_mask_holds():
    """What a hard mask protects cannot be written in the copy either."""
    restored = round_trip(EXACT["hard mask"]())
    restored[1] = 5
    assert restored.data.tolist() == [1, 2]


DECLINED = {
    "attributes": (
        lambda: changed(np.ma.zeros(2), lambda a: setattr(a, "unit", "m")),
        r"attributes of its own \(unit\)",
    ),
    "objects": (lambda: np.ma.array([None]), "dtype object"),
    "matrix": (lambda: np.ma.array(np.matrix([[1]])), "masks a matrix"),
    "its own mask": (
        lambda: np.ma.array((b := np.eye(2, dtype=bool)), mask=b, copy=False),
        "mask that lies in its data",
    ),
    "the constant": (lambda: np.ma.masked, "no codec for .*MaskedConstant"),
    "one masked record": (lambda: np.ma.array(np.zeros(3, RECORDS), mask=True)[0], "no codec for .*mvoid"),
}


@pytest.mark.filterwarnings("ignore:the matrix subclass:PendingDeprecationWarning")
@pytest.mark.parametrize("name", DECLINED)
def test_what_cannot_be_exact_is_declined(name):
    """A masked array without an exact form is declined with the reason."""
    make, reason = DECLINED[name]
    assert isinstance(partitions.stage(make()), Declined)
    with pytest.raises(AssertionError, match=reason):
        staged(make())


def test_mask_of_another_shape_is_foreign():
    """A mask that does not fit is never put over data."""
    result = staged(EXACT["data under the mask"]())
    mask = {**result.schema["mask"], "shape": [1, 3], "core": [1, 3], "axes": [0, 1]}
    with pytest.raises(Foreign, match="does not fit"):
        partitions.restore(result.codec, {**result.schema, "mask": mask}, payload_of(result))
