"""Putting receipts and other small files together; pure (no I/O)."""

from __future__ import annotations

import errno
import json
from collections.abc import Mapping
from typing import Any

from dask_resilient.core.manifest import Place, Receipt, loads_receipt
from dask_resilient.errors import ResilienceError, StoreError
from dask_resilient.protocols import Staged
from dask_resilient.store import array


def make_receipt(place: Place, staged: Staged, metadata: str, facts: Mapping[str, Any], seconds: float) -> Receipt:
    """Put the receipt together, as a reader will find it.

    Raises
    ------
    StoreError
        If schema or facts hold what JSON does not keep, so that the receipt would never be read again.
    """
    chunks = zip(staged.chunks, staged.crc32c, strict=True)
    try:
        receipt = Receipt(
            place=place,
            codec=staged.codec,
            schema=dict(staged.schema),
            nbytes=staged.nbytes,
            chunks=tuple((sum(b.nbytes for b in chunk) + array.TRAILER, crc) for chunk, crc in chunks),
            metadata=metadata,
            **{**facts, "seconds": {"write": seconds, **facts.get("seconds", {})}},
        )
        return loads_receipt(receipt.dumps())
    except (TypeError, ValueError, ResilienceError) as e:
        raise StoreError(errno.EINVAL, f"{place.receipt!r} cannot be written as JSON and read again: {e}") from e


def dumps(body: Mapping[str, Any]) -> bytes:
    """Give the bytes of a small JSON file; raises `StoreError` for what JSON does not keep."""
    try:
        return json.dumps(body, indent=1).encode()
    except (TypeError, ValueError) as e:
        raise StoreError(errno.EINVAL, f"{body!r} cannot be written as JSON: {e}") from e
