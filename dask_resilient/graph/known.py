"""Milestones that were marked in this process, so that what stands on their persisted partitions can be told as well.

A persisted collection holds futures, which say nothing of how they were made but for their keys. The key of a milestone
is made of its fingerprint, so that one says it all.
"""

from __future__ import annotations

from typing import Any

from dask_resilient.core.fingerprints import Fingerprint

MOST = 10_000
"""Milestones that are remembered at most, the newest."""

_fingerprints: dict[str, Fingerprint] = {}


def remember(collection: str, fingerprint: Fingerprint) -> None:
    """Take in what the keys of a milestone stand for."""
    _fingerprints.pop(collection, None)
    _fingerprints[collection] = fingerprint
    while len(_fingerprints) > MOST:
        del _fingerprints[next(iter(_fingerprints))]


def known(key: Any) -> Fingerprint | None:
    """Give the fingerprint of the milestone that a key is of, None if it is of none."""
    name = key[0] if isinstance(key, tuple) and key else key
    return _fingerprints.get(name) if isinstance(name, str) else None
