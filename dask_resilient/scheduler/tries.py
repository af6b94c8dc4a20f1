"""What faults of devices cost tasks: another try for nothing, another place to run, or nothing of that."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from time import time
from typing import TYPE_CHECKING, Any

from dask_resilient.core.actions import Cause, Culprit, Event, Judged, Phase
from dask_resilient.core.attribution import Blame, make_label
from dask_resilient.core.cuda_errors import TaskFault
from dask_resilient.core.faults import Class
from dask_resilient.core.quarantine import Book
from dask_resilient.core.readings import Reading
from dask_resilient.core.retries import FreeRetries
from dask_resilient.internals.rebind import is_bound
from dask_resilient.scheduler.members import Member
from dask_resilient.scheduler.verdicts import Record

if TYPE_CHECKING:
    from dask_resilient.scheduler.watch import Watch

logger = logging.getLogger("dask_resilient")


@dataclass(frozen=True, slots=True)
class Met:
    """An error that a task met."""

    label: str = ""
    """Its prefix and the error."""
    culprit: bool = False
    """Whether tasks are known to be to blame for it."""
    passes: bool = False
    """Whether it tells nothing of the process, where its text alone would."""


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
        self._met: dict[str, Met] = {}
        """By worker, the last."""
        self._rerun: set[Hashable] = set()
        """Tasks that were run elsewhere since they seemed to hang."""
        self._alarmed: set[tuple[str, Hashable]] = set()
        """Workers and tasks that were told of."""
        self.handled: Hashable = None
        """The task whose error is being handled: it is not taken back, so that the error ends it."""
        self.concerned = False
        """Whether `forget` changes anything."""

    def met(self, worker: str) -> Met:
        """Give what a task met last on a worker."""
        return self._met.get(worker, Met())

    def removed(self, worker: str) -> None:
        """Take in that a worker is gone."""
        self._met.pop(worker, None)
        self._alarmed = {one for one in self._alarmed if one[0] != worker}

    def forget(self, key: Hashable) -> None:
        """Take in that a task is gone for good."""
        self._retries.forget(key)
        self._rerun.discard(key)

    def quarantined(self, label: str) -> None:
        """Take in that a device is out of service for faults of a label."""
        self._retries.cleared(label)

    # -- errors --------------------------------------------------------------------------------------------------------

    def fault(self, worker: str, device: str, prefix: str, fault: TaskFault, blame: Blame) -> None:
        """Hear that a task met an error, before the device is judged for it."""
        label = make_label(prefix, fault)
        self._met[worker] = Met(label, blame.culprit, blame.passes)
        if blame.culprit:
            self._hear(Culprit(label, f"{blame.reason}; such errors pass, as in plain Dask", device))

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
        met = self.met(worker)
        entitled = sick and not met.culprit and not met.passes and on is not None and on.address == worker
        if entitled and self._hopeful(ts, member) and self._retries.give(key, member.device, met.label):
            ts.retries += 1
            self.concerned = True
            self._watch.event("free-retry", worker=worker, key=str(key), error=met.label)

    def _hopeful(self, ts: Any, member: Member) -> bool:
        """Say whether another try can end in anything else: elsewhere, or in a process that takes this one's place.

        One more try than the process that was replaced for it is all that a task can get that can go nowhere else.
        """
        device = self._book.devices[member.device]
        worn = device.struck_out(time(), self._book.times)
        if is_bound(self._watch.scheduler, ts.key, member.worker):
            return device.phase is Phase.PROBATION and member.worker in device.leaving and not worn
        return bool(self._book.serving()) or not worn

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
