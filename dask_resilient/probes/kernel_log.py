"""The kernel log: XIDs with the process that they name. Runs in the probe process only."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from dask_resilient.core.kernel_log import parse
from dask_resilient.core.readings import Name

NAME = "kernel-log"

FIRST_NAMESPACE = 0xEFFFFFFC
"""Inode of the first pid namespace of a host (include/linux/proc_ns.h, PROC_PID_INIT_INO): the log counts there."""

MOST = 1 << 20
"""Bytes that are read at once at most."""

Row = tuple[str, object, str, bool | None]
"""Name, value (None = unknown), the line or why it is unknown, and whether it names our process (None = not known)."""


class KernelLog:
    """Reads new lines of the log, without waiting for any.

    Parameters
    ----------
    path
        ``/dev/kmsg``, or a file that grows.
    bus
        Address of the device, see `core.kernel_log.bus_id`.
    pid
        Of the process whose device it is.
    namespace
        Inode of the pid namespace that `pid` counts in.
    """

    def __init__(self, path: str, bus: str, pid: int, namespace: int | None = None) -> None:
        self.path, self._bus, self._pid = path, bus, pid
        self._first = (namespace or _namespace()) == FIRST_NAMESPACE
        self._rest = b""
        self._fd, self._reason = -1, ""
        self._open()

    @property
    def reason(self) -> str:
        """Say why it cannot be read; empty if it can."""
        return self._reason

    def _open(self) -> None:
        try:
            self._fd = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.lseek(self._fd, 0, os.SEEK_END)  # what was there before is history, and dated otherwise
        except OSError as e:
            self._reason = f"{self.path}: {e.strerror}"
            self.close()

    def read(self) -> Iterator[Row]:
        """Give the XIDs of our device since the last time."""
        for line in self._lines():
            found = parse(line)
            if found is not None and found.bus == self._bus:
                own = found.pid == self._pid if found.pid is not None and self._first else None
                yield Name.XID, found.xid, found.text, own

    def state(self) -> Row:
        """Give whether it can be read."""
        if self._reason:
            return NAME, None, self._reason, None
        return NAME, True, "" if self._first else "in a pid namespace: whose process an XID names is unknown", None

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _lines(self) -> Iterator[str]:
        read = 0
        while self._fd >= 0 and read < MOST:
            try:
                data = os.read(self._fd, 8192)
            except BrokenPipeError:
                continue  # lines were overwritten before they were read: the next ones are there
            except BlockingIOError:
                return
            except OSError as e:
                self._reason = f"{self.path}: {e.strerror}"
                self.close()
                return
            if not data:
                return
            read += len(data)
            *lines, self._rest = (self._rest + data).split(b"\n")
            self._rest = self._rest[-8192:]
            yield from (line.decode(errors="replace") for line in lines)


def _namespace() -> int:
    try:
        return Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        return 0
