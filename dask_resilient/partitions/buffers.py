"""Flat bytes: views of arrays, their checksums, and their cutting into the chunks of one Zarr array.

Nothing here copies data. What the chunks mean is in the codecs; how they reach the disk in :mod:`dask_resilient.store`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from dask_resilient.errors import Foreign
from dask_resilient.protocols import Payload, Staged

__all__ = ["CHUNK_NBYTES", "Packer", "Unpacker", "cut", "digest", "even_step", "flat", "own", "stage_bytes"]

CHUNK_NBYTES = 64 * 2**20
"""A partition is one chunk up to this size; a larger one is cut into chunks that do not exceed it."""

ALIGNMENT = 64
"""Buffers inside a payload start at multiples of this: a cache line, and what Arrow asks for."""


def digest(chunks: Iterable[Iterable[memoryview]]) -> tuple[int, ...]:
    """Give the crc32c of each chunk, that is of the concatenation of its buffers.

    The GIL is released for all but small buffers.
    """
    return tuple(_crc32c(buffers) for buffers in chunks)


def _crc32c(buffers: Iterable[memoryview]) -> int:
    crc = 0
    for buffer in buffers:
        crc = crc32c(buffer, crc)
    return crc


def flat(array: npt.NDArray[Any]) -> memoryview:
    """Show the bytes of a C-contiguous array, without a copy."""
    if array.nbytes == 0:  # numpy has no view as bytes of a dtype with zero bytes
        return memoryview(b"")
    return array.reshape(-1).view(np.uint8).data


def own(payload: Payload) -> Payload:
    """Give the payload, or a copy where it is read-only, strided, or not aligned for every dtype of numpy."""
    if payload.dtype != np.uint8 or payload.ndim != 1:
        raise Foreign(f"a payload is a flat array of bytes, not {payload.ndim}-d {payload.dtype}")
    fit = payload.flags.c_contiguous and payload.flags.writeable and payload.ctypes.data % 16 == 0
    return payload if fit else payload.copy()


def even_step(rows: int, row_nbytes: int) -> int:
    """Give how many rows a chunk holds: equal shares, as few as keep each below `CHUNK_NBYTES`, at least one row.

    Equal shares, because Zarr wants the last chunk in full: with a fixed step 65 MiB would take 128 MiB on disk.
    """
    most = max(1, CHUNK_NBYTES // row_nbytes)
    return -(-rows // -(-rows // most))


def cut(buffers: Sequence[memoryview], chunk_nbytes: int) -> tuple[tuple[memoryview, ...], ...]:
    """Cut the concatenation of some buffers into chunks of one size, the last one filled up with zero bytes."""
    chunks: list[tuple[memoryview, ...]] = []
    chunk: list[memoryview] = []
    room = chunk_nbytes
    for buffer in buffers:
        rest = buffer
        while len(rest):
            part, rest = rest[:room], rest[room:]
            chunk.append(part)
            room -= len(part)
            if room == 0:
                chunks.append(tuple(chunk))
                chunk, room = [], chunk_nbytes
    if chunk:
        chunks.append((*chunk, memoryview(bytes(room))) if room else tuple(chunk))
    return tuple(chunks)


def stage_bytes(codec: str, schema: Mapping[str, Any], buffers: Sequence[memoryview]) -> Staged:
    """Stage some buffers as one flat Zarr array of bytes, checksums included."""
    nbytes = sum(map(len, buffers))
    step = even_step(nbytes, 1) if nbytes else 1
    chunks = cut(buffers, step)
    return Staged(codec, schema, "uint8", (nbytes,), (step,), chunks, digest(chunks), nbytes)


class Packer:
    """Lines up arrays at 64-byte boundaries of one payload, and gives each the reference that finds it again."""

    def __init__(self) -> None:
        self.buffers: list[memoryview] = []
        self._end = 0

    def add(self, *raw: memoryview) -> dict[str, int]:
        """Append a buffer, or several side by side, and give its reference, JSON types only."""
        nbytes = sum(map(len, raw))
        gap = -self._end % ALIGNMENT
        if gap and nbytes:
            self.buffers.append(memoryview(bytes(gap)))
            self._end += gap
        at = self._end
        self.buffers.extend(filter(len, raw))
        self._end += nbytes
        return {"at": at, "nbytes": nbytes}

    def add_array(self, array: npt.NDArray[Any]) -> dict[str, int]:
        """Append the items of a flat array; they are copied only if they do not lie side by side."""
        return self.add(flat(np.ascontiguousarray(array)))


class Unpacker:
    """Finds the buffers of one payload again, and knows at the end whether the schema named all of it."""

    def __init__(self, payload: Payload) -> None:
        self._payload = payload
        self._spans: list[tuple[int, int]] = []

    def take(self, reference: Mapping[str, Any]) -> Payload:
        """Give the bytes of a reference, as a view.

        Raises
        ------
        Foreign
            If it points out of the payload.
        """
        at, nbytes = reference["at"], reference["nbytes"]
        size = len(self._payload)
        if type(at) is not int or type(nbytes) is not int or not 0 <= at <= at + nbytes <= size:
            raise Foreign(f"a buffer of {nbytes!r} bytes at {at!r} lies outside a payload of {size} bytes")
        self._spans.append((at, at + nbytes))
        return self._payload[at : at + nbytes]

    def take_array(self, reference: Mapping[str, Any], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        """Give the items of a reference, as a writable view; an odd number of bytes raises `ValueError`."""
        return self.take(reference).view(dtype)

    def finish(self) -> None:
        """Check that the buffers taken fill the payload without overlap.

        Raises
        ------
        Foreign
            If two share bytes, which would let one column write into another, or if bytes are left over.
        """
        spans = sorted(span for span in self._spans if span[0] != span[1])
        overlap = any(before[1] > after[0] for before, after in itertools.pairwise(spans))
        if overlap or (spans[-1][1] if spans else 0) != len(self._payload):
            raise Foreign(f"the buffers of the schema do not fill a payload of {len(self._payload)} bytes one by one")
