"""Writes staged partitions in the background, within bounded host memory.

A task stages its value and queues it here; the scheduler answers with a place (`grant`); one thread writes. Nothing in
here ever fails the task: what cannot be saved is reported as "not saved" with the reason. What a worker may hold, how
long a task may wait, and when to give up is decided in :mod:`dask_resilient.core.backlog`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from time import monotonic, time
from typing import Any

from dask_resilient.core.backlog import allowed_wait, fits, hopeless
from dask_resilient.core.manifest import Place, Receipt
from dask_resilient.core.milestones import Milestone, read_description
from dask_resilient.errors import ChangedWhileWriting, StoreError
from dask_resilient.partitions import trim
from dask_resilient.protocols import PartitionStore, Staged

logger = logging.getLogger("dask_resilient")

Send = Callable[[Mapping[str, Any]], None]


@dataclass(slots=True)
class Item:
    """One staged partition on its way into the store."""

    attempt: str
    key: Any
    staged: Staged
    facts: Mapping[str, Any]
    description: bytes | None = None
    """The milestone's, compressed; None = the key is none, and its copy is for this run only."""
    place: Place | None = None
    begun: float | None = field(default=None)
    ids: frozenset[str] = frozenset()
    """The milestones by which other runs know it, under other keys maybe."""
    late: bool = False
    """Whether it was asked for since the worker is to leave; those come a few at a time."""


