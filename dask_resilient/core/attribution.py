"""Task or device: who is to blame for errors of CUDA that tasks met.

1. An error counts against a device once the same task has succeeded on another one; where its row suspects the device
   itself (uncorrectable memory, a link), at once. A task counts once.
2. One code on two devices in service blames the task if it is one task, else everything of its prefix: such errors
   count against no device any more, also in hindsight. A device that is out of service for that very code still counts
   for a task that failed there. Where the row suspects the device, it takes one task that fails on two.
3. Errors of communication and failed allocations never count.

Whether a device is indicted is a sequential test (Wald's, in Page's form: successes never take it below zero, since
what a device did well long ago says nothing of a fault that began today).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from dask_resilient.core.cuda_errors import Kind, TaskFault
from dask_resilient.core.faults import Class, Suspect

TRAIL = 100
"""Failures and successes of a device that are remembered at most after a failure, the newest."""


@dataclass(frozen=True, slots=True)
class Sprt:
    """A sequential test between a device that works and one that is sick.

    The defaults need two failures without a success between them, as Spark's exclusion of executors does.
    """

    healthy: float = 0.01
    """Share of tasks that fail for no known reason on a device that works."""
    sick: float = 0.5
    """Share that fails on a sick one."""
    false_alarm: float = 1e-3
    """Probability of indicting a device that works."""
    missed: float = 0.05
    """Probability of clearing one that is sick."""

    @property
    def failure(self) -> float:
        """Give what a failure adds."""
        return math.log(self.sick / self.healthy)

    @property
    def success(self) -> float:
        """Give what a success adds: less than zero."""
        return math.log((1 - self.sick) / (1 - self.healthy))

    @property
    def bound(self) -> float:
        """Give where a device is indicted."""
        return math.log((1 - self.missed) / self.false_alarm)


@dataclass(frozen=True, slots=True)
class Failure:
    """One error of CUDA that a task met."""

    key: Hashable
    prefix: str
    device: str
    code: int | str
    """Of CUDA, or the name of an error without a number."""
    suspect: Suspect
    label: str
    """Its prefix and the error, see `make_label`."""
    elsewhere: frozenset[str] = frozenset()
    """Devices on which the task had succeeded when it was forgotten."""


@dataclass(frozen=True, slots=True)
class Score:
    """Where the test of one device stands."""

    value: float
    bound: float
    failures: tuple[Failure, ...]
    """Those that count."""

    @property
    def indicted(self) -> bool:
        """Say whether the device is taken to be sick."""
        return self.value >= self.bound


@dataclass(frozen=True, slots=True)
class Blame:
    """Who is to blame for one failure, as far as that is known by now."""

    suspect: Suspect
    reason: str
    culprit: bool = False
    """Whether it is known that tasks are to blame: devices that have nothing else in common met it."""
    passes: bool = False
    """Whether it tells nothing of its process, where the error's text alone would (`core.passing`)."""


def make_label(prefix: str, fault: TaskFault) -> str:
    """Name what tasks of one prefix met, as ``sum: cudaErrorIllegalAddress``."""
    return f"{prefix}: {fault.name}"


Trail = list[Failure | None]
"""What happened on one device since its test last stood at zero: failures, and None for each success."""


def _score(trail: Trail, test: Sprt) -> float:
    value = 0.0
    for step in trail:
        value = max(0.0, value + (test.success if step is None else test.failure))
    return value


