"""What a milestone or a loop stands on, as facts with digests: equal facts and an equal structure make equal values."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Fact:
    """One thing that a milestone or a loop stands on."""

    kind: str
    """``function``, ``class``, ``value``, ``argument``, ``module``, ``package``, ``input`` or ``python``.

    Of a loop also ``body``, and ``field`` of its first state.
    """
    digest: str
    """Hexadecimal; of the thing itself, not of what it refers to."""
    shown: str = ""
    """A number, a release or a place in a file; never data."""


class Facts(Protocol):
    """What two fingerprints are compared by."""

    @property
    def digest(self) -> str:
        """Digest of all of it."""

    @property
    def facts(self) -> Mapping[str, Fact]:
        """The facts by name."""


@dataclass(slots=True)
class Fingerprint:
    """What identifies a milestone beyond its name, and why, if it cannot be identified beyond this run.

    Attributes
    ----------
    structure
        Digest of the graph: which functions with which arguments, by position.
    facts
        By name, as ``module.function``, ``module.function(argument)`` or the path of a file. Arguments are told for
        `changes` only: that they count is in the structure.
    reasons
        Why it cannot be pinned down, each with what to do; empty if it can.
    """

    structure: str
    facts: Mapping[str, Fact] = field(default_factory=dict)
    reasons: tuple[str, ...] = ()

    @property
    def pinned(self) -> bool:
        """Say whether another run can tell that it makes the same."""
        return not self.reasons

    @property
    def digest(self) -> str:
        """Give the digest of all of it: 32 hexadecimal digits."""
        facts = ((name, fact) for name, fact in sorted(self.facts.items()) if fact.kind != "argument")
        return combine([self.structure, *(f"{name}\0{fact.kind}\0{fact.digest}" for name, fact in facts)])


def milestone_of(name: str, shape: str, *, fingerprint: str = "", version: object = None) -> str:
    """Give m, by which a milestone is known to other runs: 32 hexadecimal digits.

    Parameters
    ----------
    name
        Name of the milestone.
    shape
        Digest of its partitions' number, limits and types: partitions that are cut otherwise are other partitions,
        whatever else is the same, or whoever says that it is.
    fingerprint
        Digest of what it is made of; empty where the user's word counts instead.
    version
        That word.
    """
    what = ["fingerprint", fingerprint] if fingerprint else ["version", type(version).__name__, str(version)]
    return combine(["milestone", name, shape, *what])


def combine(parts: Iterable[str]) -> str:
    """Give the digest of texts in their order: 32 hexadecimal digits of BLAKE2b.

    The length of each is part of it, so no two sequences of texts give the same bytes.
    """
    h = hashlib.blake2b(digest_size=16)
    for part in parts:
        raw = part.encode("utf-8", "surrogatepass")
        h.update(len(raw).to_bytes(8, "little"))
        h.update(raw)
    return h.hexdigest()


def changes(before: Facts, after: Facts) -> list[str]:
    """Say in a sentence each what is different; empty if nothing is.

    What changed comes before what is new and what is gone: those often follow from it. So do the arguments that
    libraries hand to their own functions, which are told of if nothing else is.
    """
    if before.digest == after.digest:
        return []
    names = sorted(before.facts.keys() | after.facts.keys())
    pairs = [(name, before.facts.get(name), after.facts.get(name)) for name in names]
    libraries = {name for name, fact in after.facts.items() if fact.kind == "package"}
    changed = [(name, old, new) for name, old, new in pairs if old and new and old.digest != new.digest]
    theirs = [each for each in changed if each[2].kind == "argument" and _follows(*each, libraries)]
    said = [_changed(*each) for each in changed if each not in theirs]
    said += [f"{_named(name, new)} is new" for name, old, new in pairs if new and not old]
    said += [f"{_named(name, old)} takes no part any more" for name, old, new in pairs if old and not new]
    if said:
        return said
    return [_changed(*each) for each in theirs] or ["which functions are applied, in what order or to what, changed"]


def _follows(name: str, old: Fact, new: Fact, libraries: set[str]) -> bool:
    """Say whether a change of an argument follows from another: a library hands it on, or it only has more calls."""
    return name.partition(".")[0] in libraries or (bool(new.shown) and old.shown == new.shown)


def _named(name: str, fact: Fact) -> str:
    return "the body of the loop" if fact.kind == "body" else f"{fact.kind} {name}"


def _changed(name: str, old: Fact, new: Fact) -> str:
    if new.kind in ("package", "python"):
        return f"{name} {old.shown} is now {new.shown}"
    if new.kind in ("value", "argument", "field") and old.shown and new.shown and old.shown != new.shown:
        return f"{_named(name, new)} changed from {old.shown} to {new.shown}"
    where = f" ({new.shown})" if new.shown and new.kind in ("function", "input", "body") else ""
    return f"{_named(name, new)} changed{where}"
