"""Helpers of the tests that list what lies in a store."""

from __future__ import annotations

import os
from pathlib import Path

from dask_resilient.core.manifest import Place
from dask_resilient.core.milestones import Description, Milestone
from tests.support.store_life import FACTS, stage

FRAME = Description("clean", "frame", 3)


def save(store, m, *indices, generation=0, attempt="a"):
    for index in indices:
        store.write(Place(m, index, generation, f"{attempt}{generation}"), stage(1, rows=2), FACTS)


def declare(store, m, description=FRAME, run="r", made=1.0):
    store.declare(Milestone(m, run, made, description))


def damage(path: Path, how: str) -> None:
    raw = path.read_bytes()
    path.unlink()
    if how == "link":
        path.symlink_to("/etc/passwd")
    elif how == "directory":
        path.mkdir()
    elif how == "pipe":
        os.mkfifo(path)
    else:
        path.write_bytes({"empty": b"", "cut": raw[:-9], "other": raw.replace(b"clean", b"dirty")}[how])
