"""What a test may leave behind: log messages, threads, processes, and traces of the plugin on workers."""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
from typing import Any

import psutil

from dask_resilient.internals import nvml
from dask_resilient.plugin import NAME


class Log(logging.Handler):
    """Keeps the messages of Dask and of the package in this process."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        error = f" :: {record.exc_info[1]!r}" if record.exc_info and record.exc_info[1] is not None else ""
        self.messages.append(record.getMessage() + error)

    def count(self, text: str) -> int:
        """Count the messages that hold a text."""
        return sum(text in message for message in self.messages)


def threads() -> list[str]:
    """Give the names of the package's threads in this process."""
    return [t.name for t in threading.enumerate() if t.name.startswith("dask-resilient")]


def children() -> set[int]:
    """Give the processes below this one; Python's own resource tracker stays for good."""
    found = set()
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if process.status() != psutil.STATUS_ZOMBIE and "resource_tracker" not in " ".join(process.cmdline()):
                found.add(process.pid)
    return found


def leftovers(dask_worker: Any) -> list[str]:
    """Say what a worker still has of tasks and of the plugin."""
    left = [repr(key) for key in dask_worker.state.tasks]
    left += [t.name for t in threading.enumerate() if t.name.startswith("dask-resilient")]
    if NAME in dask_worker.plugins:
        left.append("the worker plugin")
    if hasattr(dask_worker.stream_handlers.get(NAME), "__self__"):
        left.append("the stream handler")
    if "Unlink" in getattr(dask_worker.stream_handlers["compute-task"], "__qualname__", ""):
        left.append("the wrapped handler")
    pinned = sys.modules.get("dask_resilient.partitions.pinned")
    if pinned is not None and pinned.POOL.pinned:
        left.append(f"{pinned.POOL.pinned} bytes of pinned memory")
    if nvml._stand_in:
        left.append("the stand-in for NVML")
    return left
