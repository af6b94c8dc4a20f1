"""Describes a marked collection, so that its stored partitions can be made into a collection again.

The description travels with every partition to the worker that saves it, so it is small: compressed, and without what
would make it large. What is left out is found out from the partitions when the milestone is opened.
"""

from __future__ import annotations

import base64
import json
import logging
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dask_resilient import config, partitions
from dask_resilient.core.fingerprints import combine
from dask_resilient.core.messages import one_line
from dask_resilient.core.milestones import MAX_UNPACKED, Description, dump_description
from dask_resilient.core.outcome import Declined
from dask_resilient.errors import Damaged, NotStored
from dask_resilient.graph.labelled import Part
from dask_resilient.graph.milestone import Mark

logger = logging.getLogger("dask_resilient")

MAX_NBYTES = 16 * 2**10
"""Largest description, compressed: it is sent along with every task."""

REASONS = 5
"""Reasons, why a milestone is for its run only, that are kept of it."""

REASON = 300
"""Characters of each of them."""

_LARGE = ("divisions", "chunks", "meta")
_LIBRARIES = ("cudf", "cupy", "dask", "dask_resilient", "numpy", "pandas", "xarray")


@dataclass(frozen=True, slots=True)
class Described:
    """A description as it travels, and what it says of the partitions."""

    raw: bytes
    """To be read by `core.milestones.read_description`."""
    shape: str
    """Digest of the partitions' number, limits and types."""


def describe_collection(
    mark: Mark, x: Any, npartitions: int, part: Part | None, reasons: tuple[str, ...] = ()
) -> Described:
    """Describe whatever speaks Dask's collection protocol, a variable of an xarray object included."""
    arrays, bags = sys.modules.get("dask.array"), sys.modules.get("dask.bag.core")
    if arrays is not None and isinstance(x, arrays.Array):
        chunks = tuple(tuple(None if math.isnan(n) else int(n) for n in axis) for axis in x.chunks)
        facts: dict[str, Any] = {"numblocks": x.numblocks, "chunks": chunks, "meta": stage_value(x._meta)}
        if part is not None:
            facts |= {"dims": part.dims, "variable": part.variable, "group": part.group}
        return describe(mark, "array", npartitions, reasons, **facts)
    if bags is not None and isinstance(x, bags.Bag | bags.Item):
        return describe(mark, "bag" if isinstance(x, bags.Bag) else "delayed", npartitions, reasons)
    return describe(mark, "other", npartitions, reasons)


def describe_frame(
    mark: Mark, meta: Any, divisions: tuple[Any, ...], reasons: tuple[str, ...] = (), planned: str = ""
) -> Described:
    """Describe a dataframe, series, index or scalar of dask.dataframe; `planned` is a part of its shape."""
    facts = {"meta": stage_value(meta), "divisions": stage_value(divisions)}
    described = describe(mark, "frame", len(divisions) - 1, reasons, **facts)
    return replace(described, shape=combine([described.shape, planned]))


def describe(mark: Mark, kind: str, npartitions: int, reasons: tuple[str, ...] = (), **facts: Any) -> Described:
    """Give the description of a milestone."""
    versions = {name: str(getattr(sys.modules[name], "__version__", "?")) for name in _LIBRARIES if name in sys.modules}
    head: Any = {"name": mark.name, "kind": kind, "npartitions": npartitions, "keep": mark.keep}
    head["reasons"] = tuple(one_line(reason, REASON) for reason in reasons[:REASONS]) or None
    said = {name: fact for name, fact in facts.items() if name != "group"}
    shape = combine([kind, str(npartitions), json.dumps(said, sort_keys=True)])
    while True:
        try:
            description = Description(**head, version=mark.version, versions=versions, **facts)
        except Damaged:  # a collection that contradicts itself is kept all the same; nobody can open it
            head, facts = {**head, "kind": "other"}, {}
            description = Description(**head, version=mark.version, versions=versions)
        raw = dump_description(description)
        large = {name: len(json.dumps(facts[name])) for name in _LARGE if facts.get(name) is not None}
        if not large or (len(raw) <= MAX_NBYTES and sum(large.values()) < MAX_UNPACKED // 2):
            return Described(raw, shape)
        del facts[max(large, key=lambda name: large[name])]


def stage_value(value: Any) -> Mapping[str, Any] | None:
    """Stage a small value as JSON; None where it has no exact form, which must not fail the job."""
    try:
        staged = partitions.stage(value)
    except Exception:
        logger.debug("dask-resilient: a meta cannot be described", exc_info=True)
        return None
    if isinstance(staged, Declined):
        return None
    raw = b"".join(buffer for chunk in staged.chunks for buffer in chunk)[: staged.nbytes]
    return {"codec": staged.codec, "schema": dict(staged.schema), "payload": base64.b64encode(raw).decode()}


def restore_value(stored: Any) -> Any:
    """Give back what `stage_value` gave.

    Raises
    ------
    NotStored
        If it is something else.
    Unreachable, Foreign
        As `partitions.restore`.
    """
    partitions.load_modules(config.read().codecs)
    try:
        payload = np.frombuffer(bytearray(base64.b64decode(stored["payload"], validate=True)), np.uint8)
        return partitions.restore(stored["codec"], stored["schema"], payload)
    except (ValueError, LookupError, TypeError) as e:
        raise NotStored(f"the description of the milestone cannot be read: {e!r}") from e
