"""A record of what a store asks of the operating system, for `dask_resilient.testing.crashes`."""

from __future__ import annotations

import os
from collections.abc import Hashable
from typing import Any

from dask_resilient.store import Calls

Step = tuple[Any, ...]
"""Name of a call and what it acted on: paths relative to the base, and numbers of files."""

SYNCS = frozenset({"fdatasync", "fsync_directory"})
"""The steps that wait for the disk."""


class Recorder(Calls):
    """The system calls of a store, done and recorded; they wait for no disk, as the model knows what is durable.

    Parameters
    ----------
    base
        A directory that exists and stays; what is written lies below it.
    """

    def __init__(self, base: str | os.PathLike[str]) -> None:
        self.log: list[Step] = []
        self._base = os.fspath(base)
        self._files: dict[int, int] = {}
        self._count = 0

    def _path(self, path: str) -> str:
        return os.path.relpath(path, self._base)

    def acknowledge(self, what: Hashable) -> None:
        """Record that the store has promised something to its caller."""
        self.log.append(("acknowledge", what))

    def create(self, path: str) -> int:
        """Make a file, and give it the next number."""
        fd = super().create(path)
        self._files[fd] = self._count
        self.log.append(("create", self._path(path), self._count))
        self._count += 1
        return fd

    def close(self, fd: int) -> None:
        """Close a descriptor, which makes nothing durable."""
        super().close(fd)
        self._files.pop(fd, None)

    def write(self, fd: int, buffers: Any) -> int:
        """Record the bytes that were taken."""
        count = super().write(fd, buffers)
        self.log.append(("write", self._files[fd], b"".join(buffers)[:count]))
        return count

    def fdatasync(self, fd: int) -> None:
        """Record that the content of a file is durable."""
        self.log.append(("fdatasync", self._files[fd]))

    def fsync_directory(self, path: str) -> None:
        """Record that the names in a directory are durable; those above the base always are."""
        self.names(path)
        if not self._path(path).startswith(".."):
            self.log.append(("fsync_directory", self._path(path)))

    def link(self, source: str, target: str) -> None:
        """Record a second name."""
        super().link(source, target)
        self.log.append(("link", self._path(source), self._path(target)))

    def rename(self, source: str, target: str) -> None:
        """Record another name."""
        super().rename(source, target)
        self.log.append(("rename", self._path(source), self._path(target)))

    def unlink(self, path: str) -> None:
        """Record that a name was taken away."""
        super().unlink(path)
        self.log.append(("unlink", self._path(path)))

    def mkdir(self, path: str) -> None:
        """Record a new directory."""
        super().mkdir(path)
        self.log.append(("mkdir", self._path(path)))

    def rmdir(self, path: str) -> None:
        """Record that a directory was removed."""
        super().rmdir(path)
        self.log.append(("rmdir", self._path(path)))
