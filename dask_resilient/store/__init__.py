"""Partitions on durable storage: stage is elsewhere, here they are written, made durable, committed, read and verified.

=========== ================================================================================
`opening`   from what the user typed to an open store; whether this place can keep anything
`posix`     the store on a file system: write, read, revoke, journal
`archive`   a store that is only read; milestones and what of them is missing
`listing`   what lies in a store, by names
`reading`   receipt, then chunks, every byte verified, and how a load ends
`guarded`   reading that may hang, and the second read before a copy is revoked
`array`     one partition as one valid Zarr v3 array: metadata, names, buffers
`files`     durable steps: write files, create one if absent, remove an attempt
`calls`     the system calls beneath all of that, as one seam
=========== ================================================================================

Zarr itself is not needed to write or to read; any Zarr v3 reader opens what lies here.
"""

from __future__ import annotations

from dask_resilient.store.archive import Archive, open_archive
from dask_resilient.store.calls import Calls
from dask_resilient.store.opening import open_store, resolve, resolve_directory
from dask_resilient.store.posix import PosixStore
from dask_resilient.store.reading import read_at

__all__ = ["Archive", "Calls", "PosixStore", "open_archive", "open_store", "read_at", "resolve", "resolve_directory"]
