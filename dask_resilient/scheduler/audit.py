"""What was decided about devices and what came of it: rows for the handle, events, and the journal of the run."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from time import time
from typing import Any

from dask_resilient.core.actions import OURS, Decision
from dask_resilient.core.devices import CULPRIT
from dask_resilient.core.messages import one_line
from dask_resilient.scheduler.queue import StoreQueue

logger = logging.getLogger("dask_resilient")

KEPT = 1_000
"""Decisions that are remembered at most, the newest."""

COUNTS = ("lost", "saved", "moved", "reloaded", "recomputed", "nbytes")
"""What is counted of a decision, as of a loss."""

JOURNALLED = 10_000
"""Decisions of one run that go to its journal at most."""


LINES = 20
"""Lines of evidence of one decision."""


class Audit:
    """The book of decisions of one run, also of those not to act.

    Parameters
    ----------
    run
        Its id.
    queue
        The way to the journal.
    event
        Logs a structured event.
    """

    def __init__(self, run: str, queue: StoreQueue, event: Callable[..., None]) -> None:
        self._run = run
        self._queue = queue
        self._event = event
        self._made = 0
        self._written = 0
        self.rows: list[dict[str, Any]] = []

    def decided(self, decision: Decision) -> dict[str, Any]:
        """Write a decision down; gives its row, to which what came of it is added."""
        self._made += 1
        decision = _in_short(decision)
        row: dict[str, Any] = {
            "id": f"d{self._made}",
            "kind": "declined" if decision.declined else "decision",
            **decision.to_dict(),
            "cause": _sentence(decision),
            "outcome": "",
            "seconds": None if decision.actions else 0.0,
            **dict.fromkeys(COUNTS, 0),
            "keys": [],
        }
        self.rows.append(row)
        del self.rows[:-KEPT]
        self._event("device", **row)
        warns = decision.declined or decision.after.held or decision.cause.rule == CULPRIT
        loud = logger.warning if warns else logger.info
        loud("dask-resilient: device %s: %s", decision.device, row["cause"])
        self._journal(row)
        return row

    def ended(self, row: dict[str, Any], outcome: str, **counts: int) -> None:
        """Write down what came of a decision."""
        row["outcome"] = "; ".join(filter(None, (row["outcome"], outcome)))
        row["seconds"] = time() - row["time"]
        row.update({name: row[name] + n for name, n in counts.items()})
        if outcome:
            self._event("device-outcome", id=row["id"], device=row["device"], outcome=outcome, **counts)
            self._journal(row)

    def _journal(self, row: dict[str, Any]) -> None:
        """Write the row as it stands; entries are never overwritten, so what comes of it is another one."""
        store = self._queue.store
        if store is None or self._made > JOURNALLED:
            return
        self._written += 1
        name, body = f"{row['id']}-{self._written}", dict(row)
        self._queue.submit(lambda: store.journal(self._run, name, body), lambda _: None)


def _in_short(decision: Decision) -> Decision:
    """Give a decision whose evidence is lines for a log, each once: probes and tasks write what they like."""
    return replace(decision, cause=replace(decision.cause, evidence=tuple(lines(decision.cause.evidence))))


def lines(evidence: Iterable[str]) -> list[str]:
    """Give evidence as lines that can be printed, each once."""
    said = dict.fromkeys(one_line(line) for line in evidence)
    return [line for line in said if line][:LINES]


def _sentence(decision: Decision) -> str:
    cause = decision.cause
    why = cause.rule if cause.by == OURS else f"by {cause.by}"
    if cause.evidence:
        why += f" ({'; '.join(cause.evidence[:3])})"
    if decision.declined:
        stays = "" if decision.declined == f"it is {decision.before} already" else f"stays {decision.before}: "
        return f"{stays}{decision.declined}; asked for {'by ' if cause.by == OURS else ''}{why}"
    moved = f"{decision.before} -> {decision.after}" if decision.before is not decision.after else str(decision.after)
    done = ", ".join(decision.to_dict()["actions"])
    return f"{moved}: {why}" + (f"; {done}" if done else "")
