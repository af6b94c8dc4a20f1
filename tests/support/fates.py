"""Case T25 on a cluster: values saved, lost and reloaded exactly, or not saved with the reason and recomputed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from dask.delayed import delayed

from dask_resilient.graph import checkpoint
from tests.support.cluster import Cluster
from tests.support.waiting import until

Make = Callable[[], Any]

MAKERS: dict[str, Make] = {}
RUNS: Counter[str] = Counter()


def run(name: str) -> object:
    """Make a value, and count it."""
    RUNS[name] += 1
    return MAKERS[name]()


async def exact_or_refused(
    x: Cluster,
    saved: Mapping[str, Make],
    refused: Mapping[str, tuple[Make, Any]],
    is_reason: Callable[[str, Any], Any],
    is_same: Callable[[Any, Any], Any],
) -> None:
    """Mark each value, lose every worker that held it, and see which functions ran again, and what came back.

    Parameters
    ----------
    x
        A cluster of two workers.
    saved, refused
        Makers by name of the milestone; with the expected reason.
    is_reason
        Compares the reason that was given with the expected one.
    is_same
        Compares what came back with what is made anew.
    """
    RUNS.clear()
    MAKERS.clear()
    MAKERS.update(saved)
    MAKERS.update({name: make for name, (make, _) in refused.items()})
    marked = {name: checkpoint(delayed(run, pure=False)(name), name) for name in MAKERS}
    futures = dict(zip(marked, x.client.compute(list(marked.values())), strict=True))
    await x.done(*futures.values())
    entries = x.watch.ledger.entries
    await until(lambda: len(entries) == len(MAKERS) and not x.watch.ledger.saving(), what="all are decided")
    rows = {entry.to_dict()["name"]: entry.to_dict() for entry in entries.values()}
    assert {name for name, row in rows.items() if row["state"] == "durable"} == set(saved)
    for name, (_, reason) in refused.items():
        assert is_reason(rows[name]["reason"], reason), rows[name]
    await x.join(ready=True)
    for worker in x.workers[:2]:
        await x.lose(worker.address)
    await x.done(*futures.values())
    for name, make in saved.items():
        # Where the value is: one that came through a comm need not be aligned any more, with or without this package.
        assert await x.client.submit(lambda value, make=make: is_same(value, make()), futures[name]), name
    assert dict.fromkeys(saved, 1) | dict.fromkeys(refused, 2) == RUNS
