"""What the tools show of a store, as rows: lists of plain dicts, one a milestone or one a partition."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dask_resilient.core.explaining import RESUME, Resumption
from dask_resilient.core.manifest import Receipt
from dask_resilient.core.milestones import Milestone
from dask_resilient.core.outcome import Ending
from dask_resilient.errors import Damaged, Foreign
from dask_resilient.store.archive import Archive
from dask_resilient.store.guarded import ending_of
from dask_resilient.store.leases import LEASE, leases
from dask_resilient.store.listing import directories, names, read_json
from dask_resilient.store.reading import verify_partition


def newest_renewal(archive: Archive) -> float:
    """Give the latest time that the store's clock is known to have passed, for looking without writing to it."""
    times = [0.0]
    for run in directories(archive.calls, archive.root, "runs"):
        for name in (LEASE, "run.json"):
            try:
                times.append(archive.calls.lstat(f"{archive.root}/runs/{run}/{name}").st_mtime)
            except OSError:
                continue
    return max(times)


def resumptions(archive: Archive) -> Iterator[tuple[str, float, Resumption]]:
    """Give what runs found of milestones when they met them: the run, when (UNIX s), and what."""
    for run in directories(archive.calls, archive.root, "runs"):
        for name in names(archive.calls, archive.root, f"runs/{run}"):
            if not name.startswith(RESUME) or not name.endswith(".json"):
                continue
            body = read_json(archive.calls, archive.root, f"runs/{run}/{name}")
            try:
                yield run, float(body["time"]), Resumption.from_dict(body)
            except (TypeError, ValueError, LookupError):
                continue  # it cannot be read, or is none: it is advisory


def milestone_rows(archive: Archive, now: float) -> list[dict[str, Any]]:
    """Give a row a milestone, oldest first; one whose description cannot be used has a reason instead of facts.

    Parameters
    ----------
    archive
        The store.
    now
        Time by the store's clock, UNIX seconds: tells which runs live.
    """
    runs = leases(archive.calls, archive.root, now)
    rows = []
    for each in archive.milestones():
        users = [lease for lease in runs.values() if lease.milestones and each.milestone in lease.milestones]
        lease = min(users, key=lambda lease: lease.age, default=runs.get(each.run))  # the last one that used it
        state = "ended" if lease is None else "live" if lease.live else "complete" if lease.complete else "ended"
        run = each.run if lease is None else lease.run
        rows.append({**_facts(archive, each), "run": run, "run_state": state, "reason": ""})
    for m, reason in sorted(archive.unreadable.items()):
        rows.append({"name": None, "milestone": m, "reason": reason})
    return rows


def _facts(archive: Archive, each: Milestone) -> dict[str, Any]:
    described = each.description
    receipts = [r for _, r in archive.receipts(each.milestone)]
    sound = [receipt for receipt in receipts if isinstance(receipt, Receipt)]
    return {
        "name": described.name,
        "milestone": each.milestone,
        "kind": described.kind,
        "variable": described.variable,
        "partitions": described.npartitions,
        "stored": len(sound),
        "unreadable": len(receipts) - len(sound),
        "nbytes": sum(receipt.stored_nbytes for receipt in sound),
        "made": each.made,
        "keep": described.keep,
        "version": described.version,
    }


def partition_rows(archive: Archive, milestones: list[Milestone]) -> Iterator[dict[str, Any]]:
    """Read and compare every byte of every stored partition, and give a row each; what is missing has a row too."""
    for each in milestones:
        m, name = each.milestone, each.description.name
        for path, receipt in archive.receipts(m):
            row = {"name": name, "milestone": m, "receipt": path, "nbytes": 0, "ending": "good", "reason": ""}
            try:
                if isinstance(receipt, Exception):
                    raise receipt
                verify_partition(archive.calls, archive.root, archive.token, receipt.place)
                row["nbytes"] = receipt.stored_nbytes
            except Exception as e:
                row |= {"ending": str(ending_of(e) if isinstance(e, Damaged | Foreign) else Ending.UNREACHABLE)}
                row["reason"] = str(e)
            yield row
        yield from _missing(archive, each)


def _missing(archive: Archive, each: Milestone) -> Iterator[dict[str, Any]]:
    m, missing = each.milestone, archive.missing(each)
    row = {"name": each.description.name, "milestone": m, "nbytes": 0, "ending": "missing"}
    for index in missing.first:
        yield {**row, "receipt": f"commit/{m}/{index}.*.json", "reason": "no valid receipt"}
    if more := missing.count - len(missing.first):
        yield {**row, "receipt": f"commit/{m}", "reason": f"{more:,} more have no valid receipt"}
