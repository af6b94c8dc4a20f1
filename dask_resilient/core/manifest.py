"""What a receipt says, and the names under which the parts of a store lie.

A partition exists when its receipt exists; nothing else proves it. A receipt is a JSON object that lists the size and
the crc32c of every chunk by position and carries a SHA-256 over itself, the array's metadata included, so that no edit
of either goes unnoticed. Reading and writing them is in :mod:`dask_resilient.store`.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from dask_resilient.errors import Damaged, Foreign

FORMAT = 1
"""Version of the layout and of the receipts; a reader refuses what it does not know."""

WHICHEVER = "whichever"
"""In place of an attempt that is not known before its receipt is read: a listing gives the names of receipts only."""

_SAFE = re.compile(r"[0-9a-z][0-9a-z._-]{0,127}")


def digest(*parts: str) -> str:
    """Give the SHA-256 of some strings, which cannot run into one another, as 64 hex digits."""
    h = hashlib.sha256()
    for part in parts:
        raw = part.encode("utf-8", "surrogatepass")
        h.update(len(raw).to_bytes(8, "little"))
        h.update(raw)
    return h.hexdigest()


def split_key(key: object) -> tuple[str, str]:
    """Split a Dask key into the name of its collection and the index of its partition.

    Returns
    -------
    tuple of str
        Name, and an index that is safe in a file name: ``"3"``, ``"0.2"``, or a digest where the rest of the key is not
        made of integers. A key without a rest has index ``"0"``.
    """
    if isinstance(key, tuple) and len(key) > 1:
        rest = key[1:]
        if all(isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in rest):
            return str(key[0]), ".".join(map(str, rest))
        return str(key[0]), "x" + digest(*map(repr, rest))[:32]
    return str(key), "0"


@dataclass(frozen=True, slots=True)
class Place:
    """Where one attempt of one partition stands in the store."""

    milestone: str
    index: str
    generation: int
    attempt: str

    def __post_init__(self) -> None:
        """Refuse what is no plain file name, so that no place can point out of the store.

        Raises
        ------
        Foreign
            If a part holds a path separator, a leading dot, or anything but ``0-9 a-z . _ -``.
        """
        parts: tuple[object, ...] = (self.milestone, self.index, self.attempt)
        for part in parts:
            if not isinstance(part, str) or not _SAFE.fullmatch(part) or ".." in part:
                raise Foreign(f"{part!r} is no name of a stored partition")
        generation: object = self.generation
        if not isinstance(generation, int) or generation < 0:
            raise Foreign(f"{self.generation!r} is no generation of a receipt")

    @property
    def data(self) -> str:
        """Path of the attempt, relative to the root."""
        return f"data/{self.milestone}/{self.index}-{self.attempt}"

    @property
    def receipt(self) -> str:
        """Path of the receipt, relative to the root."""
        return f"commit/{self.milestone}/{self.index}.{self.generation}.json"

    @property
    def tombstone(self) -> str:
        """Path of the tombstone, relative to the root."""
        return f"revoked/{self.milestone}/{self.index}.{self.generation}.json"

    def to_dict(self) -> dict[str, Any]:
        """Give plain types for the wire."""
        return asdict(self)

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Place:
        """Read what `to_dict` gave."""
        return cls(**{name: raw[name] for name in ("milestone", "index", "generation", "attempt")})


@dataclass(frozen=True, slots=True)
class Receipt:
    """The statement that makes one stored partition exist."""

    place: Place
    key: str
    """Digest of the Dask key, compared for receipts of the same run."""
    run: str
    codec: str
    schema: Mapping[str, Any]
    """What the codec needs beside the bytes, JSON types only."""
    nbytes: int
    """Bytes of the value's buffers, without padding."""
    chunks: tuple[tuple[int, int], ...]
    """Size of the stored file in bytes and crc32c of the chunk, by position."""
    metadata: str
    """SHA-256 of the bytes of the array's ``zarr.json``."""
    producer: Mapping[str, Any] = field(default_factory=dict)
    """Device, host and worker that made it, and when (UNIX seconds)."""
    parents: tuple[str, ...] = ()
    temporary: bool = False
    """For its run only, no part of a milestone: once the run has ended it is garbage."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """What it cost to make and to write, in seconds."""

    def dumps(self) -> bytes:
        """Give the bytes of the file, with the SHA-256 over everything else in it."""
        return seal(asdict(self))

    @property
    def stored_nbytes(self) -> int:
        """Bytes on disk, without metadata."""
        return sum(size for size, _ in self.chunks)


def seal(body: Mapping[str, Any]) -> bytes:
    """Give the bytes of a JSON file: what it says, the format, and the SHA-256 over both.

    Raises
    ------
    TypeError, ValueError
        If `body` holds what JSON does not keep.
    """
    whole = {"format": FORMAT, **body}
    return json.dumps({**whole, "sha256": _sha256(whole)}, indent=1).encode()


def unseal(raw: bytes, what: str) -> dict[str, Any]:
    """Read what `seal` gave, and check that nothing in it was changed or cut off.

    Raises
    ------
    Damaged
        If it is no JSON object, or its SHA-256 does not fit.
    Foreign
        If it is sound, but of a format that this version does not know.
    """
    try:
        body: Any = json.loads(raw)
        if not isinstance(body, dict) or "sha256" not in body:
            raise Damaged(f"{what} cannot be read: it has no sha256 of itself")
        found = body.pop("sha256")
        if found != _sha256(body):
            raise Damaged(f"{what} differs from its own SHA-256")
        if body.pop("format") != FORMAT:
            raise Foreign(f"{what} has a format that this version of dask-resilient does not know")
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as e:
        raise Damaged(f"{what} cannot be read: {e!r:.200}") from e  # of a text in no UTF-8 it quotes all
    return body


def _sha256(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def loads_receipt(raw: bytes) -> Receipt:
    """Read a receipt and check that nothing in it was changed or cut off.

    Raises
    ------
    Damaged
        If it is no JSON, or its SHA-256 does not fit.
    Foreign
        If it is sound, but of a format that this version does not know.
    """
    body = unseal(raw, "the receipt")
    try:
        body["place"] = Place.from_dict(body["place"])
        body["chunks"] = tuple((size, crc) for size, crc in body["chunks"])
        body["parents"] = tuple(body["parents"])
        receipt = Receipt(**body)
    except (ValueError, LookupError, TypeError, AttributeError) as e:
        raise Damaged(f"the receipt cannot be read: {e!r}") from e
    if wrong := [name for name, kind in _KINDS.items() if type(getattr(receipt, name)) is not kind]:
        raise Damaged(f"the receipt cannot be read: {wrong[0]} is {getattr(receipt, wrong[0])!r:.80}")
    numbers = [(receipt.nbytes, 0), *receipt.chunks]
    if not all(type(n) is type(crc) is int and 0 <= n < 1 << 63 and 0 <= crc < 1 << 32 for n, crc in numbers):
        raise Damaged("the receipt cannot be read: it has sizes or checksums that no file has")
    return receipt


_KINDS: Mapping[str, type] = {
    **dict.fromkeys(("key", "run", "codec", "metadata"), str),
    **dict.fromkeys(("schema", "producer", "seconds"), dict),
    "nbytes": int,
    "temporary": bool,
}
"""Types of what a receipt says, which a hostile hand may seal as anything."""
