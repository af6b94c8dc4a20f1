"""One partition as one valid Zarr v3 array, in a flat directory: metadata, file names, buffers of each file.

Written by hand and not with zarr-python, which needs several passes over the data, never calls fsync, and takes a lost
chunk for one full of fill values. Codecs are ``bytes`` (little endian) and ``crc32c``: a file is the chunk followed by
its checksum. Pure (no I/O).
"""

from __future__ import annotations

import errno
import itertools
import json
import math
from collections.abc import Iterable, Iterator, Mapping

import crc32c

from dask_resilient.errors import ChangedWhileWriting, StoreError
from dask_resilient.protocols import Staged

TRAILER = 4
"""Bytes of the checksum at the end of each file."""


def check_staged(staged: Staged) -> None:
    """Refuse what would be no Zarr array, or could not be put together again by concatenation.

    Raises
    ------
    StoreError
        If shape, chunks and checksums contradict one another, or an axis other than the first is cut.
    """
    shape, chunk_shape = staged.shape, staged.chunk_shape
    sizes = {sum(buffer.nbytes for buffer in chunk) for chunk in staged.chunks}
    if (
        len(shape) < 1
        or len(shape) != len(chunk_shape)
        or min(chunk_shape) < 1
        or any(c != max(n, 1) for n, c in zip(shape[1:], chunk_shape[1:], strict=True))
        or len(staged.chunks) != math.prod(-(-n // c) for n, c in zip(shape, chunk_shape, strict=True))
        or len(staged.chunks) != len(staged.crc32c)
        or len(sizes) > 1
        or not 0 <= staged.nbytes <= len(staged.chunks) * max(sizes, default=0)
    ):
        raise StoreError(
            errno.EINVAL,
            f"the codec {staged.codec!r} staged {len(staged.chunks)} chunks of sizes {sorted(sizes)!r} for"
            f" {staged.nbytes} bytes of shape {shape!r}, chunks {chunk_shape!r}: no array cut along its first axis",
        )


def metadata(staged: Staged) -> bytes:
    """Give the bytes of ``zarr.json``."""
    data_type = staged.data_type if isinstance(staged.data_type, str) else dict(staged.data_type)
    body: dict[str, object] = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": staged.shape,
        "data_type": data_type,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": staged.chunk_shape}},
        # The default encoding would make a directory per axis, each of which would have to be made durable.
        "chunk_key_encoding": {"name": "v2", "configuration": {"separator": "."}},
        "fill_value": _fill_value(data_type),
        "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}],
        "attributes": {},
        "storage_transformers": [],
    }
    if len(staged.dimension_names) == len(staged.shape):
        body["dimension_names"] = staged.dimension_names
    return json.dumps(body, indent=1).encode()


def _fill_value(data_type: str | Mapping[str, object]) -> object:
    if isinstance(data_type, str) and data_type.startswith("complex"):
        return [0.0, 0.0]
    return False if data_type == "bool" else 0


def chunk_names(ndim: int, count: int) -> Iterator[str]:
    """Give the file names of the chunks, by position."""
    rest = ".0" * (ndim - 1)
    return (f"{i}{rest}" for i in range(count))


def files(staged: Staged) -> Iterator[tuple[str, Iterable[memoryview]]]:
    """Give name and buffers of each chunk file; the trailer is the checksum that was taken inside the task."""
    names = chunk_names(len(staged.shape), len(staged.chunks))
    for name, chunk, crc in zip(names, staged.chunks, staged.crc32c, strict=True):
        yield name, itertools.chain(chunk, [memoryview(trailer(crc))])


def trailer(crc: int) -> bytes:
    """Give a checksum as it stands at the end of a file."""
    return crc.to_bytes(TRAILER, "little")


def check_unchanged(staged: Staged) -> None:
    """Digest the staged memory again.

    Raises
    ------
    ChangedWhileWriting
        If it differs from what the task saw.
    """
    for position, (chunk, taken) in enumerate(zip(staged.chunks, staged.crc32c, strict=True)):
        now = 0
        for buffer in chunk:
            now = crc32c.crc32c(buffer, now)
        if now != taken:
            raise ChangedWhileWriting(
                f"chunk {position} of a value staged by {staged.codec!r} has crc32c {now:#010x}, but had {taken:#010x}"
                " in its task: something changed the value in place, so it is not saved"
            )
