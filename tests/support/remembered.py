"""Entries about devices, put somewhere and found again."""

from __future__ import annotations

from pathlib import Path

from dask_resilient.core.remembered import QUARANTINED, folder_of, make_entry
from dask_resilient.store.devices import append, read_all
from tests.support.store_life import Impatient

GPU = "GPU-5f2b6a3e-1d0c-4b7a-9e8f-00112233aabb"
MIG = "MIG-GPU-5f2b/1/2"
CALLS = Impatient()


def entry(event=QUARANTINED, device=GPU, **facts):
    """Make an entry."""
    given = {"time": 1.5e9, "phase": "quarantined", "rule": "xid.79", "evidence": ["XID 79"], "host": "node7"}
    return make_entry(event, device, run="r", **{**given, **facts})


def put(root, *events, device=GPU, calls=CALLS):
    """Append entries, and give their numbers."""
    return [append(calls, str(root), device, entry(event, device), make=True) for event in events]


def numbers(root, device=GPU):
    """Give the numbers of the entries that are read of one device; there must be nothing to complain of."""
    found, reasons = read_all(CALLS, str(root))
    assert reasons == []
    return [each["n"] for each in found.get(device, [])]


def where(root, n=0, device=GPU):
    """Give the file of an entry."""
    return Path(root, "devices", folder_of(device), f"{n}.json")
