"""What the scheduler answers to a handle: rows, as lists of plain dicts; or, as a plain dict too, why not."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from time import time
from typing import Any

from dask_resilient.config import Settings
from dask_resilient.core.messages import one_line
from dask_resilient.errors import ResilienceError
from dask_resilient.scheduler.audit import lines
from dask_resilient.scheduler.loops import Loops
from dask_resilient.scheduler.queue import StoreQueue
from dask_resilient.scheduler.status import status
from dask_resilient.scheduler.watch import Watch

REFUSED = "refused"
"""The key of an answer that says why nothing was done. An error that is raised here would go to Dask's log."""

SHOWN_NAMES = 10
"""Names that a refusal lists."""

SHOWN = 2_000
"""Characters of a refusal."""


async def answer(
    method: str, kwargs: dict[str, Any], run: str, settings: Settings, watch: Watch, queue: StoreQueue
) -> Any:
    """Answer one call of a handle; what it asks for may be nonsense, which is told and changes nothing."""
    rows: dict[str, Callable[[], list[dict[str, Any]]]] = {
        "workers": watch.members.rows,
        "devices": lambda: devices(watch),
        "incidents": lambda: [*(incident.to_dict() for incident in watch.book.incidents), *watch.keeper.audit.rows],
        "checkpoints": watch.ledger.rows,
        "timeline": lambda: watch.chronicle.rows(time()),
    }
    if method in rows:
        return rows[method]()
    if method in ("quarantine", "release"):
        return _operator(watch, method, **kwargs)
    asked: dict[str, Callable[[], Awaitable[Any]]] = {
        "status": lambda: status(run, settings, watch, queue),
        "explain": lambda: _explain(watch, queue, **kwargs),
        "complete": lambda: queue.journal(run, "complete", {"completed": time()}),
        **dict.fromkeys(("loop-open", "loop-durable", "loop-drop"), lambda: _loop(watch, method, kwargs)),
    }
    if method in asked:
        return await asked[method]()
    return {REFUSED: f"dask-resilient on the scheduler has no method {one_line(str(method))!r}"}


async def _loop(watch: Watch, method: str, kwargs: dict[str, Any]) -> Any:
    """Do something for a loop; why that failed is told in words."""
    loops = Loops(watch)
    try:
        if method == "loop-open":
            return await loops.open(**kwargs)
        return await loops.drop(**kwargs) if method == "loop-drop" else loops.durable(**kwargs)
    except (OSError, ResilienceError, TimeoutError) as e:
        return {REFUSED: one_line(str(e) or repr(e), SHOWN)}


async def _explain(watch: Watch, queue: StoreQueue, name: object) -> Any:
    """Give a row a milestone of a name: what was found of it, and why not the rest."""
    with contextlib.suppress(TimeoutError):
        await queue.ask(lambda: None)  # what is compared just now comes first
    rows = [row.to_dict() for row in watch.resume.rows.values() if row.name == name]
    if rows:
        return rows
    if not watch.resume.on:
        return {REFUSED: f"nothing is known of {one_line(str(name))!r}: {watch.resume.off}"}
    known = sorted({row.name for row in watch.resume.rows.values()})
    names = ", ".join(map(repr, known[:SHOWN_NAMES])) or "none yet"
    return {REFUSED: f"this run has computed no milestone named {one_line(str(name))!r}; it has {names}"}


def _operator(watch: Watch, method: str, x: object, reason: object = "", by: object = "somebody") -> Any:
    """Do what an operator says, whose words go to logs, events and rows."""
    said = one_line(str(reason))
    if method == "quarantine" and not said:
        return {REFUSED: f"cannot quarantine {one_line(str(x))!r} without a reason: say in words why"}
    try:
        return watch.keeper.operator(method, x=str(x), reason=said, by=one_line(str(by)))
    except ValueError as e:
        return {REFUSED: one_line(str(e), SHOWN)}


def devices(watch: Watch) -> list[dict[str, Any]]:
    """Give a row a device that has a worker, or is out of service."""
    return [
        {
            "device": device.name,
            "host": device.host,
            "phase": str(device.phase),
            "since": device.since or None,
            "rule": device.cause.rule if device.cause else "",
            "evidence": lines(device.cause.evidence) if device.cause else [],
            "by": device.cause.by if device.cause else "",
            "until_released": device.locked,
            "workers": sorted(device.present),
        }
        for device in watch.keeper.book.devices.values()
        if device.phase.held or device.present
    ]
