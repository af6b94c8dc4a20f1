"""Dask collections in the state of a loop: marked as a part of a snapshot, and made again from one."""

from __future__ import annotations

from typing import Any

from dask_resilient.core.milestones import Milestone, loads_milestone
from dask_resilient.errors import StoreError
from dask_resilient.graph.kinds import is_xarray
from dask_resilient.graph.mark import mark_as
from dask_resilient.graph.stored import collection_of
from dask_resilient.store import Calls
from dask_resilient.store.archive import Archive
from dask_resilient.store.listing import Listing

LONGEST = 45
"""Characters of the names of a loop and of a field that the name of the milestone has."""


def mark_field(x: Any, loop: str, field: str, milestone: str) -> Any:
    """Mark a collection as a field of a snapshot.

    Raises
    ------
    StoreError
        If it could not be made again from its partitions.
    """
    if is_xarray(x):
        raise StoreError(f"state.{field} is an xarray object, of which the store keeps only a part; keep its arrays")
    name = "".join(char if char.isascii() else "_" for char in field)
    return mark_as(x, f"{loop[:LONGEST]}.{name[:LONGEST]}", milestone)


def field_of(root: str, token: str, raw: bytes, receipts: dict[str, int]) -> Any:
    """Make a collection again whose tasks read the partitions of a snapshot.

    Parameters
    ----------
    root, token
        Of the store, as the workers see it.
    raw
        What it says of the milestone.
    receipts
        Generation of the valid receipt, by index.

    Raises
    ------
    NotStored
        If partitions are missing, or nobody knows how to put them together.
    Damaged, Foreign
        If what is said of the milestone cannot be used.
    """
    found: Milestone = loads_milestone(raw, _milestone_in(raw))
    listing = Listing(found.milestone, {index: {generation} for index, generation in receipts.items()})
    return collection_of(Archive(root, token, Calls(), {found.milestone: listing}), found)


def _milestone_in(raw: bytes) -> str:
    import json

    return str(json.loads(raw)["milestone"])
