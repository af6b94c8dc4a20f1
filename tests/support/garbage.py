"""Helpers of the tests that collect garbage."""

from __future__ import annotations

from pathlib import Path

from dask_resilient.core.manifest import Place
from dask_resilient.core.milestones import Description, Milestone
from dask_resilient.store import open_archive
from dask_resilient.store.garbage import Collector
from dask_resilient.store.survey import partition_rows
from tests.support.store_life import Impatient, stage


def files(root: Path) -> set[str]:
    """Give the paths of everything in a store but its runs and its own marks."""
    return {str(p.relative_to(root)) for p in root.rglob("*") if p.relative_to(root).parts[0] != "runs"}


EMPTY = {"store.json", "data", "commit", "revoked", "milestones", "devices"}


def write(store, m, index, *, generation=0, attempt="a", run="run", temporary=False):
    facts = {"key": "k", "run": run, "temporary": temporary}
    store.write(Place(m, index, generation, attempt), stage(1, rows=2), facts)


def declare(store, m, run="run", *, keep=False, partitions=20):
    store.declare(Milestone(m, run, 1.0, Description("clean", "frame", partitions, keep)))


def collector(store, *, delete=True, calls=None, **kwargs):
    return Collector(open_archive(store.url, calls or Impatient()), delete=delete, **{"idle": 0.0, **kwargs})


def endings(store) -> set[str]:
    """Give how reading everything that has a receipt ends."""
    archive = open_archive(store.url, Impatient())
    rows = partition_rows(archive, archive.milestones())
    return {row["ending"] for row in rows} - {"missing"}
