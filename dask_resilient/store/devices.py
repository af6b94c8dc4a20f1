"""What is remembered of devices, on a file system: entries are appended, each whole and durable, and read back.

The root is that of a store, or any other directory. Several schedulers may append at once: each file is created under a
number that is free, and never changed, moved or removed.
"""

from __future__ import annotations

import contextlib
import errno
import math
import re
import time
import uuid
from collections.abc import Mapping
from typing import Any

from dask_resilient.core.messages import sendable
from dask_resilient.core.remembered import MOST_BYTES, MOST_N, decides, dumps_entry, folder_of, loads_entry
from dask_resilient.errors import Damaged, Foreign, StoreError
from dask_resilient.store.calls import Calls
from dask_resilient.store.files import (
    check_directories,
    create_if_absent,
    make_directories,
    read_small,
    regular_size,
    write_files,
)
from dask_resilient.store.listing import names

DEVICES = "devices"

MOST_DEVICES = 10_000
MOST_ENTRIES = 100
"""Entries of one device that are looked at, the newest."""

_TRIES = 1_000  # each that fails is an entry that somebody else has made meanwhile
_ENTRY = re.compile(r"(0|[1-9][0-9]*)\.json")


def prepare(calls: Calls, root: str) -> None:
    """Make the directory where devices are remembered, and try it out; nothing is left behind in it.

    Raises
    ------
    OSError
        If nothing can be written there.
    """
    folder = f"{root}/{DEVICES}"
    make_directories(calls, folder)
    draft = f"{folder}/.{uuid.uuid4().hex}"
    try:
        write_files(calls, [(draft, [memoryview(b"tried")])])
    finally:
        with contextlib.suppress(OSError):
            calls.unlink(draft)


def append(calls: Calls, root: str, device: str, entry: Mapping[str, Any], *, make: bool = False) -> int:
    """Write an entry of a device, whole and durable, under the next number that is free; gives that number.

    Parameters
    ----------
    calls
        The system calls.
    root
        Of a store, or another directory.
    device
        Which the entry is about.
    entry
        What `dask_resilient.core.remembered.make_entry` gave.
    make
        Whether the root is made where it is missing. That of a store is not: a store that was removed stays removed.

    Raises
    ------
    StoreError
        If the entry would be ignored when it is read, or no number is free.
    Damaged
        If something below the root is no directory.
    OSError
        If it could not be written.
    """
    folder = folder_of(device)
    if make:
        make_directories(calls, f"{root}/{DEVICES}")
    _make_folder(calls, root, folder)
    n = 0
    for _ in range(_TRIES):
        n = max([n, *(number + 1 for number in _numbers(calls, root, folder) if number <= MOST_N)])
        try:
            if entry.get("device") != device:
                raise Foreign(f"the entry is about {entry.get('device')!r}")
            raw = dumps_entry(entry, n)
        except (Damaged, Foreign, TypeError, ValueError) as e:
            raise StoreError(errno.EINVAL, f"entry {n} of {device!r} is not written: {e}") from e
        try:
            create_if_absent(calls, f"{root}/{DEVICES}/{folder}", f"{n}.json", raw)
        except FileExistsError:
            n += 1  # a listing may lag behind
        else:
            return n
    raise StoreError(errno.EEXIST, f"no number is free for an entry of {device!r} in {root!r}")


def read_all(
    calls: Calls, root: str, *, seconds: float = math.inf
) -> tuple[dict[str, list[dict[str, Any]]], list[str]]:
    """Read what is remembered of every device.

    Of each device the newest entries are read, and none that is older than the newest one which decides: it settles
    what they come to. So what a start costs does not grow with what has happened.

    Parameters
    ----------
    calls
        The system calls.
    root
        Of a store, or another directory; where nothing was ever written, nothing is remembered.
    seconds
        How long to go on; what was not read by then is told.

    Returns
    -------
    tuple
        Entries by device, oldest first; and why others are ignored.

    Raises
    ------
    Damaged, OSError
        If nothing can be read.
    """
    found: dict[str, list[dict[str, Any]]] = {}
    reasons: list[str] = []
    until = time.monotonic() + seconds
    folders = [name for name in names(calls, root, DEVICES) if not name.startswith(".")]
    left = len(folders)
    for folder in folders[:MOST_DEVICES]:
        if time.monotonic() > until:
            break
        if entries := _read_device(calls, root, folder, reasons):
            found[entries[0]["device"]] = entries
        left -= 1
    if left:
        reasons.append(f"{left} of {len(folders)} devices were left out, as there are too many or it takes too long")
    return found, reasons


def _read_device(calls: Calls, root: str, folder: str, reasons: list[str]) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = []
    where = f"{DEVICES}/{folder}"
    try:
        numbers = _numbers(calls, root, folder)
    except (OSError, Damaged) as e:
        reasons.append(f"{where!r} cannot be read: {_in_short(e)}")
        return entries
    if beyond := [number for number in numbers if number > MOST_N]:
        reasons.append(f"{where!r} has {len(beyond)} files with numbers above {MOST_N}")
    for n in sorted(set(numbers).difference(beyond), reverse=True)[:MOST_ENTRIES]:
        try:
            entries.append(_read_entry(calls, f"{root}/{where}/{n}.json", folder, n))
        except FileNotFoundError:
            continue  # its writer could not make it durable, and has taken it back
        except (OSError, Damaged, Foreign) as e:
            reasons.append(f"{f'{where}/{n}.json'!r} is ignored: {_in_short(e)}")
            continue
        if decides(entries[-1]):
            break
    return entries[::-1]


def _read_entry(calls: Calls, path: str, folder: str, n: int) -> dict[str, Any]:
    size = regular_size(calls.lstat(path), path)
    if size > MOST_BYTES:  # before any of it is read
        raise Damaged(f"{path!r} has {size} bytes, more than any entry")
    return loads_entry(read_small(calls, path), folder, n)


def _in_short(error: Exception) -> str:
    """Give what an error says; that of text in no UTF-8 quotes all of it."""
    return sendable(str(error), 300)


def _numbers(calls: Calls, root: str, folder: str) -> list[int]:
    """Give the numbers of a device's entries; what has no name of an entry is left alone."""
    found = map(_ENTRY.fullmatch, names(calls, root, f"{DEVICES}/{folder}"))
    return [int(match[1]) for match in found if match]


def _make_folder(calls: Calls, root: str, folder: str) -> None:
    check_directories(calls, root, DEVICES)
    with contextlib.suppress(FileExistsError):
        calls.mkdir(f"{root}/{DEVICES}/{folder}")
    # Also where it is there already: its maker may not have waited for the disk yet.
    calls.fsync_directory(f"{root}/{DEVICES}")
