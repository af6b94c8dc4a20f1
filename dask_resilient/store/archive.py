"""A store that is only read: what `dask_resilient.open` and the tools see of it."""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from dask_resilient.core.manifest import Receipt
from dask_resilient.core.milestones import LOOP, TOGETHER, Milestone
from dask_resilient.errors import Damaged, Foreign, StoreError
from dask_resilient.store import listing
from dask_resilient.store.calls import Calls
from dask_resilient.store.leases import leases
from dask_resilient.store.listing import Listing
from dask_resilient.store.opening import resolve, token_of

NAMED = 1000
"""Missing partitions that are named one by one."""


@dataclass(frozen=True, slots=True)
class Missing:
    """What of a milestone is not in the store."""

    count: int
    first: tuple[str, ...]
    """Indices of the first of them; none where nobody knows how they are numbered."""


@dataclass(slots=True)
class Archive:
    """What lies in one store. Nothing of it is written, so a read-only copy will do.

    Listings are kept: an archive is a look at one moment.
    """

    root: str
    token: str
    calls: Calls
    _listings: dict[str, Listing] = field(default_factory=dict)
    unreadable: dict[str, str] = field(default_factory=dict)
    """Why the description of a milestone cannot be used, by m."""

    def listing(self, milestone: str) -> Listing:
        """Give the receipts and tombstones of one milestone."""
        if milestone not in self._listings:
            self._listings[milestone] = listing.listing(self.calls, self.root, milestone)
        return self._listings[milestone]

    def milestones(self) -> list[Milestone]:
        """Give every described milestone, oldest first; what cannot be used is told in `unreadable`."""
        found = []
        for m in listing.milestone_ids(self.calls, self.root):
            try:
                found.append(listing.read_milestone(self.calls, self.root, m))
            except (OSError, Damaged, Foreign) as e:
                if getattr(e, "errno", None) != errno.ENOENT:  # else it was collected meanwhile
                    self.unreadable[m] = str(e)
        return sorted(found, key=lambda each: (each.made, each.milestone))

    def milestone(self, milestone: str) -> Milestone:
        """Give one milestone; raises `StoreError` if there is none, `Damaged` or `Foreign` if it cannot be used."""
        try:
            return listing.read_milestone(self.calls, self.root, milestone)
        except StoreError:
            raise
        except OSError as e:
            raise StoreError(e.errno or errno.EIO, f"milestone {milestone!r} cannot be read: {e}") from e

    def groups(self, name: str) -> list[list[Milestone]]:
        """Give the milestones of one name, oldest first; those of one xarray object, made in one run, together.

        Where a run has made a variable twice, as its keys were forgotten meanwhile, it is the newest that is complete.
        """
        groups: dict[Any, dict[str | None, Milestone]] = {}
        for each in self.milestones():
            described = each.description
            if described.name == name:
                shared = described.group is not None and described.group[0].startswith(TOGETHER)
                run = "" if shared else each.run
                key = each.milestone if described.group is None else (run, described.group)
                group = groups.setdefault(key, {})
                before = group.get(described.variable)
                if before is None or not self.missing(each).count or self.missing(before).count:
                    group[described.variable] = each
        return sorted((list(g.values()) for g in groups.values()), key=lambda group: max(each.made for each in group))

    def by_use(self, groups: list[list[Milestone]]) -> list[list[Milestone]]:
        """Give milestones in the order in which runs have used them last: one that is used again is the newest."""
        used: dict[str, float] = {}
        for lease in leases(self.calls, self.root, 0.0).values():
            for m in lease.milestones or ():
                used[m] = max(used.get(m, 0.0), -lease.age)

        def last(group: list[Milestone]) -> tuple[float, float]:
            return max(used.get(each.milestone, 0.0) for each in group), max(each.made for each in group)

        return sorted(groups, key=last)

    def missing(self, milestone: Milestone) -> Missing:
        """Give the partitions without valid receipt."""
        described = milestone.description
        if described.kind == LOOP:
            return Missing(0, ())  # a snapshot makes those before it superfluous
        valid = self.listing(milestone.milestone).valid()
        count = described.npartitions - sum(map(described.has, valid))
        # A description may name any number of partitions: only the first of them are made.
        first = (index for index in described.indices() if index not in valid) if count > 0 else ()
        return Missing(max(count, 0), () if described.kind == "other" else tuple(itertools.islice(first, NAMED)))

    def receipts(self, milestone: str) -> Iterator[tuple[str, Receipt | Exception]]:
        """Give path and content of every valid receipt; one that cannot be used gives its error."""
        return listing.valid_receipts(self.calls, self.root, milestone)

    def ticket(self, milestone: str, index: str) -> dict[str, Any]:
        """Give what `read_stored` needs to read the valid copy of a partition; the partition must not be missing."""
        path = listing.receipt_path(milestone, index, self.listing(milestone).valid()[index])
        return {"store": self.root, "token": self.token, "receipt": path}


def open_archive(url: str | os.PathLike[str] | None, calls: Calls | None = None) -> Archive:
    """Open a store for reading only.

    Raises
    ------
    SettingError
        If `url` is no address of a directory.
    StoreError
        If there is no store, or it cannot be read, in one line.
    """
    root = resolve(url)
    calls = calls or Calls()
    try:
        return Archive(root, token_of(calls, root), calls)
    except StoreError:
        raise
    except OSError as e:
        raise StoreError(e.errno or errno.EIO, f"{root!r} cannot be read as a store: {e.strerror or e}") from e
