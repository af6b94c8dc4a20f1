"""Many Python strings as one run of UTF-8 and where each ends, lone surrogates included, which Arrow refuses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dask_resilient.errors import Foreign
from dask_resilient.partitions.buffers import Packer, Unpacker

__all__ = ["pack_texts", "unpack_texts"]


def pack_texts(texts: Sequence[str], out: Packer) -> dict[str, Any]:
    """Append strings of exactly the type `str`, and say where they lie."""
    whole = "".join(texts)
    if whole.isascii():  # a character is a byte, and one call encodes them all
        lengths, raw = map(len, texts), whole.encode()
    else:
        coded = [text.encode("utf-8", "surrogatepass") for text in texts]
        lengths, raw = map(len, coded), b"".join(coded)
    ends = np.cumsum(np.fromiter(lengths, np.dtype("<i8"), len(texts)), dtype="<i8")
    return {"text": out.add(memoryview(raw)), "ends": out.add_array(ends)}


def unpack_texts(spec: Mapping[str, Any], data: Unpacker) -> list[str]:
    """Give the strings back.

    Raises
    ------
    Foreign
        If their ends do not cut the text into strings one after the other.
    """
    raw = data.take(spec["text"]).tobytes()
    ends = data.take_array(spec["ends"], np.dtype("<i8")).tolist()
    starts = [0, *ends][: len(ends)]
    if (ends or [0])[-1] != len(raw) or any(start > end for start, end in zip(starts, ends, strict=True)):
        raise Foreign(f"the ends of {len(ends)} strings do not fit their text of {len(raw)} bytes")
    if raw.isascii():
        text = raw.decode()
        return [text[start:end] for start, end in zip(starts, ends, strict=True)]
    return [raw[start:end].decode("utf-8", "surrogatepass") for start, end in zip(starts, ends, strict=True)]
