"""The host: memory, disk, open files. Runs in the probe process only, and looks at the process that started it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from dask_resilient.core.readings import Name

Row = tuple[str, object, str]
"""Name, value (None = unknown), and why it is unknown."""

DISK_SECONDS = 2.0
"""Longest that a file system may take to say how full it is; a network's may hang."""

CGROUP = Path("/sys/fs/cgroup")


def rows(pid: int, disk: str | None, root: Path = Path("/")) -> Iterator[Row]:
    """Give all readings.

    Parameters
    ----------
    pid
        Of the process that is looked at.
    disk
        A directory whose file system is looked at; None looks at none.
    root
        Above ``proc`` and ``sys``; tests put their own there.
    """
    yield from _row(Name.HOST_MEMORY, lambda: _memory(root))
    yield from _row(Name.HOST_FILES, lambda: _files(root / "proc" / str(pid)))
    if disk is not None:
        yield from _row(Name.HOST_DISK, lambda: _disk(disk))


def _row(name: str, ask: Callable[[], float]) -> Iterator[Row]:
    try:
        # Two digits: a share that trembles is no news.
        yield name, round(ask(), 2), ""
    except (OSError, ValueError, LookupError, ZeroDivisionError) as e:
        yield name, None, str(e) or repr(e)


def _memory(root: Path) -> float:
    """Give the share of memory that is available: of the host's, or of what its control group may take."""
    lines = (root / "proc/meminfo").read_text().splitlines()
    kib = {line.split(":")[0]: int(line.split()[1]) for line in lines if len(line.split()) > 1}
    share = kib["MemAvailable"] / kib["MemTotal"]
    group = root / "sys/fs/cgroup"
    try:
        limit, used = (int((group / name).read_text()) for name in ("memory.max", "memory.current"))
        stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):  # no limit ("max"), or another kind of control group
        return share
    # The kernel takes file pages back before it lets the group run out.
    return min(share, 1 - (used - int(stat.get("inactive_file", 0))) / limit)


def _files(process: Path) -> float:
    """Give the share of the files that the process may open that it has open."""
    used = sum(1 for _ in (process / "fd").iterdir())
    line = next(line for line in (process / "limits").read_text().splitlines() if line.startswith("Max open files"))
    soft = line.split()[3]
    return 0.0 if soft == "unlimited" else used / int(soft)


def _disk(path: str) -> float:
    """Give the share of a file system that is free, in a thread: the one that asks NVML must not hang here."""
    found: list[float] = []
    failed: list[OSError] = []

    def ask() -> None:
        try:
            usage = os.statvfs(path)
            found.append(usage.f_bavail / usage.f_blocks if usage.f_blocks else 1.0)
        except OSError as e:
            failed.append(e)

    thread = _ASKING.get(path)
    if thread is None or not thread.is_alive():
        thread = _ASKING[path] = threading.Thread(target=ask, daemon=True)
        thread.start()
        thread.join(DISK_SECONDS)  # once: events of the device are waited for in this thread too
    if failed:
        raise failed[0]
    if not found:
        raise OSError(f"{path}: its file system did not answer within {DISK_SECONDS:g} s")
    return found[0]


_ASKING: dict[str, threading.Thread] = {}
"""By path, what is under way: of a file system that hangs one thread is enough."""
