"""Reading one partition: the receipt first, then what it names, and no byte is given back unverified.

A load has four endings. What lies there and differs is `Damaged` or `Foreign`; what cannot be read is `Unreachable`;
what is absent is `Damaged` only while the store itself is still in sight, since an unmounted disk looks just the same.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
from collections.abc import Iterator
from dataclasses import replace

import crc32c
import numpy as np

from dask_resilient.core.manifest import WHICHEVER, Place, Receipt, loads_receipt
from dask_resilient.errors import Damaged, Foreign, Unreachable
from dask_resilient.protocols import Payload
from dask_resilient.store.array import TRAILER, chunk_names, trailer
from dask_resilient.store.calls import Calls
from dask_resilient.store.files import check_directories, exists, fill, read_small, regular_size

STORE_JSON = "store.json"
_WRONG_KIND = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})
_ALIGNMENT = 64
_MOST_AXES = 64  # as many as NumPy's arrays have
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
    with _endings(calls, root, token, place):
        receipt = _read_receipt(calls, root, place, key)
        return receipt, _read_chunks(calls, root, receipt)


def read_at(root: str, token: str, path: str) -> tuple[Receipt, Payload]:
    """Read the partition whose receipt lies at `path`, relative to the root of the store with this token.

    Raises
    ------
    Unreachable, Damaged, Foreign
        As `read_partition`.
    """
    calls = Calls()
    found = read_token(calls, root)
    if found != token:
        raise Unreachable(
            errno.ENOENT, f"{root!r}: this process reads token {found!r}, not {token!r}: it sees another disk, or none"
        )
    try:
        place = read_receipt(calls, root, path).place
    except FileNotFoundError as e:
        raise Damaged(f"{path!r} is gone from {root!r}") from e
    except OSError as e:
        raise Unreachable(e.errno, f"{path!r} cannot be read from {root!r}: {e}") from e
    return read_partition(calls, root, token, place, None)


def verify_partition(calls: Calls, root: str, token: str, place: Place) -> Receipt:
    """Read and compare every byte of one partition, in little memory, and give its receipt.

    Raises
    ------
    Unreachable, Damaged, Foreign
        As `read_partition`.
    """
    with _endings(calls, root, token, place):
        receipt = _read_receipt(calls, root, place, None)
        for path, size, crc in _checked_files(calls, root, receipt):
            _read_chunk(calls, path, memoryview(b""), size, crc)
        return receipt


@contextlib.contextmanager
def _endings(calls: Calls, root: str, token: str, place: Place) -> Iterator[None]:
    try:
        yield
    except OSError as e:
        if e.errno in _WRONG_KIND and read_token(calls, root) == token:
            raise Damaged(f"{place.data!r} is absent or of the wrong kind: {e}") from e
        raise Unreachable(e.errno, f"{place.data!r} cannot be read from {root!r}: {e}") from e
    except MemoryError as e:
        raise Unreachable(errno.ENOMEM, f"{place.data!r} finds no memory here: {e}") from e


def read_receipt(calls: Calls, root: str, path: str) -> Receipt:
    """Read the receipt at `path`, relative to the root, and check it against itself and its own name.

    Raises
    ------
    Damaged
        If it was changed or cut off, or is no regular file below the root.
    Foreign
        If it is that of another milestone, index or generation, or of another format.
    OSError
        If it cannot be read.
    """
    if not {"", ".", ".."}.isdisjoint(path.split("/")):
        raise Foreign(f"{path!r} is no path of a receipt")
    check_directories(calls, root, path.rpartition("/")[0])
    receipt = loads_receipt(read_small(calls, f"{root}/{path}"))
    if receipt.place.receipt != path:
        raise Foreign(f"{path!r} holds the receipt {receipt.place.receipt!r}")
    return receipt


def _read_receipt(calls: Calls, root: str, place: Place, key: str | None) -> Receipt:
    receipt = read_receipt(calls, root, place.receipt)
    if receipt.place != (replace(place, attempt=receipt.place.attempt) if place.attempt == WHICHEVER else place):
        raise Foreign(f"{place.receipt!r} holds the receipt of {receipt.place.data!r}, not of {place.data!r}")
    if key is not None and receipt.key != key:
        raise Foreign(f"{place.receipt!r} is for the key digest {receipt.key!r}, not for {key!r}")
    if exists(calls, f"{root}/{place.tombstone}"):
        raise Damaged(f"{place.receipt!r} was revoked")
    return receipt


def _checked_files(calls: Calls, root: str, receipt: Receipt) -> list[tuple[str, int, int]]:
    """Give path, size and crc32c of each chunk's file, having seen each of them in its size on disk."""
    directory = f"{root}/{receipt.place.data}"
    check_directories(calls, root, receipt.place.data)
    path = f"{directory}/zarr.json"
    raw = read_small(calls, path)
    if hashlib.sha256(raw).hexdigest() != receipt.metadata:
        raise Damaged(f"{path!r} differs from its receipt")
    try:
        ndim = len(json.loads(raw)["shape"])
        if not 0 < ndim <= _MOST_AXES:
            raise Foreign(f"{path!r} describes an array of {ndim} axes")
        names = chunk_names(ndim, len(receipt.chunks))
    except (ValueError, LookupError, TypeError, RecursionError) as e:
        raise Foreign(f"{path!r} describes no array: {e!r}") from e
    files = [(f"{directory}/{name}", size, crc) for name, (size, crc) in zip(names, receipt.chunks, strict=True)]
    for path, size, _ in files:
        _check_size(regular_size(calls.lstat(path), path), size, path)
    if receipt.nbytes > sum(size - TRAILER for _, size, _ in files):
        raise Damaged(f"{receipt.place.data!r} has fewer bytes than the {receipt.nbytes} of its receipt")
    return files


def _read_chunks(calls: Calls, root: str, receipt: Receipt) -> Payload:
    files = _checked_files(calls, root, receipt)
    # Only now, with every size seen on disk, is memory taken: a receipt alone must not be able to ask for any amount.
    payload = _aligned(receipt.nbytes)
    rest = payload.data
    for path, size, crc in files:
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
    beyond = size - TRAILER - len(content)
    scratch = memoryview(bytearray(min(beyond, _BLOCK)))
    tail = memoryview(bytearray(TRAILER))
    fd = calls.open(path)
    try:
        _check_size(regular_size(calls.fstat(fd), path), size, path)
        found = 0
        while len(content):
            block, content = content[:_BLOCK], content[_BLOCK:]
            fill(calls, fd, [block], path)
            found = crc32c.crc32c(block, found)
        while beyond:
            block = scratch[:beyond]
            fill(calls, fd, [block], path)
            found = crc32c.crc32c(block, found)
            beyond -= len(block)
        fill(calls, fd, [tail], path)
    finally:
        calls.close(fd)
    if found != crc or tail != trailer(crc):
        raise Damaged(f"{path!r} has crc32c {found:#010x}, its receipt says {crc:#010x}")
