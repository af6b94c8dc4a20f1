"""Reading one partition: the receipt first, then what it names, and no byte is given back unverified.

A load has four endings. What lies there and differs is `Damaged` or `Foreign`; what cannot be read is `Unreachable`;
what is absent is `Damaged` only while the store itself is still in sight, since an unmounted disk looks just the same.
"""

from __future__ import annotations

import errno
import hashlib
import json

import crc32c
import numpy as np

from dask_resilient.core.manifest import Place, Receipt, loads_receipt
from dask_resilient.errors import Damaged, Foreign, Unreachable
from dask_resilient.protocols import Payload
from dask_resilient.store.array import TRAILER, chunk_names, trailer
from dask_resilient.store.calls import Calls
from dask_resilient.store.files import exists, fill, read_small, regular_size

STORE_JSON = "store.json"
_WRONG_KIND = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})
_ALIGNMENT = 64
_BLOCK = 4 << 20  # small enough for the checksum to find it in the processor's cache


def read_token(calls: Calls, root: str) -> str | None:
    """Give the token of the store at `root`, or None where there is no readable one."""
    try:
        token = json.loads(read_small(calls, f"{root}/{STORE_JSON}"))["token"]
    except (OSError, Damaged, ValueError, LookupError, TypeError, RecursionError):
        return None
    return token if isinstance(token, str) else None


def read_partition(calls: Calls, root: str, token: str, place: Place, key: str | None) -> tuple[Receipt, Payload]:
    """Give receipt and payload of one partition.

    Raises
    ------
    Unreachable, Damaged, Foreign
        See `dask_resilient.protocols.PartitionStore.read`.
    """
    try:
        receipt = _read_receipt(calls, root, place, key)
        return receipt, _read_chunks(calls, f"{root}/{place.data}", receipt)
    except OSError as e:
        if e.errno in _WRONG_KIND and read_token(calls, root) == token:
            raise Damaged(f"{place.data!r} is absent or of the wrong kind: {e}") from e
        raise Unreachable(e.errno, f"{place.data!r} cannot be read from {root!r}: {e}") from e
    except MemoryError as e:
        raise Unreachable(errno.ENOMEM, f"{place.data!r} finds no memory here: {e}") from e


def _read_receipt(calls: Calls, root: str, place: Place, key: str | None) -> Receipt:
    raw = read_small(calls, f"{root}/{place.receipt}")
    try:
        receipt = loads_receipt(raw)
    except RecursionError as e:
        raise Damaged(f"{place.receipt!r} cannot be read: {e!r}") from e
    if receipt.place != place:
        raise Foreign(f"{place.receipt!r} holds the receipt of {receipt.place.data!r}, not of {place.data!r}")
    if key is not None and receipt.key != key:
        raise Foreign(f"{place.receipt!r} is for the key digest {receipt.key!r}, not for {key!r}")
    if exists(calls, f"{root}/{place.tombstone}"):
        raise Damaged(f"{place.receipt!r} was revoked")
    return receipt


def _read_chunks(calls: Calls, directory: str, receipt: Receipt) -> Payload:
    path = f"{directory}/zarr.json"
    raw = read_small(calls, path)
    if hashlib.sha256(raw).hexdigest() != receipt.metadata:
        raise Damaged(f"{path!r} differs from its receipt")
    names = chunk_names(len(json.loads(raw)["shape"]), len(receipt.chunks))
    paths = [f"{directory}/{name}" for name in names]
    for path, (size, _) in zip(paths, receipt.chunks, strict=True):
        _check_size(regular_size(calls.lstat(path), path), size, path)
    # Only now, with every size seen on disk, is memory taken: a receipt alone must not be able to ask for any amount.
    if not 0 <= receipt.nbytes <= sum(size - TRAILER for size, _ in receipt.chunks):
        raise Damaged(f"{directory!r} has fewer bytes than the {receipt.nbytes} of its receipt")
    payload = _aligned(receipt.nbytes)
    rest = payload.data
    for path, (size, crc) in zip(paths, receipt.chunks, strict=True):
        _read_chunk(calls, path, rest[: size - TRAILER], size, crc)
        rest = rest[size - TRAILER :]
    return payload


def _check_size(found: int, expected: int, path: str) -> None:
    if found != expected or expected < TRAILER:
        raise Damaged(f"{path!r} has {found} bytes, its receipt says {expected}")


def _aligned(nbytes: int) -> Payload:
    """Give memory that suits any dtype and a copy to a device."""
    raw = np.empty(nbytes + _ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % _ALIGNMENT
    return raw[start : start + nbytes]


def _read_chunk(calls: Calls, path: str, content: memoryview, size: int, crc: int) -> None:
    """Read one file into `content`; what it holds beyond that, the padding of an edge chunk, is verified only."""
    fd = calls.open(path)
    try:
        _check_size(regular_size(calls.fstat(fd), path), size, path)
        found = 0
        tail = memoryview(bytearray(size - len(content)))
        while len(content) > _BLOCK:
            block, content = content[:_BLOCK], content[_BLOCK:]
            fill(calls, fd, [block], path)
            found = crc32c.crc32c(block, found)
        fill(calls, fd, [content, tail], path)
        found = crc32c.crc32c(tail[:-TRAILER], crc32c.crc32c(content, found))
    finally:
        calls.close(fd)
    if found != crc or tail[-TRAILER:] != trailer(crc):
        raise Damaged(f"{path!r} has crc32c {found:#010x}, its receipt says {crc:#010x}")
