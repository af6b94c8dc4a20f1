"""What lies in a store, read without writing to it: milestones, receipts, tombstones, runs.

Listing reads names only; receipts are read where somebody asks what they say. Whatever lies there that no name of this
layout fits is left out, and so is left alone by everything that is built on this.
"""

from __future__ import annotations

import errno
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from dask_resilient.core.manifest import Receipt
from dask_resilient.core.milestones import Milestone, loads_milestone
from dask_resilient.errors import Damaged, StoreError
from dask_resilient.store.calls import Calls
from dask_resilient.store.files import check_directories, read_small
from dask_resilient.store.reading import read_receipt

_M = re.compile(r"[0-9a-z][0-9a-z._-]{0,127}")
_NUMBERED = re.compile(r"([0-9a-z][0-9a-z._-]{0,127})\.(0|[1-9][0-9]{0,8})\.json")
_ATTEMPT = re.compile(r"[0-9a-z][0-9a-z._-]*-[0-9a-z][0-9a-z._-]*")
_DRAFT = re.compile(r"\.[0-9A-Za-z][0-9A-Za-z._-]*\.[0-9a-f]{32}")
_PROBE = re.compile(r"\.?probe-[0-9a-f]{32}(\.[0-9a-f]{32})?")


@dataclass(frozen=True, slots=True)
class Listing:
    """The receipts and tombstones of one milestone, by the names of their files."""

    milestone: str
    receipts: dict[str, set[int]] = field(default_factory=dict)
    """Generations by index."""
    tombstones: dict[str, set[int]] = field(default_factory=dict)

    def valid(self) -> dict[str, int]:
        """Give the generation of the valid receipt of each partition that has one: the highest without tombstone."""
        alive = {i: g - self.tombstones.get(i, set()) for i, g in self.receipts.items()}
        return {index: max(generations) for index, generations in alive.items() if generations}


def names(calls: Calls, root: str, path: str) -> list[str]:
    """Give the names in a directory below the root, sorted; none if it is absent.

    Raises
    ------
    Damaged
        If it is no directory, or lies behind a symbolic link.
    OSError
        If it cannot be read.
    """
    try:
        check_directories(calls, root, path)
        return sorted(calls.names(f"{root}/{path}"))
    except FileNotFoundError:
        return []


def milestone_ids(calls: Calls, root: str) -> list[str]:
    """Give the m of every described milestone."""
    found = (name.removesuffix(".json") for name in names(calls, root, "milestones") if name.endswith(".json"))
    return [m for m in found if _M.fullmatch(m)]


def directories(calls: Calls, root: str, kind: str) -> list[str]:
    """Give the m of every milestone, or the id of every run, that has a directory of a kind."""
    found = (name for name in names(calls, root, kind) if _M.fullmatch(name))
    return [name for name in found if _is_directory(calls, f"{root}/{kind}/{name}")]


def _is_directory(calls: Calls, path: str) -> bool:
    try:
        return stat.S_ISDIR(calls.lstat(path).st_mode)
    except FileNotFoundError:  # collected meanwhile
        return False


def attempt_names(calls: Calls, root: str, milestone: str) -> list[str]:
    """Give the names of the attempts of one milestone."""
    return [name for name in names(calls, root, f"data/{milestone}") if _ATTEMPT.fullmatch(name)]


def is_draft(name: str) -> bool:
    """Say whether a name is that of a file which was to get another name."""
    return _DRAFT.fullmatch(name) is not None


def is_leftover(name: str) -> bool:
    """Say whether a name in the root is that of a draft or of a probe."""
    return is_draft(name) or _PROBE.fullmatch(name) is not None


def read_milestone(calls: Calls, root: str, milestone: str) -> Milestone:
    """Read what a store says of a milestone.

    Raises
    ------
    Damaged, Foreign
        If that cannot be used.
    StoreError
        If there is no milestone of this m.
    OSError
        If it cannot be read.
    """
    if not _M.fullmatch(milestone) or ".." in milestone:
        raise StoreError(errno.EINVAL, f"{milestone!r} is no m of a milestone")
    check_directories(calls, root, "milestones")
    try:
        raw = read_small(calls, f"{root}/milestones/{milestone}.json")
    except FileNotFoundError as e:
        raise StoreError(errno.ENOENT, f"{root!r} has no milestone {milestone!r}") from e
    except OSError as e:
        if e.errno == errno.ELOOP:
            raise Damaged(f"the description of milestone {milestone!r} is a symbolic link, and not followed") from e
        raise
    return loads_milestone(raw, milestone)


def listing(calls: Calls, root: str, milestone: str) -> Listing:
    """List the receipts and tombstones of one milestone."""
    found = Listing(milestone)
    for kind, where in (("commit", found.receipts), ("revoked", found.tombstones)):
        for name in names(calls, root, f"{kind}/{milestone}"):
            if match := _NUMBERED.fullmatch(name):
                where.setdefault(match[1], set()).add(int(match[2]))
    return found


def receipt_path(milestone: str, index: str, generation: int) -> str:
    """Give the path of a receipt, relative to the root."""
    return f"commit/{milestone}/{index}.{generation}.json"


def valid_receipts(calls: Calls, root: str, milestone: str) -> Iterator[tuple[str, Receipt | Exception]]:
    """Give the path and the content of every valid receipt; one that cannot be used gives the error instead."""
    for index, generation in listing(calls, root, milestone).valid().items():
        path = receipt_path(milestone, index, generation)
        try:
            yield path, read_receipt(calls, root, path)
        except Exception as e:
            yield path, e


def read_json(calls: Calls, root: str, path: str) -> Any:
    """Read a small JSON file of a run; None if it is absent or unreadable: these are advisory."""
    import json

    try:
        check_directories(calls, root, path.rpartition("/")[0])
        return json.loads(read_small(calls, f"{root}/{path}"))
    except Exception:
        return None
