"""Plain values as compressed JSON of a bounded size: what is said of a milestone on its way from the client."""

from __future__ import annotations

import json
import zlib
from typing import Any

from dask_resilient.errors import Damaged


def pack(body: Any) -> bytes:
    """Give the compressed form of what JSON keeps."""
    return zlib.compress(json.dumps(body).encode())


def unpack(raw: bytes, most: int, what: str) -> Any:
    """Read what `pack` gave.

    Raises
    ------
    Damaged
        If it is something else, or has more than `most` bytes; the message begins with `what` it is.
    """
    try:
        unpacker = zlib.decompressobj()
        text = unpacker.decompress(raw, most)
        if not unpacker.eof:
            raise Damaged(f"{what} is cut off, or larger than any")
        return json.loads(text)
    except (ValueError, RecursionError, zlib.error) as e:
        raise Damaged(f"{what} cannot be read: {e!r}") from e
