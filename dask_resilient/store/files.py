"""Durable steps on files: write one, create one if absent, read a small one, remove an attempt.

They raise plain `OSError`; what that means is decided by the caller.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import uuid
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path

from dask_resilient.errors import Damaged
from dask_resilient.store.calls import Calls

BLOCK = 16 << 20
"""Bytes per system call: large, as next to a busy Python thread each call may wait for the interpreter lock (5 ms), and
far below the 2147479552 bytes that one call can move."""
_BUFFERS_PER_CALL = 1024  # IOV_MAX of Linux
_TOGETHER = 4
MAX_JSON = 16 << 20
"""Largest JSON file that is read or written."""


def write_files(calls: Calls, files: Iterable[tuple[str, Iterable[memoryview]]]) -> None:
    """Make new files of some buffers and wait until their content is durable; their names are not, yet.

    A few are waited for together: the commits of a journaling file system serve several files, and what was asked to be
    written behind goes on meanwhile (2.6 to 2.0 ms for one small partition on ext4).
    """
    waiting: deque[int] = deque()
    try:
        for path, buffers in files:
            waiting.append(calls.create(path))
            _write_behind(calls, waiting[-1], buffers)
            if len(waiting) == _TOGETHER:
                _finish(calls, waiting)
        while waiting:
            _finish(calls, waiting)
    finally:
        for fd in waiting:
            calls.close(fd)


def _write_behind(calls: Calls, fd: int, buffers: Iterable[memoryview]) -> None:
    offset = 0
    for block in _blocks(buffers):
        size = sum(map(len, block))
        _write_whole(calls, fd, block)
        calls.flush_behind(fd, offset, size)
        offset += size


def _finish(calls: Calls, waiting: deque[int]) -> None:
    calls.fdatasync(waiting[0])
    calls.close(waiting.popleft())


def _blocks(buffers: Iterable[memoryview]) -> Iterator[list[memoryview]]:
    """Gather small buffers and cut large ones, so that each system call moves one block."""
    block: list[memoryview] = []
    room = BLOCK
    for buffer in buffers:
        rest = buffer
        while len(rest):
            block.append(rest[:room])
            rest = rest[room:]
            room -= len(block[-1])
            if not room or len(block) == _BUFFERS_PER_CALL:
                yield block
                block, room = [], BLOCK
    if block:
        yield block


def _write_whole(calls: Calls, fd: int, block: list[memoryview]) -> None:
    while block:
        written = calls.write(fd, block)
        if not written:
            raise OSError(errno.EIO, "the file system takes no more bytes and gives no reason")
        while block and written >= len(block[0]):
            written -= len(block.pop(0))
        if written:
            block[0] = block[0][written:]


def create_if_absent(calls: Calls, directory: str, name: str, raw: bytes) -> None:
    """Create a file in one step, whole and durable, or not at all.

    Raises
    ------
    FileExistsError
        If the name is taken.
    OSError
        If it failed. The name is taken back as far as possible, for a name that a crash may lose is no proof.
    """
    target = f"{directory}/{name}"
    draft = f"{directory}/.{name}.{uuid.uuid4().hex}"
    try:
        write_files(calls, [(draft, [memoryview(raw)])])
        _link(calls, draft, target)
    finally:
        with contextlib.suppress(OSError):  # a draft that stays behind hinders nobody
            calls.unlink(draft)
    try:
        calls.fsync_directory(directory)
    except BaseException:
        with contextlib.suppress(OSError):
            calls.unlink(target)
            calls.fsync_directory(directory)
        raise


def _link(calls: Calls, draft: str, target: str) -> None:
    try:
        calls.link(draft, target)
    except OSError:
        # NFS may lose the reply of a link that was made, and then its repetition fails: the count of names tells.
        if calls.lstat(draft).st_nlink != 2:  # noqa: PLR2004 - two names: the draft and the target
            raise


def read_small(calls: Calls, path: str) -> bytes:
    """Read a whole file of at most `MAX_JSON` bytes.

    Raises
    ------
    Damaged
        If it is no regular file, or larger, or cut short under our hands.
    OSError
        If it cannot be read.
    """
    fd = calls.open(path)
    try:
        size = regular_size(calls.fstat(fd), path)
        if size > MAX_JSON:
            raise Damaged(f"{path!r} has {size} bytes, more than any file of its kind")
        raw = bytearray(size)
        fill(calls, fd, [memoryview(raw)], path)
        return bytes(raw)
    finally:
        calls.close(fd)


def regular_size(found: os.stat_result, path: str) -> int:
    """Give the size of a regular file.

    Raises
    ------
    Damaged
        If it is something else.
    """
    if not stat.S_ISREG(found.st_mode):
        raise Damaged(f"{path!r} is no regular file")
    return found.st_size


def fill(calls: Calls, fd: int, buffers: list[memoryview], path: str) -> None:
    """Read on until every buffer is full.

    Raises
    ------
    Damaged
        If the file ends before that.
    """
    rest = [buffer for buffer in buffers if len(buffer)]
    while rest:
        count = calls.read(fd, rest)
        if not count:
            raise Damaged(f"{path!r} ends before its size")
        while rest and count >= len(rest[0]):
            count -= len(rest.pop(0))
        if count:
            rest[0] = rest[0][count:]


def check_directories(calls: Calls, root: str, path: str) -> None:
    """Walk from the root down to a directory and refuse a symbolic link on the way, which may lead out of the store.

    Raises
    ------
    Damaged
        If one of them is something else than a directory.
    OSError
        If one of them is absent, or cannot be looked at.
    """
    for part in path.split("/"):
        root = f"{root}/{part}"
        if not stat.S_ISDIR(calls.lstat(root).st_mode):
            raise Damaged(f"{root!r} is no directory (nothing below a store may be a symbolic link)")


def make_directories(calls: Calls, directory: str) -> None:
    """Make a directory, and those above it, where they are missing; each durable before the next."""
    path = Path(directory)
    missing = [each for each in (path, *path.parents) if not each.exists()]
    with contextlib.suppress(OSError):
        # Who made the last directory that is there may not have waited for the disk yet.
        calls.fsync_directory(str([path, *path.parents][len(missing)].parent))
    for each in reversed(missing):
        with contextlib.suppress(FileExistsError):
            calls.mkdir(str(each))
        calls.fsync_directory(str(each.parent))


def replace_file(calls: Calls, directory: str, name: str, raw: bytes) -> None:
    """Put a file in place of what has that name, whole and durable, or leave what is there."""
    draft = f"{directory}/.{name}.{uuid.uuid4().hex}"
    try:
        write_files(calls, [(draft, [memoryview(raw)])])
        calls.rename(draft, f"{directory}/{name}")
    except BaseException:
        with contextlib.suppress(OSError):
            calls.unlink(draft)
        raise
    calls.fsync_directory(directory)


def exists(calls: Calls, path: str) -> bool:
    """Tell whether a name is taken.

    Raises
    ------
    OSError
        If that cannot be told: anything but absence.
    """
    try:
        calls.lstat(path)
    except FileNotFoundError:
        return False
    return True


def remove_attempt(calls: Calls, directory: str) -> None:
    """Remove a flat directory and what is in it, as far as that is possible; never what a symbolic link leads to."""
    with contextlib.suppress(OSError):
        if not stat.S_ISDIR(calls.lstat(directory).st_mode):
            calls.unlink(directory)
            return
        for name in calls.names(directory):
            with contextlib.suppress(OSError):
                calls.unlink(f"{directory}/{name}")
        calls.rmdir(directory)
