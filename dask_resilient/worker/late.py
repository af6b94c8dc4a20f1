"""Saves values of a worker that is to leave, at the scheduler's word: they are of this run only, and marked as late.

A value is read where it is, as it is: nothing moves between device, host and disk, and no digest of the task tells
whether it was changed since. A few are staged at a time, by a thread of their own that lives as long as there are any.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Iterable
from time import perf_counter
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from dask_resilient import partitions
from dask_resilient.core.outcome import Declined
from dask_resilient.internals.device_data import off_device, peek
from dask_resilient.worker.saver import Item, Saver

if TYPE_CHECKING:
    from dask_resilient.worker.side import Side

logger = logging.getLogger("dask_resilient")

AHEAD = 64_000_000
"""Bytes that are staged while the one before is written."""

WAIT = 60.0
"""Seconds for room among what is staged, and for a write: as long as a drain takes, if nobody says otherwise."""

GONE = "its value is no longer on this worker"
ON_DEVICE = "its value was on the device, where nothing can be believed any more"


class Late:
    """Stages values that no task is about to return.

    Parameters
    ----------
    side
        Of the same worker.
    """

    def __init__(self, side: Side) -> None:
        self._side = side
        self._todo: deque[tuple[Any, int, bool]] = deque()
        """Key, run, and whether the value may be on the device."""
        self._lock = threading.Lock()
        self._running = False
        self._good: frozenset[Any] | None = None
        """What was off the device when the process broke; None as long as it is whole."""

    # -- on the event loop -------------------------------------------------------------------------------------------

    def broken(self) -> None:
        """Take in that the context of the process is broken: what is off the device by now is all that can be saved."""
        if self._good is None:
            self._good = off_device(self._side.worker.data) or frozenset()

    def ask(self, keys: Iterable[tuple[Any, int]], *, spilled_only: bool) -> None:
        """Save the values of some keys, each with the run that made it.

        Parameters
        ----------
        spilled_only
            Whether only what is in host memory or on disk already is saved; the scheduler is told first what that is.
        """
        keys, device = list(keys), not (spilled_only or self._good is not None)
        good = None if device else off_device(self._side.worker.data)
        if good is not None and self._good is not None:
            good &= self._good
        if not device:
            taken = [(key, run) for key, run in keys if good is not None and key in good]
            if spilled_only:
                self._side.send({"kind": "late", "keys": None if good is None else [key for key, _ in taken]})
            else:
                for key, _ in set(keys) - set(taken):
                    self._not_saved(key, ON_DEVICE)
            keys = taken
        with self._lock:
            self._todo.extend((key, run, device) for key, run in keys)
            if self._todo and not self._running:
                self._running = True
                threading.Thread(target=self._run, name="dask-resilient-late", daemon=True).start()

    def stop(self) -> None:
        """Begin no more saves."""
        with self._lock:
            self._todo.clear()

    # -- the thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        staged: deque[tuple[str, int]] = deque()
        while True:
            with self._lock:
                if not self._todo:
                    self._running = False
                    return
                key, run, device = self._todo.popleft()
            try:
                one = self._save(key, run, device, staged)
            except Exception as e:
                logger.warning("dask-resilient: could not save %r late", key, exc_info=True)
                one = f"saving it late failed: {e!r}"
            if one is not None:
                self._not_saved(key, one)

    def _save(self, key: Any, run: int, device: bool, before: deque[tuple[str, int]]) -> str | None:
        """Stage one value and queue it; give the reason if it is not taken."""
        begin, saver = perf_counter(), self._side.saver
        if saver is None or saver.off is not None:
            return self._side.reason or (saver.off if saver is not None else None) or "nothing is saved on this worker"
        try:
            value = peek(self._side.worker.data, key, device=device)
        except KeyError:
            return GONE
        staged = partitions.stage(value)
        del value
        if isinstance(staged, Declined):
            return staged.reason
        _let_end(saver, before, AHEAD - staged.nbytes)
        facts = self._side.facts(key, begin)
        facts |= {"temporary": True, "producer": {**facts["producer"], "late": True}}
        item = Item(uuid4().hex, key, staged, facts, late=True)
        reason = saver.queue(item, WAIT)
        if reason is None:
            before.append((item.attempt, staged.nbytes))
            self._side.send(
                {
                    "kind": "staged",
                    "late": True,
                    "key": key,
                    "run_id": run,
                    "attempt": item.attempt,
                    "nbytes": staged.nbytes,
                }
            )
        return reason

    def _not_saved(self, key: Any, reason: str) -> None:
        self._side.send(
            {"kind": "not-saved", "late": True, "key": key, "attempt": None, "reason": reason, "failed": False}
        )


def _let_end(saver: Saver, before: deque[tuple[str, int]], most: int) -> None:
    """Wait until no more than so many bytes of those before are staged."""
    while before and sum(nbytes for _, nbytes in before) > most:
        attempt, _ = before.popleft()
        saver.ended(attempt, WAIT)
