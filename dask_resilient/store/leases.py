"""Leases: which runs live, and which milestones they use, by the store's own clock.

The clock of a store is what it writes into the mtime of a new file: hosts disagree, a file server agrees with itself.
"""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Mapping
from typing import Any

from dask_resilient.core.garbage import EXPIRY, Lease
from dask_resilient.store.calls import Calls
from dask_resilient.store.files import check_directories, replace_file
from dask_resilient.store.listing import directories, names, read_json

LEASE = "lease.json"
COMPLETE = "complete.json"


def renew(calls: Calls, root: str, run: str, body: Mapping[str, Any]) -> None:
    """Write the lease of a run anew; its ``run.json`` must have been written.

    Raises
    ------
    Damaged
        If the run's directory is a symbolic link.
    OSError
        If it could not be written.
    """
    check_directories(calls, root, f"runs/{run}")
    replace_file(calls, f"{root}/runs/{run}", LEASE, json.dumps(dict(body), indent=1).encode())


def clock(calls: Calls, root: str) -> float:
    """Give the time by the store's own clock, UNIX seconds: the mtime of a file that is made for it.

    Raises
    ------
    OSError
        If nothing can be written there.
    """
    path = f"{root}/probe-{uuid.uuid4().hex}"
    fd = calls.create(path)
    try:
        calls.write(fd, [memoryview(b"now")])
        calls.fdatasync(fd)  # until then NFS gives this host's time
        return calls.fstat(fd).st_mtime
    finally:
        calls.close(fd)
        with contextlib.suppress(OSError):
            calls.unlink(path)


def leases(calls: Calls, root: str, now: float) -> dict[str, Lease]:
    """Give every run of a store, by its id."""
    return {run: _lease(calls, root, run, now) for run in directories(calls, root, "runs")}


def _lease(calls: Calls, root: str, run: str, now: float) -> Lease:
    found = names(calls, root, f"runs/{run}")
    if LEASE not in found:
        return Lease(run, live=False, complete=COMPLETE in found)
    path = f"runs/{run}/{LEASE}"
    try:
        age = now - calls.lstat(f"{root}/{path}").st_mtime
    except OSError:
        age = 0.0  # renewed this moment, or cannot be told: it lives
    body = read_json(calls, root, path)
    milestones = body.get("milestones") if isinstance(body, dict) else None
    if not isinstance(milestones, list):
        return Lease(run, live=age <= EXPIRY, milestones=None, age=age)  # cannot be read: it may use anything
    live = age <= EXPIRY and not body.get("ended")
    keep = body.get("keep")
    return Lease(
        run,
        live=live,
        complete=COMPLETE in found,
        milestones=frozenset(map(str, milestones)),
        keep=frozenset(map(str, keep)) if isinstance(keep, list) else frozenset(),
        age=age,
    )
