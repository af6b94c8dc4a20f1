"""Arrays and staged values as parts of one payload: each with its own schema, at a place that is kept beside it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_resilient.errors import Foreign
from dask_resilient.partitions.arrays import lay_out, restore_array
from dask_resilient.partitions.buffers import Packer, Unpacker
from dask_resilient.protocols import Payload, Staged

__all__ = ["bytes_of", "pack_array", "take_own", "unpack_array", "unpack_dense"]

SMALL_SHARE = 8
"""A part below this share of its payload is copied out of it: the small result that a caller keeps for long must not
keep the large one in memory."""


def pack_array(array: npt.NDArray[Any], out: Packer) -> dict[str, Any]:
    """Append the bytes of an array and describe it in JSON types.

    Raises
    ------
    Inexact
        If it cannot come back exactly.
    """
    schema, raw = lay_out(array)
    return {**schema, **out.add(raw)}


def unpack_array(spec: Mapping[str, Any], data: Unpacker) -> npt.NDArray[Any]:
    """Give an array back, as a view of the payload."""
    return restore_array(spec, data.take(spec))


def unpack_dense(spec: Mapping[str, Any], data: Unpacker) -> npt.NDArray[Any]:
    """Give back an array of which every item lies in the payload, so that work on it is bounded by what was stored.

    Raises
    ------
    Foreign
        If it repeats its items: a few bytes would pass for any number of them.
    """
    array = unpack_array(spec, data)
    if array.nbytes != spec["nbytes"]:
        raise Foreign(f"{spec['nbytes']!r} bytes stand for an array of {array.nbytes:,}")
    return array


def bytes_of(staged: Staged) -> Iterator[memoryview]:
    """Give the buffers of a staged value in order, without the padding of its last chunk."""
    left = staged.nbytes
    for chunk in staged.chunks:
        for buffer in chunk:
            yield buffer[:left]
            left -= min(left, len(buffer))


def take_own(reference: Mapping[str, Any], data: Unpacker, whole: Payload) -> Payload:
    """Give the bytes of a part to be given away: a view, or a copy where the part is small beside the whole."""
    raw = data.take(reference)
    return np.array(raw) if raw.nbytes * SMALL_SHARE < whole.nbytes else raw
