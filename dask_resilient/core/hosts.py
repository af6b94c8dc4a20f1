"""The rules about the host: what runs out there slows a worker or ends it, and is no fault of a device."""

from __future__ import annotations

from collections.abc import Iterator

from dask_resilient.core.faults import Class
from dask_resilient.core.history import Finding, History
from dask_resilient.core.readings import Name


def host(h: History) -> Iterator[Finding]:
    """Judge by whether memory, disk or files of the host run out; never worse than degraded."""
    memory, disk, files = (h.number(name) for name in (Name.HOST_MEMORY, Name.HOST_DISK, Name.HOST_FILES))
    if memory is not None and memory < h.limits.least_memory:
        yield Finding(Class.DEGRADE, f"{memory:.0%} of the host's memory is available", "memory")
    if disk is not None and disk < h.limits.least_disk:
        yield Finding(Class.DEGRADE, f"{disk:.0%} of the disk of the worker's local directory is free", "disk")
    if files is not None and files > h.limits.most_files:
        yield Finding(Class.DEGRADE, f"the process has {files:.0%} of the files open that it may", "files")
