"""What a store says of a milestone: its name, what kind of collection it is, and which partitions it has.

``milestones/<m>.json`` is created before the first receipt of the milestone. It proves nothing about partitions; it
says which indices there are and how they make a collection again.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from dask_resilient.core.lineages import StoredLineage
from dask_resilient.core.manifest import seal, unseal
from dask_resilient.core.packing import pack, unpack
from dask_resilient.errors import Damaged

LOOP = "loop"
"""The snapshots of a loop: each is a partition, named by its step and by how many there were of that step before."""

KINDS = ("array", "frame", "bag", "delayed", LOOP, "other")
"""Kinds of collections; partitions of another one are kept, but nobody knows how to put it together again."""

MAX_PARTITIONS = 50_000_000
"""More than any scheduler can hold; a description that names more is not believed."""

MAX_UNPACKED = 6 * 2**20
"""Bytes of a description before it is compressed; indented as it is written, it is not too large to be read again."""

TOGETHER = "all-"
"""What begins the name of a group that is the same in every run which makes all of it the same."""

_LATEST = 1e11
_NAME = re.compile(r"[0-9A-Za-z._-]{1,100}")
_NUMBER = re.compile(r"0|[1-9][0-9]{0,8}")


@dataclass(frozen=True, slots=True)
class Description:
    """A milestone as the client describes it when it is marked; JSON types only.

    Raises
    ------
    Damaged
        If the parts contradict one another.
    """

    name: str
    kind: str
    npartitions: int
    keep: bool = False
    version: str | int | None = None
    numblocks: tuple[int, ...] | None = None
    """Of an array: blocks along each axis."""
    chunks: tuple[tuple[int | None, ...], ...] | None = None
    """Of an array: sizes of the blocks along each axis, None where Dask did not know them."""
    divisions: Any = None
    """Of a frame, with the exact types of its labels."""
    meta: Mapping[str, Any] | None = None
    """The empty partition, staged: ``codec``, ``schema``, ``payload`` in base64."""
    dims: tuple[str | None, ...] | None = None
    """Of an array out of xarray: the names of its axes."""
    variable: str | None = None
    """Of an array out of xarray: which variable it was."""
    group: tuple[str, int] | None = None
    """Of an array out of xarray: what all variables of that object share, and how many they are."""
    versions: Mapping[str, str] | None = None
    """Releases of the libraries that had a say."""
    reasons: tuple[str, ...] | None = None
    """Why no other run can tell that it makes the same; None if one can, or nobody asked."""

    def __post_init__(self) -> None:
        """Refuse what no client wrote, before anything is made of its numbers."""
        blocks = self.numblocks
        wrong = (
            type(self.name) is not str
            or not _NAME.fullmatch(self.name)
            or not _flag(self.keep)
            or self.kind not in KINDS
            or not _natural(self.npartitions)
            or self.npartitions > MAX_PARTITIONS
            or (self.kind == "array") != (blocks is not None)
            or (blocks is not None and (len(blocks) > 64 or not all(map(_natural, blocks))))  # noqa: PLR2004
            or (self.chunks is not None and tuple(map(len, self.chunks)) != blocks)
            or (self.chunks is not None and not all(n is None or _natural(n) for axis in self.chunks for n in axis))
            or (blocks is not None and math.prod(blocks) != self.npartitions)
            or (self.dims is not None and len(self.dims) != len(blocks or ()))
            or not all(dim is None or type(dim) is str for dim in self.dims or ())
            or (self.group is None) != (self.variable is None)
            or (self.variable is not None and type(self.variable) is not str)
            or not all(type(reason) is str for reason in self.reasons or ())
            or (self.group is not None and (type(self.group[0]) is not str or not _natural(self.group[1])))
        )
        if wrong:
            raise Damaged(f"the description of milestone {self.name!r} contradicts itself")

    def to_dict(self) -> dict[str, Any]:
        """Give plain types, without what is not known."""
        return {key: value for key, value in asdict(self).items() if value is not None}

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Description:
        """Read what `to_dict` gave, also through JSON.

        Raises
        ------
        Damaged
            If it describes no milestone.
        """
        try:
            body = dict(raw)
            for key in ("numblocks", "dims", "group", "reasons"):
                if body.get(key) is not None:
                    body[key] = tuple(body[key])
            if body.get("chunks") is not None:
                body["chunks"] = tuple(map(tuple, body["chunks"]))
            return cls(**body)
        except (TypeError, ValueError, LookupError) as e:
            raise Damaged(f"a milestone's description cannot be read: {e!r}") from e

    def indices(self) -> Iterable[str]:
        """Give the index of every partition that the milestone has, as it stands in the names of receipts."""
        if self.numblocks is None:
            return map(str, range(self.npartitions))
        return (self._block(number) for number in range(self.npartitions))

    def has(self, index: str) -> bool:
        """Say whether the milestone has a partition of this index."""
        if self.kind == "other":
            return True
        blocks = (MAX_PARTITIONS, MAX_PARTITIONS) if self.kind == LOOP else self.numblocks or (self.npartitions,)
        parts = index.split(".")
        if len(parts) != len(blocks) or not all(map(_NUMBER.fullmatch, parts)):
            return False
        return all(int(part) < count for part, count in zip(parts, blocks, strict=True))

    def _block(self, number: int) -> str:
        """Give the index of a block by its position in C order."""
        parts: list[str] = []
        for count in reversed(self.numblocks or (1,)):
            number, part = divmod(number, count)
            parts.append(str(part))
        return ".".join(reversed(parts))


def dump_description(description: Description) -> bytes:
    """Give the compressed form that travels with each partition."""
    return pack(description.to_dict())


def read_description(raw: bytes) -> Description:
    """Read what `dump_description` gave.

    Raises
    ------
    Damaged
        If it is something else.
    """
    return Description.from_dict(unpack(raw, MAX_UNPACKED, "a milestone's description"))


def _flag(value: object) -> bool:
    return type(value) is bool


def _natural(number: object) -> bool:
    return type(number) is int and number >= 0


@dataclass(frozen=True, slots=True)
class Milestone:
    """What ``milestones/<m>.json`` says."""

    milestone: str
    """m, the directory of its partitions."""
    run: str
    """The run that made it."""
    made: float
    """When, UNIX seconds by the clock of the worker that described it."""
    description: Description
    lineage: StoredLineage | None = None
    """What it was made of, as digests; None where nobody said."""

    def dumps(self) -> bytes:
        """Give the bytes of the file."""
        head = {"milestone": self.milestone, "run": self.run, "made": self.made}
        lineage = {} if self.lineage is None else {"lineage": self.lineage.to_dict()}
        return seal({**head, "description": self.description.to_dict(), **lineage})


def loads_milestone(raw: bytes, milestone: str) -> Milestone:
    """Read the file of milestone `milestone`.

    Raises
    ------
    Damaged
        If it was changed or cut off, or is that of another milestone.
    Foreign
        If it is of a format that this version does not know.
    """
    body = unseal(raw, f"the description of milestone {milestone!r}")
    try:
        found = Milestone(
            milestone=str(body["milestone"]),
            run=str(body["run"]),
            made=float(body["made"]),
            description=Description.from_dict(body["description"]),
            lineage=StoredLineage.from_dict(body["lineage"]) if "lineage" in body else None,
        )
    except (TypeError, ValueError, LookupError, OverflowError) as e:
        raise Damaged(f"the description of milestone {milestone!r} cannot be read: {e!r}") from e
    if not 0 <= found.made < _LATEST:
        raise Damaged(f"the description of milestone {milestone!r} was made at no time: {found.made!r}")
    if found.milestone != milestone:
        raise Damaged(f"the file of milestone {milestone!r} describes {found.milestone!r}")
    return found
