"""T25 for everything but tables: saved, lost and reloaded exactly; or not saved with the reason, and recomputed."""

from __future__ import annotations

import datetime as dt

import ml_dtypes
import numpy as np
import scipy.sparse
import sparse

from dask_resilient.testing.same import differences
from tests.support.cluster import Cluster, cluster_test
from tests.support.fates import exact_or_refused

RECORD = np.dtype([("a", "<i2"), ("b", "f8"), ("c", "S3")], align=True)
BLOCK = np.arange(24.0).reshape(4, 6)

SAVED = {
    "list": lambda: [{"id": i, "when": dt.date(2020, 1, 1 + i), "x": i / 3} for i in range(5)],
    "empty-list": list,
    "structured": lambda: np.zeros(3, RECORD),
    "masked": lambda: np.ma.array(BLOCK, mask=BLOCK > 5, fill_value=-1),
    "F": lambda: np.asfortranarray(BLOCK),
    "strided": lambda: BLOCK[::2, ::-3],
    "no-items": lambda: np.zeros((0, 3), ">f4"),
    "0-d": lambda: np.array(5),
    "bfloat16": lambda: BLOCK.astype(ml_dtypes.bfloat16),
    "number": lambda: np.float32(0.1),
    "csr": lambda: scipy.sparse.csr_array(BLOCK),
    "coo": lambda: sparse.COO.from_numpy(np.eye(3)),
    "arrays": lambda: {"mean": BLOCK[0].copy(), "rest": (BLOCK * 2, "label", None)},
}
NOT_SAVED = {
    "objects": (lambda: np.array([1, None]), "the array has dtype object"),
    "objects-inside": (lambda: (1, [np.array([1, None])]), "at [1][0]: the array has dtype object"),
    "set": (lambda: {1, 2}, "no codec for builtins.set"),
    "constant": (lambda: np.ma.masked, "no codec for numpy.ma.core.MaskedConstant"),
    "lil": (lambda: scipy.sparse.lil_array(BLOCK), "a sparse array in format 'lil' is made of Python objects"),
}


@cluster_test(workers=2)
async def test_exact_or_refused(x: Cluster) -> None:
    """Each kind of value survives the loss of every worker that held it, and tells what became of it."""
    await exact_or_refused(
        x, SAVED, NOT_SAVED, str.startswith, lambda value, original: not list(differences(value, original))
    )
