"""What the report says besides the rows."""

from __future__ import annotations

from time import time
from typing import Any

from dask_resilient.config import Settings
from dask_resilient.scheduler.queue import StoreQueue
from dask_resilient.scheduler.watch import Watch


async def status(run: str, settings: Settings, watch: Watch, queue: StoreQueue) -> dict[str, Any]:
    """Say of a run: is it protecting, with what, since when."""
    return {
        "run": run,
        "store": settings.store,
        "survives": queue.store.describe() if queue.store is not None else "",
        "store_reason": await queue.state(),
        "recovery_off": watch.recovery_off,
        "quarantine": _quarantine(settings),
        "forgets": queue.forgets,
        "resume": settings.resume,
        "wrong": list(watch.copies.distrust.wrong.values()),
        "loads": dict(watch.copies.endings),
        "milestones": watch.ledger.summary(),
        "totals": watch.chronicle.sums(time()),
    }


def _quarantine(settings: Settings) -> str:
    if not settings.quarantine_enabled:
        return "off"
    return "observe" if settings.quarantine_observe else "on"
