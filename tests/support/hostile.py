"""What a hostile hand does to a store, with every checksum right, and every use of it afterwards."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import dask_resilient as dr
from dask_resilient.core.manifest import Place, seal
from dask_resilient.core.milestones import Description
from dask_resilient.errors import ResilienceError
from dask_resilient.store import open_archive, open_store, read_at
from dask_resilient.store.garbage import Collector
from dask_resilient.store.survey import milestone_rows, partition_rows
from tests.support.store_life import Impatient

PLACE = Place("m", "0", 0, "a")
KIND = Description("clean", "array", 1, numblocks=(1,))


def receipt(root: Path, **change) -> None:
    """Change what the receipt says, and seal it."""
    path = root / PLACE.receipt
    body = json.loads(path.read_bytes())
    del body["sha256"]
    place = change.pop("place", None)
    if place is not None:
        body["place"] |= place
    path.write_bytes(seal({**body, **change}))


def metadata(root: Path, raw: bytes) -> None:
    """Exchange ``zarr.json``, and let the receipt agree."""
    (root / PLACE.data / "zarr.json").write_bytes(raw)
    receipt(root, metadata=hashlib.sha256(raw).hexdigest())


def describe(root: Path, **change) -> None:
    """Change what the description says, and seal it."""
    body = {"milestone": "m", "run": "r", "made": 1.0, "description": {**KIND.to_dict(), **change}}
    (root / "milestones" / "m.json").write_bytes(seal(body))


def everything(root: Path) -> list[str]:
    """Use a store in every way there is, and give what went wrong: all of it on purpose."""
    errors = []
    steps = [
        lambda: dr.open(root, "clean").compute(scheduler="sync"),
        lambda: dr.open(root, m="m"),
        lambda: read_at(str(root), open_archive(root).token, PLACE.receipt),
        lambda: open_store(root, create=False, calls=Impatient()).read(PLACE, None),
        lambda: open_store(root, create=False, calls=Impatient()).winner(PLACE),
        lambda: milestone_rows(open_archive(root), 0.0),
        lambda: list(partition_rows(open_archive(root), open_archive(root).milestones())),
        lambda: collect(root),
    ]
    for step in steps:
        try:
            step()
        except (ResilienceError, FileNotFoundError) as e:
            errors.append(str(e))
    assert all(len(error) < 2000 for error in errors), "an error is a sentence"
    return errors


def collect(root: Path, *, delete: bool = False) -> list[str]:
    """Collect garbage without grace, and remove the milestone."""
    one = Collector(open_archive(root, Impatient()), delete=delete, idle=0.0)
    found = [each for m in one.milestones() for each in one.collect(m, 0.0)] + list(one.sweep_root(0.0))
    return [each.path for each in [*found, *one.remove("m")]]
