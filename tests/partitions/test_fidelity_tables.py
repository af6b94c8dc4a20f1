"""T25 for tables: each awkward one saved, lost and reloaded exactly; or not saved with the reason, and recomputed."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from awkward_tables import DECLINED, EXACT
from dask.delayed import delayed

from dask_resilient.graph import checkpoint
from tests.support.cluster import Cluster, cluster_test
from tests.support.waiting import until
from tests.versions.exchange import describe


def slug(name):
    """Give the name of a milestone, which becomes a file name."""
    return re.sub(r"\W+", "-", name)


SAVED = {slug(name): make for name, make in EXACT.items()}
NOT_SAVED = {slug(name): row for name, row in DECLINED.items()}
MAKERS = SAVED | {name: make for name, (make, _) in NOT_SAVED.items()}
RUNS: Counter[str] = Counter()


def run(name: str) -> object:
    RUNS[name] += 1
    return MAKERS[name]()


@pytest.mark.slow
@cluster_test(workers=2)
async def test_exact_or_refused(x: Cluster) -> None:
    """Each table survives the loss of every worker that held it, and tells what became of it."""
    RUNS.clear()
    marked = {name: checkpoint(delayed(run, pure=False)(name), name) for name in MAKERS}
    futures = dict(zip(marked, x.client.compute(list(marked.values())), strict=True))
    await x.done(*futures.values())
    entries = x.watch.ledger.entries
    await until(lambda: len(entries) == len(MAKERS) and not x.watch.ledger.saving(), what="all are decided")
    rows = {entry.to_dict()["name"]: entry.to_dict() for entry in entries.values()}
    assert {name for name, row in rows.items() if row["state"] == "durable"} == set(SAVED)
    for name, (_, reason) in NOT_SAVED.items():
        assert re.search(reason, rows[name]["reason"]), rows[name]
    await x.join(ready=True)
    for worker in x.workers[:2]:
        await x.lose(worker.address)
    await x.done(*futures.values())
    for name, make in SAVED.items():
        same = x.client.submit(lambda value, make=make: describe(value) == describe(make()), futures[name])
        assert await same, name
    assert dict.fromkeys(SAVED, 1) | dict.fromkeys(NOT_SAVED, 2) == RUNS
