"""Errors of CUDA that tasks meet: which process they cost, and whether task or device is to blame."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from time import time
from typing import Any

from dask_resilient.core import attribution
from dask_resilient.core.allocations import ALLOCATIONS, Allocations
from dask_resilient.core.attribution import Attribution
from dask_resilient.core.cuda_errors import Kind, TaskFault
from dask_resilient.core.faults import Class, Suspect
from dask_resilient.core.passing import Passing
from dask_resilient.core.readings import Name, Reading, task_error
from dask_resilient.internals.rebind import is_bound
from dask_resilient.scheduler.verdicts import Record, Verdicts

NAMED = 5
"""Tasks that the evidence names."""


class Blame:
    """Takes in failures and, as long as some are not settled, successes.

    Parameters
    ----------
    scheduler
        The `distributed.Scheduler`.
    verdicts
        Where what was found is judged.
    event
        Logs a structured event.
    heard
        Acts on an error, before the device is judged for it.
    """

    def __init__(
        self,
        scheduler: Any,
        verdicts: Verdicts,
        event: Callable[..., None],
        heard: Callable[[str, str, str, TaskFault, attribution.Blame], None] = lambda *_: None,
    ) -> None:
        self._heard = heard
        self._scheduler = scheduler
        self._verdicts = verdicts
        self._event = event
        self._attribution = Attribution()
        self._allocations = Allocations()
        self._passing = Passing()
        self._dead: set[str] = set()
        """Workers whose process can compute nothing on its device any more: whatever fails there tells nothing new."""
        self.listening = False
        """Whether `transition` is to be called: while nothing has failed it would change nothing."""

    def fault(self, worker: str, msg: Mapping[str, Any]) -> None:
        """Hear that a task met an error of CUDA."""
        record = self._verdicts.records.get(worker)
        if record is None:
            return
        now, key, device = time(), msg["key"], record.member.device
        fault = TaskFault.from_dict(msg["fault"])
        again = worker in self._dead and fault.sticky
        if again and record.member.gpu:
            # What runs in its other threads fails too.
            blame = attribution.Blame(Suspect.UNKNOWN, f"{fault.name}: it follows from an earlier one of its process")
        else:
            blame = self._attribution.failed(key, msg["prefix"], device, fault, again=again)
        if fault.cls.rank >= Class.KILL.rank and not record.member.gpu:
            only_there = len(self._scheduler.workers) == 1 or is_bound(self._scheduler, key, worker)
            passes = self._passing.failed(worker, key, msg["prefix"], only_there) or self._precious(worker)
            blame = replace(blame, reason=f"{blame.reason}; {passes}", passes=True) if passes else blame
        if fault.sticky:
            self._dead.add(worker)
        if blame.passes or (blame.culprit and not record.member.gpu):
            # It says nothing of the device, so the device is not said to be sick; nor for what tasks met there before.
            record.seen.drop_kind(Name.CUDA_ERROR)
        elif fault.kind is Kind.CUDA:
            record.seen.add(task_error(device, fault, now))
        elif fault.kind is Kind.ALLOCATION and self._allocations.failed(worker, key, msg["prefix"]):
            text = f"{ALLOCATIONS} or more tasks in a row ran out of memory here, and not elsewhere"
            record.seen.add(Reading("tasks", device, Name.EXHAUSTED, True, now, text))
        self._heard(worker, device, msg["prefix"], fault, blame)
        self._event(
            "task-fault",
            worker=worker,
            device=device,
            key=str(key),
            error=fault.name,
            code=fault.code,
            sticky=fault.sticky,
            suspect=str(blame.suspect),
            reason=blame.reason,
            text=fault.text,
        )
        self._settle(now, record)

    def _precious(self, worker: str) -> str:
        """Say why a process must not be lost for a text, empty if it may."""
        ws = self._scheduler.workers.get(worker)
        return "its worker has actors, which nothing could bring back" if ws is not None and ws.actors else ""

    def transition(self, key: Hashable, finish: str) -> None:
        """Hear of a transition of the scheduler's."""
        if finish == "memory":
            self.done(key)
        elif finish == "forgotten":
            self.forget(key)

    def done(self, key: Hashable) -> None:
        """Take in that a task succeeded."""
        ts = self._scheduler.tasks.get(key)
        concerned = False
        for ws in ts.who_has or () if ts is not None else ():
            record = self._verdicts.records.get(ws.address)
            if record is None:
                continue
            if self._attribution.concerns(key, record.member.device):
                concerned = True
                self._attribution.succeeded(key, record.member.device)
            self._passing.succeeded(ws.address, ts.prefix.name)
            if self._allocations.listening:
                self._allocations.succeeded(ws.address, ts.prefix.name)
                if Name.EXHAUSTED in record.seen:
                    record.seen.drop(Name.EXHAUSTED)
                    self._verdicts.judge(record, time())
        # A failure that nobody tries again is listened for as long as its future is held: thousands of tasks may pass.
        if concerned:
            self._settle(time())
        else:
            self._listen()

    def forget(self, key: Hashable) -> None:
        """Take in that a task is gone for good."""
        self._attribution.forget(key)
        self._passing.forget(key)
        self._listen()

    def removed(self, address: str) -> None:
        """Take in that a worker, and its process, is gone."""
        self._allocations.gone(address)
        self._passing.gone(address)
        self._dead.discard(address)
        self._listen()

    def out_of_service(self, device: str, label: str) -> None:
        """Take in that a device is not to be trusted, and for which error of tasks, if for one."""
        self._attribution.out_of_service(device, label)

    def released(self, device: str) -> None:
        """Take in that a device is back in service."""
        self._attribution.released(device)

    def sound(self, address: str) -> None:
        """Take in that a worker's process computes right on its GPU."""
        record = self._verdicts.records.get(address)
        if record is not None and record.member.gpu:
            self._dead.discard(address)

    def tick(self, now: float) -> None:
        """Say again what is still so."""
        if self.listening:
            self._settle(now)

    def _listen(self) -> None:
        self.listening = self._attribution.listening or self._allocations.listening or self._passing.listening

    def _settle(self, now: float, changed: Record | None = None) -> None:
        """Judge the devices that the evidence speaks against by now, or no more."""
        self._listen()
        for record in self._verdicts.records.values():
            score = self._attribution.score(record.member.device)
            if score.indicted:
                keys = ", ".join(str(failure.key) for failure in score.failures[:NAMED])
                text = f"{len(score.failures)} tasks failed here and succeeded elsewhere: {keys}"
                record.seen.add(Reading("tasks", record.member.device, Name.INDICTED, True, now, text))
            elif Name.INDICTED in record.seen:
                record.seen.drop(Name.INDICTED)
            elif record is not changed:
                continue
            self._verdicts.judge(record, now)
