"""The system calls of the store, one method each, so that a wrapper can record, fail or stop any of them."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from typing import Any

_WRITE = 2  # SYNC_FILE_RANGE_WRITE: start write-back, wait for nothing


def _sync_file_range() -> Any:
    try:
        call = ctypes.CDLL(None).sync_file_range
    except (OSError, AttributeError):  # not Linux, or a C library without it
        return None
    call.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    return call


class Calls:
    """What the store asks of the operating system.

    Everything that touches a file goes through here; descriptors are closed on exec. `dask_resilient.testing.faults`
    wraps an instance, so nothing in the store needs a switch for tests.
    """

    _flush = staticmethod(_sync_file_range() or (lambda *_: 0))

    def create(self, path: str) -> int:
        """Make a file that must not exist, and open it for writing."""
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)

    def open(self, path: str) -> int:
        """Open for reading, never through a symbolic link, never waiting for the other end of a pipe."""
        return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)

    def close(self, fd: int) -> None:
        """Close a descriptor."""
        os.close(fd)

    def write(self, fd: int, buffers: Sequence[memoryview]) -> int:
        """Append some of the buffers' bytes, and say how many."""
        return os.writev(fd, buffers)

    def flush_behind(self, fd: int, offset: int, nbytes: int) -> None:
        """Ask that a range be written back soon: a hint, so how it ends does not matter."""
        self._flush(fd, offset, nbytes, _WRITE)

    def fdatasync(self, fd: int) -> None:
        """Wait until content and size of a file are durable."""
        os.fdatasync(fd)

    def fsync_directory(self, path: str) -> None:
        """Wait until the names in a directory are durable."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def link(self, source: str, target: str) -> None:
        """Give a file a second name, which must not exist."""
        os.link(source, target)

    def rename(self, source: str, target: str) -> None:
        """Give a file another name, in place of what has that name."""
        os.replace(source, target)

    def unlink(self, path: str) -> None:
        """Take a name away."""
        os.unlink(path)

    def mkdir(self, path: str) -> None:
        """Make one directory."""
        os.mkdir(path)

    def rmdir(self, path: str) -> None:
        """Remove one empty directory."""
        os.rmdir(path)

    def names(self, path: str) -> list[str]:
        """List a directory."""
        return os.listdir(path)

    def lstat(self, path: str) -> os.stat_result:
        """Describe what lies under a name, a symbolic link itself included."""
        return os.lstat(path)

    def fstat(self, fd: int) -> os.stat_result:
        """Describe an open file."""
        return os.fstat(fd)

    def read(self, fd: int, buffers: Sequence[memoryview]) -> int:
        """Fill some of the buffers, and say how many bytes."""
        return os.readv(fd, buffers)
