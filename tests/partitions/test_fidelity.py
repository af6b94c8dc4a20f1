"""T25 for everything but tables: saved, lost and reloaded exactly; or not saved with the reason, and recomputed."""

from __future__ import annotations

import datetime as dt
from collections import Counter

import ml_dtypes
import numpy as np
import scipy.sparse
import sparse
from dask.delayed import delayed

from dask_resilient.graph import checkpoint
from dask_resilient.testing.same import differences
from tests.support.cluster import Cluster, cluster_test
from tests.support.waiting import until

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


MAKERS = SAVED | {name: make for name, (make, _) in NOT_SAVED.items()}
RUNS: Counter[str] = Counter()


def run(name: str) -> object:
    RUNS[name] += 1
    return MAKERS[name]()


@cluster_test(workers=2)
async def test_exact_or_refused(x: Cluster) -> None:
    """Each kind of value survives the loss of every worker that held it, and tells what became of it."""
    RUNS.clear()
    marked = {name: checkpoint(delayed(run, pure=False)(name), name) for name in MAKERS}
    futures = dict(zip(marked, x.client.compute(list(marked.values())), strict=True))
    await x.done(*futures.values())
    entries = x.watch.ledger.entries
    await until(lambda: len(entries) == len(MAKERS) and not x.watch.ledger.saving(), what="all are decided")
    rows = {entry.to_dict()["name"]: entry.to_dict() for entry in entries.values()}
    assert {name for name, row in rows.items() if row["state"] == "durable"} == set(SAVED)
    for name, (_, reason) in NOT_SAVED.items():
        assert rows[name]["reason"].startswith(reason), rows[name]
    await x.join(ready=True)
    for worker in x.workers[:2]:
        await x.lose(worker.address)
    await x.done(*futures.values())
    for name, make in SAVED.items():
        # Where the value is: one that came through a comm need not be aligned any more, with or without this package.
        assert not await x.client.submit(lambda value, make=make: list(differences(value, make())), futures[name]), name
    assert dict.fromkeys(SAVED, 1) | dict.fromkeys(NOT_SAVED, 2) == RUNS
