"""How an attempt can end without an error: what was declined, and how a load ended."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class Declined:
    """Something that was asked for and is not done, with the reason that users see."""

    reason: str


class Ending(StrEnum):
    """The four ways in which a load can end."""

    GOOD = "good"
    UNREACHABLE = "unreachable"
    """Nothing is revoked; tried elsewhere, or recomputed."""
    DAMAGED = "damaged"
    """This run stops using the copy at once; a tombstone only after a second read finds the same."""
    FOREIGN = "foreign"
    """Refused and reported, never revoked."""


class SaveState(StrEnum):
    """Where the saving of one partition stands."""

    SAVING = "saving"
    DURABLE = "durable"
    REVOKED = "revoked"
    FAILED = "failed"
    NOT_SAVED = "not saved"