class Saver:
    """Holds what is staged on one worker, and the thread that writes it.

    Parameters
    ----------
    store
        Where to.
    limit
        Bytes that may be staged at a time.
    threads
        Threads of the worker that run tasks.
    task_wait, run_wait, stuck
        Settings ``resilience.save.*``: seconds, share, seconds.
    send
        Sends a message to the scheduler; may be called from any thread.
    """

    def __init__(
        self,
        store: PartitionStore,
        *,
        limit: int,
        threads: int,
        task_wait: float,
        run_wait: float,
        stuck: float,
        send: Send,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._store = store
        self._limit = limit
        self._threads = threads
        self._task_wait = task_wait
        self._run_wait = run_wait
        self._stuck = stuck
        self._send = send
        self._clock = clock
        self._started = clock()
        self._waited = 0.0
        self._failures = 0
        self._declared: set[str] = set()
        self._items: dict[str, Item] = {}
        self.staged = 0
        """Bytes that are staged now."""
        self._changed = threading.Condition()
        self._closing = False
        self.off: str | None = None
        """Why nothing is saved any more on this worker, None while it is."""
        self._thread = threading.Thread(target=self._run, name="dask-resilient-saver", daemon=True)
        self._thread.start()

    # -- called inside tasks -----------------------------------------------------------------------------------------

    def queue(self, item: Item, wait: float | None = None) -> str | None:
        """Queue a partition, waiting for room; give the reason if it is not taken.

        Parameters
        ----------
        wait
            Seconds; None = as long as a task may wait.
        """
        nbytes = item.staged.nbytes
        with self._changed:
            begun = self._clock()
            in_task = wait is None
            if wait is None:
                wait = allowed_wait(self._task_wait, self._run_wait, begun - self._started, self._threads, self._waited)

            def ready() -> bool:
                return self.off is not None or self._closing or fits(nbytes, self.staged, self._limit)

            taken = self._changed.wait_for(ready, timeout=wait)
            self._waited += (self._clock() - begun) if in_task else 0.0
            if self.off is not None:
                return self.off
            if self._closing:
                return "the plugin is leaving"
            if not taken:
                return f"backlog: {self.staged:,} bytes are staged already and the writer did not catch up"
            self._items[item.attempt] = item
            self.staged += nbytes
        return None

    def _let_go(self, attempt: str) -> None:
        """Take an attempt out; the lock is held."""
        item = self._items.pop(attempt, None)
        if item is not None:
            self.staged -= item.staged.nbytes
        self._changed.notify_all()

    # -- called on the worker's event loop ---------------------------------------------------------------------------

    def grant(self, key: Any, attempt: str, place: Place) -> None:
        """Let an attempt be written, or say that it was let go of before the scheduler had heard of it."""
        with self._changed:
            item = self._items.get(attempt)
            if item is not None:
                item.place = place
                self._changed.notify_all()
                return
        reason = "let go of before its turn: memory was short"
        self._send({"kind": "not-saved", "key": key, "attempt": attempt, "reason": reason, "failed": False})

    def drop(self, attempt: str) -> None:
        """Let go of an attempt that nobody wants, unless it is being written."""
        with self._changed:
            item = self._items.get(attempt)
            if item is not None and item.begun is None:
                self._let_go(attempt)

    def ended(self, attempt: str, wait: float) -> bool:
        """Wait until an attempt is written or let go of; say whether it is."""
        with self._changed:
            return self._changed.wait_for(lambda: attempt not in self._items, timeout=wait)

    def shed(self, reason: str, *, late: bool = True) -> None:
        """Let go of everything that is not being written, with what is saved late or without."""
        with self._changed:
            gone = [item for item in self._items.values() if item.begun is None and (late or not item.late)]
            for item in gone:
                self._let_go(item.attempt)
        for item in gone:
            self._not_saved(item, reason)

    def check(self) -> None:
        """Switch saving off if one write does not come back: a hanging store must not hold memory."""
        now = self._clock()
        with self._changed:
            begun = [item.begun for item in self._items.values() if item.begun is not None]
        if begun and now - min(begun) > self._stuck and self.off is None:
            self.switch_off(f"a write has not ended after {self._stuck:g} s")

    def switch_off(self, reason: str) -> None:
        """Save nothing more on this worker, with one warning."""
        with self._changed:
            if self.off is not None:
                return
            self.off = f"saving is switched off on this worker: {reason}"
        logger.warning("dask-resilient: %s; the computation goes on unprotected", self.off)
        self._send({"kind": "saving-off", "reason": reason})
        self.shed(self.off)

    def close(self) -> None:
        """Take nothing more and end the thread after the write under way; does not wait for it."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self.shed("the plugin has left")

    # -- the thread --------------------------------------------------------------------------------------------------

    def _next(self) -> Item | None:
        with self._changed:
            while True:
                for item in self._items.values():
                    if item.place is not None:
                        item.begun = self._clock()
                        return item
                if self._closing:
                    return None
                self._changed.wait()

    def _run(self) -> None:
        while (item := self._next()) is not None:
            try:
                self._write(item)
            finally:
                with self._changed:
                    self._let_go(item.attempt)
            # The loop variable must not keep the last partition alive while the thread waits for the next one.
            del item
        trim()

    def _write(self, item: Item) -> None:
        assert item.place is not None
        assert item.begun is not None
        try:
            receipt = self._write_or_find(item.place, item)
        except ChangedWhileWriting:
            self._not_saved(item, "changed while it was being written")
        except Exception as e:
            self._failures += 1
            self._not_saved(item, f"the store failed: {e}", failed=True)
            if hopeless(self._failures, getattr(e, "errno", None)):
                self.switch_off(str(e))
        else:
            self._failures = 0
            self._send(
                {
                    "kind": "committed",
                    "key": item.key,
                    "attempt": item.attempt,
                    "stored_attempt": receipt.place.attempt,
                    "nbytes": receipt.nbytes,
                    "stored_nbytes": receipt.stored_nbytes,
                    "seconds": self._clock() - item.begun,
                }
            )

    def _write_or_find(self, place: Place, item: Item) -> Receipt:
        """Write the attempt; where the race is lost, use the winner's.

        So it is when a worker died between its commit and the message about it, and the task ran again.
        """
        if item.description is not None and place.milestone not in self._declared:
            made = read_description(item.description)
            self._store.declare(Milestone(place.milestone, item.facts["run"], time(), made))
            self._declared.add(place.milestone)
        try:
            return self._store.write(place, item.staged, item.facts)
        except FileExistsError:
            winner = self._store.winner(place)
            if winner is None or (place.milestone not in item.ids and winner.key != item.facts["key"]):
                raise StoreError(f"{place.receipt!r} exists, but is no receipt of this partition") from None
            return winner

    def _not_saved(self, item: Item, reason: str, *, failed: bool = False) -> None:
        self._send(
            {"kind": "not-saved", "key": item.key, "attempt": item.attempt, "reason": reason, "failed": failed}
            | ({"late": True} if item.late else {}),
        )