class Attribution:
    """The book of failures of one cluster.

    Parameters
    ----------
    test
        The test of devices.
    """

    def __init__(self, test: Sprt | None = None) -> None:
        self.test = test or Sprt()
        self._trails: dict[str, Trail] = {}
        self._failed: dict[Hashable, dict[str, Failure]] = {}
        self._succeeded: dict[Hashable, set[str]] = {}
        self._met: dict[tuple[str, Suspect], dict[str, set[Hashable]]] = {}
        """By label, and by whom the error itself suspects: on which devices which tasks met it."""
        self._culprits: set[str] = set()
        """Labels for which tasks are known to be to blame."""
        self._out: dict[str, str] = {}
        """Devices out of service, and the label for which, empty if for no task's error."""

    # -- what happened -------------------------------------------------------------------------------------------------

    def failed(self, key: Hashable, prefix: str, device: str, fault: TaskFault, *, again: bool = False) -> Blame:
        """Take in that a task met an error; give who is to blame by now.

        With `again` its process had met one before: that speaks against tasks as ever, and no more against the device.
        """
        if fault.kind is Kind.COMMUNICATION:
            return Blame(Suspect.UNKNOWN, f"{fault.name}: the other end may be at fault, so nobody is blamed")
        if fault.kind is Kind.ALLOCATION:
            return Blame(Suspect.UNKNOWN, "out of memory says nothing about the device's health")
        if fault.cls.rank < Class.KILL.rank:
            return Blame(Suspect.TASK, f"{fault.name} is an error in how CUDA is used")
        code, label = fault.name if fault.code is None else fault.code, make_label(prefix, fault)
        failure = Failure(key, prefix, device, code, fault.suspect, label)
        before = self._failed.setdefault(key, {})
        if device not in before:
            before[device] = failure
            if not again and device not in self._out:
                trail = self._trails.setdefault(device, [])
                trail.append(failure)
                del trail[:-TRAIL]
        self._met.setdefault((label, failure.suspect), {}).setdefault(device, set()).add(key)
        blame = self.blame(failure)
        if blame.culprit:
            self._culprits.add(label)
            self._out = {device: why for device, why in self._out.items() if why != label}
        return blame

    def succeeded(self, key: Hashable, device: str) -> None:
        """Take in that a task succeeded."""
        if key in self._failed:
            self._succeeded.setdefault(key, set()).add(device)
        trail = self._trails.get(device)
        if trail is not None:
            trail.append(None)
            if _score(trail, self.test) == 0.0:
                # Also if every failure counted, nothing of them would be left.
                del self._trails[device]

    def forget(self, key: Hashable) -> None:
        """Take in that a task is gone for good: what is known of it by now stays, and nothing more is waited for."""
        elsewhere = frozenset(self._succeeded.pop(key, ()))
        for device, failure in self._failed.pop(key, {}).items():
            settled = replace(failure, elsewhere=elsewhere - {device})
            if trail := self._trails.get(device):
                trail[:] = [settled if step is not None and step.key == key else step for step in trail]
            self._met.get((failure.label, failure.suspect), {}).get(device, set()).discard(key)

    def out_of_service(self, device: str, label: str = "") -> None:
        """Take in that a device is not to be trusted: what fails there says nothing about tasks.

        Parameters
        ----------
        device
            Its name.
        label
            For which error of tasks it is out of service: a task that met it there may still turn out to be to blame.
        """
        self._out[device] = label
        # Its test is over. Else no new process would ever be found sound: it gets no tasks that could succeed there.
        self._trails.pop(device, None)

    def released(self, device: str) -> None:
        """Take in that a device is back in service: its test begins anew."""
        self._out.pop(device, None)
        self._trails.pop(device, None)
        for devices in self._met.values():
            devices.pop(device, None)

    @property
    def listening(self) -> bool:
        """Say whether it matters what tasks do; else `succeeded` and `forget` change nothing."""
        return bool(self._trails or self._failed)

    def concerns(self, key: Hashable, device: str) -> bool:
        """Say whether a success of this task on this device changes anything."""
        return key in self._failed or device in self._trails

    # -- what follows --------------------------------------------------------------------------------------------------

    def score(self, device: str) -> Score:
        """Give where the test of a device stands."""
        trail = [step for step in self._trails.get(device, ()) if step is None or self._counts(step)]
        failures = tuple(step for step in trail if step is not None)
        return Score(_score(trail, self.test), self.test.bound, failures)

    def indicted(self) -> Iterator[str]:
        """Give the devices that are taken to be sick."""
        return (device for device in self._trails if self.score(device).indicted)

    def blame(self, failure: Failure) -> Blame:
        """Give who is to blame for a failure by now."""
        devices = self._mirror(failure)
        if len(devices) > 1:
            same = [device for device, keys in devices.items() if failure.key in keys]
            who = f"task {failure.key!r} is" if len(same) > 1 else f"tasks {failure.prefix!r} are"
            return Blame(Suspect.TASK, f"{failure.code} on {', '.join(sorted(devices))}: {who} to blame", True)
        if failure.suspect is Suspect.DEVICE:
            return Blame(Suspect.DEVICE, f"{failure.code} is an error of the device itself")
        if elsewhere := self._elsewhere(failure):
            return Blame(Suspect.DEVICE, f"task {failure.key!r} succeeded on {', '.join(sorted(elsewhere))}")
        return Blame(failure.suspect, f"{failure.code} was met on {failure.device} only, and not yet tried elsewhere")

    def _counts(self, failure: Failure) -> bool:
        """Say whether a failure counts against its device."""
        return self.blame(failure).suspect is Suspect.DEVICE

    def _mirror(self, failure: Failure) -> dict[str, set[Hashable]]:
        """Give the devices on which the prefix met the code, with the tasks, where that speaks against the tasks."""
        met = self._met.get((failure.label, failure.suspect), {})
        same = {device for device, keys in met.items() if failure.key in keys}
        trusted = {
            device: keys
            for device, keys in met.items()
            if device not in self._out or (self._out[device] == failure.label and device in same)
        }
        enough = failure.suspect is not Suspect.DEVICE or failure.label in self._culprits
        return trusted if enough or len(same & trusted.keys()) > 1 else {}

    def _elsewhere(self, failure: Failure) -> AbstractSet[str]:
        return failure.elsewhere or self._succeeded.get(failure.key, set()) - {failure.device}
