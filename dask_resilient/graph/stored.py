"""``open()``: gives a stored milestone back as a Dask collection, outside any run.

The collection is lazy: its tasks read and verify one partition each, in whatever process they run in. There is nothing
to recompute from, so a partition that is damaged by then is an error, one that names it.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from dask.base import tokenize
from dask.highlevelgraph import HighLevelGraph, MaterializedLayer
from dask.task_spec import Task
from dask.typing import Key

from dask_resilient import config
from dask_resilient.core.milestones import LOOP, Description, Milestone
from dask_resilient.errors import Damaged, NotStored, ResilienceError, ResilienceWarning
from dask_resilient.graph.describe import restore_value
from dask_resilient.graph.milestone import prefix
from dask_resilient.store.archive import Archive, open_archive
from dask_resilient.tasks import read_stored

Tickets = dict[str, dict[str, Any]]
"""What `read_stored` needs, by index."""

SHOWN = 10
"""Missing indices, or milestones, that a message names."""


def open_milestone(store: str | os.PathLike[str] | None, name: str | None = None, *, m: str | None = None) -> Any:
    """Give a stored milestone back as a Dask collection, outside any run.

    Nothing is written to the store and nothing but small files is read until the collection is computed. Every
    partition is then verified against its receipt.

    Parameters
    ----------
    store
        Path or ``file://`` URL of the store; every process that computes must see it.
    name
        Name that was given to `checkpoint`. Of several milestones of one name, that is the one of which all partitions
        are stored that a run has used last; a warning says which one it was.
    m
        Which milestone, as ``dask resilience ls`` shows it; takes the place of the name.

    Returns
    -------
    collection
        A Dask array, dataframe, series, index, bag or delayed value, as was marked. Of an xarray object, an
        `xarray.Dataset` of its variables that were Dask collections: the others are not in the store.

    Raises
    ------
    NotStored
        If there is no such milestone, if partitions of it are missing (the message names them), or if it is of a
        collection that cannot be put together.
    StoreError
        If the store cannot be read.
    """
    archive = open_archive(store)
    group = _pick(archive, name, m)
    if what := _what_is_missing(archive, group):
        raise NotStored(
            f"milestone {group[0].description.name!r} ({group[0].milestone}) in {archive.root!r} is not complete: "
            f"{what}; run the script that makes it again, or pick another with m="
        )
    if len(group) == 1 and group[0].description.group is None:
        return _collection(archive, group[0])
    return _dataset(archive, group)


def _pick(archive: Archive, name: str | None, m: str | None) -> list[Milestone]:
    """Give the milestone that is meant; of an xarray object, those of all its variables."""
    if (name is None) == (m is None):
        raise NotStored("say which milestone, by name or by m, not both: open(store, name), or open(store, m=...)")
    if m is not None:
        found = archive.milestone(m)
        if found.description.group is None:
            return [found]
        group = next(g for g in archive.groups(found.description.name) if _object(g[0]) == _object(found))
        return [found if each.description.variable == found.description.variable else each for each in group]
    groups = archive.groups(str(name))
    if not groups:
        known = sorted({each.description.name for each in archive.milestones()})
        unreadable = f", and {len(archive.unreadable)} that cannot be read" if archive.unreadable else ""
        raise NotStored(
            f"{archive.root!r} has no milestone named {name!r}; it has "
            f"{', '.join(map(repr, known[:SHOWN])) or 'none at all'}{' ...' if len(known) > SHOWN else ''}{unreadable}"
        )
    for unknown, reason in list(archive.unreadable.items())[:1]:
        warnings.warn(
            f"{archive.root!r} has a milestone {unknown!r} that cannot be read; it may be a newer {name!r}: {reason}",
            ResilienceWarning,
            stacklevel=3,
        )
    if len(groups) > 1:
        groups = archive.by_use(groups)
    complete = [group for group in groups if not _what_is_missing(archive, group)]
    chosen = (complete or groups)[-1]
    if len(groups) > 1 and complete:
        made = datetime.fromtimestamp(chosen[0].made, UTC).isoformat(" ", "seconds")
        warnings.warn(
            f"{archive.root!r} has {len(groups)} milestones named {name!r}: opened {chosen[0].milestone}, made {made}, "
            "the one used last of those that are complete; m= picks another",
            ResilienceWarning,
            stacklevel=3,
        )
    return chosen


def _object(of: Milestone) -> tuple[str, Any]:
    return of.run, of.description.group


def _what_is_missing(archive: Archive, group: list[Milestone]) -> str:
    """Say what is not stored of a milestone; nothing if it is complete."""
    stored, variables = len(group), (group[0].description.group or ("", 1))[1]
    if stored < variables:
        names = ", ".join(repr(each.description.variable) for each in group)
        return f"of {variables:,} variables only {names} are there"
    missing = [archive.missing(each) for each in group]
    count = sum(each.count for each in missing)
    if not count:
        return ""
    indices = list(dict.fromkeys(index for each in missing for index in each.first))
    more = f" and {count - SHOWN:,} more" if count > SHOWN else ""
    total = sum(each.description.npartitions for each in group)
    verb = "is" if count == 1 else "are"
    return f"of {total:,} partitions {count:,} {verb} missing: {', '.join(indices[:SHOWN])}{more}"


def collection_of(archive: Archive, found: Milestone) -> Any:
    """Give a milestone as a collection; of one of a loop's snapshots the archive need be none of this machine.

    Raises
    ------
    Damaged
        If partitions are missing.
    NotStored
        If nobody knows how to put it together.
    """
    if what := _what_is_missing(archive, [found]):
        raise Damaged(f"milestone {found.milestone} is not complete: {what}")
    return _collection(archive, found)


def _collection(archive: Archive, found: Milestone) -> Any:
    described = found.description
    if described.kind == LOOP:
        raise NotStored(
            f"{described.name!r} is a loop, whose snapshots are no collection; run the script again: its last state is "
            "in loop.state"
        )
    make = _MAKE.get(described.kind)
    if make is None or not described.npartitions:
        raise NotStored(
            f"milestone {described.name!r} is of a collection that dask-resilient cannot put together; mark the "
            "arrays, frames or bags inside it instead"
        )
    name = f"{prefix('stored-' + described.name)}-{tokenize(archive.root, archive.token, found.milestone)}"
    codecs = list(config.read().codecs)
    tickets = {
        index: archive.ticket(found.milestone, index) | {"name": described.name, "index": index, "codecs": codecs}
        for index in described.indices()
    }
    try:
        return make(name, described, tickets)
    except ResilienceError:
        raise
    except Exception as e:
        raise NotStored(f"milestone {described.name!r} ({found.milestone}) cannot be put together: {e!r}") from e


def _array(name: str, described: Description, tickets: Tickets) -> Any:
    import dask.array as da

    blocks, sizes = described.numblocks or (), described.chunks
    nodes: list[tuple[Key, Any]] = [
        ((name, *map(int, index.split(".") if blocks else ())), ticket) for index, ticket in tickets.items()
    ]
    chunks = tuple(
        tuple(math.nan if n is None else n for n in axis)
        for axis in (sizes if sizes is not None else [(None,) * n for n in blocks])
    )
    meta = _meta(described, tickets)
    return da.Array(_graph(name, nodes), name, chunks, meta=meta, dtype=getattr(meta, "dtype", None))


def _frame(name: str, described: Description, tickets: Tickets) -> Any:
    from dask.dataframe.dask_expr import from_graph

    stored = described.divisions
    divisions = restore_value(stored) if stored is not None else (None,) * (len(tickets) + 1)
    if not isinstance(divisions, tuple) or len(divisions) != len(tickets) + 1:
        raise NotStored(f"milestone {described.name!r} has other divisions than partitions: {divisions!r}")
    # Not from_map, which would convert object columns to strings: what was marked comes back.
    keys: list[Key] = [(name, int(index)) for index in tickets]
    return from_graph(
        {key: Task(key, read_stored, ticket) for key, ticket in zip(keys, tickets.values(), strict=True)},
        _meta(described, tickets), divisions, keys, name.rpartition("-")[0],
    )  # fmt: skip


def _bag(name: str, _: Description, tickets: Tickets) -> Any:
    import dask.bag as db

    nodes: list[tuple[Key, Any]] = [((name, int(index)), ticket) for index, ticket in tickets.items()]
    return db.Bag(_graph(name, nodes), name, len(tickets))


def _delayed(name: str, _: Description, tickets: Tickets) -> Any:
    from dask.delayed import Delayed

    return Delayed(name, _graph(name, [(name, ticket) for ticket in tickets.values()]), layer=name)


_MAKE = {"array": _array, "frame": _frame, "bag": _bag, "delayed": _delayed}


def _dataset(archive: Archive, group: list[Milestone]) -> Any:
    try:
        import xarray
    except ImportError as e:
        raise NotStored(
            f"milestone {group[0].description.name!r} is of an xarray object, and xarray is not installed here: "
            "pip install xarray"
        ) from e
    variables = {}
    for each in group:
        dims = each.description.dims or ()
        variables[each.description.variable] = (dims, _collection(archive, each))
    return xarray.Dataset(variables)


def _graph(name: str, nodes: list[tuple[Key, Mapping[str, Any]]]) -> HighLevelGraph:
    layer = MaterializedLayer({key: Task(key, read_stored, dict(ticket)) for key, ticket in nodes})
    return HighLevelGraph({name: layer}, {name: set()})


def _meta(described: Description, tickets: Tickets) -> Any:
    """Give the empty partition: as described, or else from the first stored one."""
    stored = described.meta
    if stored is not None:
        return restore_value(stored)
    value = read_stored(next(iter(tickets.values())))
    if described.kind == "array":
        from dask.array.utils import meta_from_array

        return meta_from_array(value)
    from dask.dataframe.utils import make_meta

    return make_meta(value)
