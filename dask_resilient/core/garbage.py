"""What of a store may be deleted. Mark and sweep: whatever no rule names stays.

Ages are seconds by the store's own clock. Nothing younger than the grace period is ever named, nor anything of a
milestone that a live lease names. When in doubt (a file that cannot be read, a run that nobody has heard of) it stays.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

GRACE = 24 * 3600.0
"""Seconds for which nothing is deleted: longer than any write takes, and than anybody needs to look into a failure."""

EXPIRY = 600.0
"""Seconds after which a lease that was not renewed has expired: ten renewals that did not come."""

RENEWAL = 60.0
"""Seconds between renewals."""


@dataclass(frozen=True, slots=True)
class Lease:
    """What is known of one run."""

    run: str
    live: bool
    complete: bool = False
    milestones: frozenset[str] | None = frozenset()
    """The milestones that it named as in use when it was last renewed; None where that cannot be read."""
    keep: frozenset[str] = frozenset()
    """Those that it marked to be kept."""
    age: float = float("inf")
    """Seconds since it was last renewed."""

    def names(self, milestone: str) -> bool:
        """Say whether it may use a milestone."""
        return self.milestones is None or milestone in self.milestones


@dataclass(frozen=True, slots=True)
class StoredReceipt:
    """One receipt, as far as it matters here."""

    attempt: str | None
    """Name of the attempt's directory; None where the receipt cannot be read."""
    age: float
    run: str = ""
    temporary: bool = False
    """For its run only, no part of a milestone."""


@dataclass(frozen=True, slots=True)
class Contents:
    """What lies under one m."""

    milestone: str
    run: str | None = None
    """The run that made the milestone; None where there is no description, or it cannot be read."""
    keep: bool = False
    age: float = 0.0
    """Of the description."""
    receipts: Mapping[tuple[str, int], StoredReceipt] = field(default_factory=dict)
    """By index and generation."""
    tombstones: Mapping[tuple[str, int], float] = field(default_factory=dict)
    """Ages, by index and generation."""
    attempts: Mapping[str, float] = field(default_factory=dict)
    """Ages, by name of the directory."""
    drafts: Mapping[str, float] = field(default_factory=dict)
    """Ages of files that were to get another name, by path below the root."""


class Why(StrEnum):
    """Why something is garbage."""

    COMPLETE = "its run was marked complete"
    TEMPORARY = "it was for a run that has ended"
    REVOKED = "its receipt was revoked"
    ABANDONED = "it never got a receipt"
    DRAFT = "its writer died"
    REMOVED = "it was named to be removed"


@dataclass(frozen=True, slots=True)
class Garbage:
    """One thing to delete, in the order in which the parts of a partition may go: first what makes it exist."""

    why: Why
    receipt: tuple[str, int] | None = None
    attempt: str | None = None
    tombstone: tuple[str, int] | None = None
    draft: str | None = None
    description: bool = False


def in_use(contents: Contents, leases: Iterable[Lease]) -> str | None:
    """Give the live run that names a milestone or has made it, None if there is none."""
    users = (lease for lease in leases if lease.names(contents.milestone) or lease.run == contents.run)
    return next((lease.run for lease in users if lease.live), None)


def collectable(contents: Contents, leases: Mapping[str, Lease], grace: float) -> bool:
    """Say whether a whole milestone may go: nobody uses it, and the last run that did was marked complete.

    Runs that went before may have died; that one has gone on where they stopped. A run that was lost later, or of which
    nothing is known, may still want it.
    """
    receipts = (receipt.age for receipt in contents.receipts.values())
    parts = (contents.tombstones, contents.attempts, contents.drafts)
    ages = itertools.chain([contents.age], receipts, *(part.values() for part in parts))
    if contents.run is None or contents.keep or min(ages) <= grace:
        return False
    if contents.run not in leases:
        return False
    users = [lease for lease in leases.values() if lease.names(contents.milestone) or lease.run == contents.run]
    if any(lease.live or contents.milestone in lease.keep for lease in users):
        return False
    return all(lease.complete for lease in users if lease.age <= min(user.age for user in users))


def garbage(contents: Contents, leases: Mapping[str, Lease], grace: float = GRACE) -> list[Garbage]:
    """Give what may be deleted under one m, receipts before what they name."""
    if in_use(contents, leases.values()) is not None:
        return []
    if any(lease.live for lease in leases.values()):
        # A run names what it uses at its next renewal, so what is new may be of a run that lives.
        grace = max(grace, EXPIRY)
    if collectable(contents, leases, grace):
        return everything(contents, Why.COMPLETE)
    return [*_revoked(contents, grace), *_temporary(contents, leases, grace), *_abandoned(contents, grace)]


def everything(contents: Contents, why: Why) -> list[Garbage]:
    """Give all that lies under one m; the description last, so that what a stop leaves is found again."""
    named = {receipt.attempt for receipt in contents.receipts.values()}
    return [
        *(Garbage(why, receipt=place, attempt=receipt.attempt) for place, receipt in contents.receipts.items()),
        *(Garbage(why, attempt=attempt) for attempt in contents.attempts if attempt not in named),
        *(Garbage(why, tombstone=place) for place in contents.tombstones),
        *(Garbage(why, draft=path) for path in contents.drafts),
        Garbage(why, description=True),
    ]


def _revoked(contents: Contents, grace: float) -> Iterator[Garbage]:
    """Give revoked copies. Their tombstones stay: they keep the generation from being written again."""
    for place, age in contents.tombstones.items():
        receipt = contents.receipts.get(place)
        if receipt is not None and min(age, receipt.age) > grace:
            yield Garbage(Why.REVOKED, receipt=place, attempt=_own(contents, place))


def _temporary(contents: Contents, leases: Mapping[str, Lease], grace: float) -> Iterator[Garbage]:
    for place, receipt in contents.receipts.items():
        lease = leases.get(receipt.run)
        ended = lease is None or not lease.live
        if receipt.temporary and ended and receipt.age > grace and place not in contents.tombstones:
            yield Garbage(Why.TEMPORARY, receipt=place, attempt=_own(contents, place))


def _own(contents: Contents, place: tuple[str, int]) -> str | None:
    """Give the attempt of a receipt, None if another one names it too, or may do so."""
    attempt = contents.receipts[place].attempt
    others = (r.attempt for other, r in contents.receipts.items() if other[0] == place[0] and other != place)
    return None if any(other in {attempt, None} for other in others) else attempt


def _abandoned(contents: Contents, grace: float) -> Iterator[Garbage]:
    named = {receipt.attempt for receipt in contents.receipts.values()}
    # A receipt that cannot be read may name any attempt of its index.
    unknown = tuple(f"{index}-" for (index, _), receipt in contents.receipts.items() if receipt.attempt is None)
    for attempt, age in contents.attempts.items():
        if attempt not in named and age > grace and not attempt.startswith(unknown):
            yield Garbage(Why.ABANDONED, attempt=attempt)
    for path, age in contents.drafts.items():
        if age > grace:
            yield Garbage(Why.DRAFT, draft=path)
