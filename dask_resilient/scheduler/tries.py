"""What faults of devices cost tasks: another try for nothing, another place to run, or nothing of that."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from time import time
from typing import TYPE_CHECKING, Any

from dask_resilient.core.actions import Cause, Culprit, Event, Judged
from dask_resilient.core.attribution import Blame, make_label
from dask_resilient.core.cuda_errors import TaskFault
from dask_resilient.core.faults import Class
from dask_resilient.core.quarantine import Book
from dask_resilient.core.readings import Reading
from dask_resilient.core.retries import FreeRetries
from dask_resilient.scheduler.verdicts import Record

if TYPE_CHECKING:
    from dask_resilient.scheduler.watch import Watch

logger = logging.getLogger("dask_resilient")


class Tries:
    """Gives tasks that met a device's fault another try.

    Parameters
    ----------
    watch
        Of the same scheduler.
    book
        The phases of devices.
    hear
        Takes what follows for a device, and gives the rows of what was decided.
    """

    def __init__(self, watch: Watch, book: Book, hear: Callable[[Event], list[dict[str, Any]]]) -> None:
        self._watch = watch
        self._book = book
        self._hear = hear
        self._retries = FreeRetries()
        self._labels: dict[str, tuple[str, bool]] = {}
        """What a task met last on each worker, and whether tasks are to blame for it."""
        self._rerun: set[Hashable] = set()
        """Tasks that were run elsewhere since they seemed to hang."""
        self._alarmed: set[tuple[str, Hashable]] = set()
        """Workers and tasks that were told of."""
        self.handled: Hashable = None
        """The task whose error is being handled: it is not taken back, so that the error ends it."""
        self.concerned = False
        """Whether `forget` changes anything."""

    def label(self, worker: str) -> tuple[str, bool]:
        """Give what a task met last on a worker, and whether tasks are to blame for it."""
        return self._labels.get(worker, ("", False))

    def removed(self, worker: str) -> None:
        """Take in that a worker is gone."""
        self._labels.pop(worker, None)
        self._alarmed = {one for one in self._alarmed if one[0] != worker}

    def forget(self, key: Hashable) -> None:
        """Take in that a task is gone for good."""
        self._retries.forget(key)
        self._rerun.discard(key)

    def quarantined(self, label: str) -> None:
        """Take in that a device is out of service for faults of a label."""
        self._retries.cleared(label)

    # -- errors --------------------------------------------------------------------------------------------------------

    def fault(self, worker: str, prefix: str, fault: TaskFault, blame: Blame) -> None:
        """Hear that a task met an error, before the device is judged for it."""
        label = make_label(prefix, fault)
        self._labels[worker] = (label, blame.culprit)
        if blame.culprit:
            self._hear(Culprit(label, blame.reason))

    def during(self, key: Hashable, worker: str, sick: bool, judge: Callable[[], None]) -> None:
        """Have a device judged for a task's error, then give the task another try if the device is held for it.

        Parameters
        ----------
        sick
            Whether the error is one for which a device or its process is left.
        judge
            Has it judged; whatever is decided leaves the task alone, whose error comes next.
        """
        self.handled = key
        try:
            judge()
        finally:
            self.handled = None
        member = self._watch.members.get(worker)
        if member is None:
            return
        if not self._book.phase(member.device).held:
            self._watch.keeper.enact.reopen(worker)
            return
        ts = self._watch.scheduler.tasks.get(key)
        on = getattr(ts, "processing_on", None)
        label, culprit = self.label(worker)
        # With nowhere else to go, one more try than the process that was replaced for it is all that it can get.
        elsewhere = bool(self._book.serving()) or not self._worn(member.device)
        entitled = sick and not culprit and elsewhere and on is not None and on.address == worker
        if entitled and self._retries.give(key, member.device, label):
            ts.retries += 1
            self.concerned = True
            self._watch.event("free-retry", worker=worker, key=str(key), error=label)

    def _worn(self, device: str) -> bool:
        """Say whether one more process of a device that fails would be one too many."""
        known = self._book.devices.get(device)
        return known is not None and known.struck_out(time(), self._book.times)

    # -- hangs ---------------------------------------------------------------------------------------------------------

    def hung(self, record: Record, key: Hashable, reading: Reading, asked: bool) -> None:
        """Hear that a task seems to hang: where a limit was set it is run elsewhere, once, by another process."""
        worker = record.member.worker
        if asked and key not in self._rerun:
            cause = Cause("work.hang", (reading.text,), label=f"hang: {key}")
            if any(row["actions"] for row in self._hear(Judged(worker, Class.KILL, cause))):
                self._rerun.add(key)
                self.concerned = True
        elif (worker, key) not in self._alarmed:
            self._alarmed.add((worker, key))
            why = "it has been run elsewhere once already" if asked else "no limit is set (resilience.probe.hang)"
            logger.warning("dask-resilient: worker %s: %s; %s", worker, reading.text, why)
            self._watch.event("hang", worker=worker, key=str(key), text=reading.text, declined=why)
