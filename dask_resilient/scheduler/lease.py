"""Says in the store that this run lives, and which milestones it uses, so that nobody collects them as garbage."""

from __future__ import annotations

from tornado.ioloop import PeriodicCallback

from dask_resilient.core.garbage import RENEWAL
from dask_resilient.scheduler.ledger import Ledger
from dask_resilient.scheduler.queue import StoreQueue
from dask_resilient.store import PosixStore


def renew_now(store: PosixStore, run: str, ledger: Ledger) -> None:
    """Write the lease of a run anew, from any thread: for what it has just begun to use, or uses no more.

    Raises
    ------
    StoreError
        If it could not be written.
    """
    store.renew(run, ledger.own | set(ledger.claimed), keep=set(ledger.kept), ended=False)


class Lease:
    """The lease of one run, renewed while it lives; made on the scheduler's event loop.

    Parameters
    ----------
    queue
        The scheduler's way to the store.
    run
        Id of this life of the plugin.
    ledger
        Knows the milestones.
    """

    def __init__(self, queue: StoreQueue, run: str, ledger: Ledger) -> None:
        self._queue = queue
        self._run = run
        self._ledger = ledger
        self._timer = PeriodicCallback(self._renew, RENEWAL * 1000)
        self._timer.start()
        self._renew()

    def _renew(self, *, ended: bool = False) -> None:
        ledger, known = self._ledger, self._ledger.milestones()
        # Another thread may have claimed more by then.
        self._queue.renew(self._run, lambda: known | set(ledger.claimed), lambda: set(ledger.kept), ended=ended)

    def end(self) -> None:
        """Say that the run has ended; a run that cannot say so is found to have ended when its lease expires."""
        self._timer.stop()
        self._renew(ended=True)
