"""What happens to devices and what is done about it: the events and actions of `dask_resilient.core.quarantine`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from dask_resilient.core.faults import Class

OURS = "dask-resilient"
"""Who decides, where no operator does."""


class Phase(StrEnum):
    """Where a device stands."""

    ACTIVE = "active"
    """It is in service."""
    SUSPECT = "suspect"
    """It gets no tasks until it is known whether it is sick."""
    DRAINING = "draining"
    """It gets no tasks, and what it holds is saved or moved."""
    QUARANTINED = "quarantined"
    """Out of service; it comes back through an operator, or an explicit sign and a passed canary."""
    PROBATION = "probation"
    """Its process is being replaced; the next one gets tasks after a canary."""

    @property
    def held(self) -> bool:
        """Say whether its workers get no tasks."""
        return self is not Phase.ACTIVE


@dataclass(frozen=True, slots=True)
class Cause:
    """Why something is decided."""

    rule: str
    evidence: tuple[str, ...] = ()
    by: str = OURS
    fact: bool = False
    """Whether it is a fact rather than a judgement: facts are enacted whatever it costs."""
    label: str = ""
    """What failed, where a task did: its prefix and code. Strikes of one label are taken back together."""
    culprit: bool = False
    """Whether it is known that tasks are to blame: the process is dead all the same, but it is no strike."""


# -- events ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Joined:
    """A worker joined, or a worker's device became known."""

    worker: str
    device: str
    host: str = ""


@dataclass(frozen=True, slots=True)
class Left:
    """A worker is gone."""

    worker: str


@dataclass(frozen=True, slots=True)
class Judged:
    """The verdict about a worker's device is this now."""

    worker: str
    cls: Class | None
    """What is asked for; None = it is in doubt whether the device is sick."""
    cause: Cause
    check: bool = False
    """Whether the process may be sound all the same: unless one failed before, it is tried before it has to go."""
    nanny: bool = True
    """Whether another process would take its place."""
    sign: bool = False
    """Whether the device itself says that it may be used again: nothing is wrong, and the driver wants nothing done."""


@dataclass(frozen=True, slots=True)
class Drained:
    """What a worker held is saved or moved, or cannot be."""

    worker: str


@dataclass(frozen=True, slots=True)
class Tried:
    """The canary that was asked for has ended."""

    worker: str
    result: str
    """``right``, ``wrong`` or ``unknown``."""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Culprit:
    """Tasks of one label are to blame: what they cost devices is taken back."""

    label: str
    reason: str = ""
    device: str = ""
    """Where it turned out; empty if nothing is to be told of it."""


@dataclass(frozen=True, slots=True)
class Quarantine:
    """An operator wants a device out of service."""

    device: str
    by: str
    reason: str


@dataclass(frozen=True, slots=True)
class Release:
    """An operator wants a device back."""

    device: str
    by: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


Event = Joined | Left | Judged | Drained | Tried | Culprit | Quarantine | Release | Tick

# -- actions -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Avoid:
    """Give a worker no more tasks, and take back those that do not execute yet."""

    worker: str


@dataclass(frozen=True, slots=True)
class Admit:
    """Give a worker tasks again."""

    worker: str


@dataclass(frozen=True, slots=True)
class Drain:
    """Save or move what a worker holds."""

    worker: str
    deadline: float
    """UNIX seconds."""


@dataclass(frozen=True, slots=True)
class Evict:
    """Take a worker out of the cluster for good: what it still holds is lost, its nanny is closed."""

    worker: str


@dataclass(frozen=True, slots=True)
class Restart:
    """Replace a worker's process."""

    worker: str


@dataclass(frozen=True, slots=True)
class RunCanary:
    """Try whether a worker's device computes right."""

    worker: str


Action = Avoid | Admit | Drain | Evict | Restart | RunCanary


@dataclass(frozen=True, slots=True)
class Decision:
    """One decision about a device, also one not to act."""

    time: float
    device: str
    host: str
    worker: str
    """Whose verdict or message led to it; empty if none's."""
    before: Phase
    after: Phase
    cause: Cause
    actions: tuple[Action, ...] = ()
    declined: str = ""
    """Why nothing is done, empty if something is."""

    def to_dict(self) -> dict[str, Any]:
        """Give plain types for the wire."""
        return {
            **{name: getattr(self, name) for name in ("time", "device", "host", "worker", "declined")},
            "before": str(self.before),
            "after": str(self.after),
            "rule": self.cause.rule,
            "evidence": list(self.cause.evidence),
            "by": self.cause.by,
            "fact": self.cause.fact,
            "actions": [words(action) for action in self.actions],
        }


def words(action: Action) -> str:
    """Name an action and its worker, as ``restart tcp://10.0.0.7:4321``."""
    name = "run the canary on" if isinstance(action, RunCanary) else type(action).__name__.lower()
    return f"{name} {action.worker}"
