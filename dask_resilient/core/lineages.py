"""What a store keeps of a fingerprint: digests of what a milestone was made of, so that it can be told what changed.

Never data: of an argument its digest and, where it is a number, the number; of a file its path and its size.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import astuple, dataclass, field
from typing import Any

from dask_resilient.core.fingerprints import Fact, Fingerprint, combine
from dask_resilient.core.packing import pack, unpack
from dask_resilient.errors import Damaged

MOST_INPUTS = 500
"""Files of one directory that are kept one by one in a store; of more, it is kept that any of them changed."""

MOST_FACTS = 20_000
"""Facts that are kept in a store at most: what is told of the others is that something changed."""

MAX_UNPACKED = 8 * 2**20
"""Bytes of a lineage before it is compressed; one that claims more is not read."""


@dataclass(frozen=True, slots=True)
class StoredLineage:
    """What a store keeps of a fingerprint.

    Raises
    ------
    Damaged
        If it is of no fingerprint.
    """

    structure: str
    digest: str
    facts: Mapping[str, Fact] = field(default_factory=dict)
    reasons: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse what no fingerprint gave."""
        texts = [self.structure, self.digest, *self.reasons, *self.facts]
        texts += [text for fact in self.facts.values() for text in astuple(fact)]
        if not all(type(text) is str for text in texts):
            raise Damaged("the lineage of a milestone holds something else than texts")

    def to_dict(self) -> dict[str, Any]:
        """Give plain types."""
        facts = {name: list(astuple(fact)) for name, fact in self.facts.items()}
        return {"structure": self.structure, "digest": self.digest, "facts": facts, "reasons": list(self.reasons)}

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> StoredLineage:
        """Read what `to_dict` gave, also through JSON.

        Raises
        ------
        Damaged
            If it is something else.
        """
        try:
            facts = {name: Fact(*fact) for name, fact in raw["facts"].items()}
            return cls(raw["structure"], raw["digest"], facts, tuple(raw["reasons"]))
        except (TypeError, ValueError, LookupError, AttributeError) as e:
            raise Damaged(f"the lineage of a milestone cannot be read: {e!r:.200}") from e


def dump_lineage(fingerprint: Fingerprint) -> bytes:
    """Give the compressed form of a fingerprint that is kept in a store, of a bounded size."""
    facts = _together(fingerprint.facts)
    body = {
        "structure": fingerprint.structure,
        "digest": fingerprint.digest,
        "facts": {name: list(astuple(fact)) for name, fact in sorted(facts.items())[:MOST_FACTS]},
        "reasons": list(fingerprint.reasons),
    }
    return pack(body)


def read_lineage(raw: bytes) -> StoredLineage:
    """Read what `dump_lineage` gave.

    Raises
    ------
    Damaged
        If it is something else.
    """
    return StoredLineage.from_dict(unpack(raw, MAX_UNPACKED, "the lineage of a milestone"))


def _together(facts: Mapping[str, Fact]) -> dict[str, Fact]:
    """Put the files of directories that have very many of them together."""
    sizes = Counter(_directory(name) for name, fact in facts.items() if fact.kind == "input")
    kept: dict[str, Fact] = {}
    together: dict[str, list[str]] = {}
    for name, fact in sorted(facts.items()):
        directory = _directory(name)
        if fact.kind == "input" and sizes[directory] > MOST_INPUTS:
            together.setdefault(directory, []).append(f"{name}\0{fact.digest}")
        else:
            kept[name] = fact
    for directory, files in together.items():
        kept[f"{directory}/*"] = Fact("input", combine(files), f"{len(files):,} files")
    return kept


def _directory(path: str) -> str:
    return path.rpartition("/")[0]
