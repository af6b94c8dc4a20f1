"""Tasks that are bound to a worker by its address, once its process was replaced.

Dask makes addresses of the workers that a user binds tasks to, and a nanny starts the next process at another address.
So after a replacement such a task would wait for ever, in the state "no-worker", where without us it would have run.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from time import time
from typing import Any

from dask.typing import Key


def rebind(scheduler: Any, heirs: Mapping[str, str]) -> list[Key]:
    """Bind tasks that wait for a worker that is gone to the one that has taken its place.

    Parameters
    ----------
    scheduler
        The `distributed.Scheduler`; not in a transition.
    heirs
        Addresses of workers that are gone, and of those in their place.

    Returns
    -------
    list of Key
        What was bound anew.
    """
    unrunnable = ((ts, ts.worker_restrictions or ()) for ts in scheduler.unrunnable)
    bound = [ts for ts, addresses in unrunnable if not heirs.keys().isdisjoint(addresses)]
    for ts in bound:
        ts.worker_restrictions = {heirs.get(address, address) for address in ts.worker_restrictions}
    keys = [ts.key for ts in sorted(bound, key=lambda ts: ts.priority, reverse=True)]
    if keys:
        scheduler.transitions(dict.fromkeys(keys, "processing"), f"resilience-rebind-{time()}")
    return keys


def stranded(scheduler: Any, gone: Collection[str]) -> dict[str, int]:
    """Count the tasks that wait for a worker that is gone, by its address.

    Parameters
    ----------
    scheduler
        The `distributed.Scheduler`.
    gone
        Addresses.
    """
    counts: dict[str, int] = {}
    for ts in scheduler.unrunnable:
        for address in ts.worker_restrictions or ():
            if address in gone and ts.worker_restrictions.isdisjoint(scheduler.workers):
                counts[address] = counts.get(address, 0) + 1
    return counts


def is_bound(scheduler: Any, key: Key, worker: str) -> bool:
    """Say whether of the workers that take tasks at most this one may run a task, for what the user wants of them."""
    ts = scheduler.tasks.get(key)
    if ts is None:
        return True
    valid = scheduler.valid_workers(ts)
    return valid is not None and not ts.loose_restrictions and {ws.address for ws in valid} <= {worker}
