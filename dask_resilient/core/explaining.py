"""Why partitions were taken from the store or not, in words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from dask_resilient.core.fingerprints import Fact, Facts
from dask_resilient.core.messages import one_line

RESUME = "resume-"
"""What the names of files in a run's journal begin with that say what it found of a milestone."""

SHOWN = 10
"""Changes, or reasons, that a line names."""

NAMED = 5
"""Functions, or values, that a line names."""


@dataclass(frozen=True, slots=True)
class Resumption:
    """What a run found in the store when it met a milestone.

    Attributes
    ----------
    identity
        By what it is known: ``"fingerprint"``, ``"version"``, ``"name"``, or ``"run"`` where no other run can know it.
    found
        Partitions that were stored then.
    reasons
        Why it is for this run only.
    before
        m of the milestone of that name that it was compared with; empty if there was none.
    changes
        What differs from that.
    """

    name: str
    milestone: str
    npartitions: int
    identity: str
    found: int = 0
    variable: str | None = None
    version: str | int | None = None
    reasons: tuple[str, ...] = ()
    before: str = ""
    changes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Give plain types."""
        row = asdict(self)
        return row | {"reasons": list(self.reasons), "changes": list(self.changes)}

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Resumption:
        """Read what `to_dict` gave; raises `TypeError`, `ValueError` or `LookupError` if it is something else."""
        body = {name: raw[name] for name in cls.__dataclass_fields__}
        for name in ("reasons", "changes"):
            body[name] = tuple(map(str, body[name]))
        for name in ("npartitions", "found"):
            body[name] = int(body[name])
        return cls(**body)


def explain(row: Resumption) -> str:
    """Say in a line what was reused of a milestone, and why not the rest."""
    name = row.name if row.variable is None else f"{row.name} / {row.variable}"
    total, missing = row.npartitions, max(row.npartitions - row.found, 0)
    if row.identity == "run":
        why = _some(row.reasons) or "resume is switched off"
        return one_line(f"{name}: reused 0 of {total:,}; it is for this run only: {why}", 4_000)
    text = f"{name}: reused {row.found:,} of {total:,}"
    if row.identity != "fingerprint" and row.found and row.changes:
        word = f"version {row.version!r}" if row.version is not None else "its name"
        text += f", on your word ({word}), although {_some(row.changes)}"
    if missing:
        text += f"; {missing:,} not reused: {_why_not(row)}"
    return one_line(text, 4_000)


def _why_not(row: Resumption) -> str:
    if row.found:
        return "not stored"
    if not row.before:
        return "nothing of this name was stored"
    return _some(row.changes) or "its partitions are cut otherwise, or have other types"


def relies_on(facts: Facts) -> str:
    """Say what a fingerprint relies on: what is not named there is not seen."""
    kinds: dict[str, list[str]] = {}
    for name, fact in sorted(facts.facts.items()):
        kinds.setdefault(fact.kind, []).append(_said(name, fact))
    parts = [
        *(_listed(kinds.get(kind, ()), f"{kind}s" if kind != "class" else "classes") for kind in _OF_USERS),
        _listed(kinds.get("input", ()), "inputs"),
        ", ".join([*kinds.get("package", ()), *kinds.get("python", ())]),
    ]
    return one_line("; ".join(part for part in parts if part) or "nothing but its arguments", 4_000)


_OF_USERS = ("function", "class", "value", "module")


def _said(name: str, fact: Fact) -> str:
    return f"{name} {fact.shown}" if fact.kind in ("package", "python") else name


def _listed(names: Iterable[str], what: str) -> str:
    names = list(names)
    more = f" and {len(names) - NAMED:,} more" if len(names) > NAMED else ""
    return f"{what} {', '.join(names[:NAMED])}{more}" if names else ""


def _some(texts: Iterable[str]) -> str:
    texts = list(texts)
    more = f"; and {len(texts) - SHOWN:,} more" if len(texts) > SHOWN else ""
    return "; ".join(texts[:SHOWN]) + more
