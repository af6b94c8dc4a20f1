"""What a verdict about a worker's device asks for: from a verdict to an event of the core."""

from __future__ import annotations

from dataclasses import replace

from dask_resilient.core.actions import Cause, Judged
from dask_resilient.core.breaker import is_fact
from dask_resilient.core.faults import Class
from dask_resilient.core.health import Health, Verdict
from dask_resilient.core.readings import Name
from dask_resilient.scheduler.tries import Met
from dask_resilient.scheduler.verdicts import Record

MILD = frozenset({Health.HEALTHY, Health.DEGRADED})
"""What asks for nothing."""

DOUBTS = frozenset({"silence", "work.stale-metrics"})
"""Rules by which a device of which nothing can be said is suspect: it may have stopped answering."""

UNHEARD = frozenset({"work.not-answering", "nothing-known"})
"""Rules by which nothing was heard: no reason to trust a suspect again."""


def heard(record: Record, verdict: Verdict, met: Met, *, suspect: bool, nanny: bool) -> Judged:
    """Give the event that a verdict comes to.

    Parameters
    ----------
    record
        Of the worker.
    verdict
        About its device.
    met
        What a task met there, if the verdict is about that; else nothing.
    suspect
        Whether the device is suspect already.
    nanny
        Whether the worker has a nanny.
    """
    member = record.member
    cls: Class | None = verdict.cls
    if verdict.health is Health.UNKNOWN:
        # What is not known is no reason to go on trusting, nor one to stop.
        cls = None if _in_doubt(record, verdict) else Class.OBSERVE
    if verdict.rule in UNHEARD and suspect:
        cls = None  # the worker itself may hang in a call into the device: what was read of it only grew old
    cause, check = Cause(verdict.rule, verdict.evidence, label=met.label or verdict.rule, culprit=met.culprit), False
    if met.label and cls in (Class.KILL, Class.EVICT):
        cls, check = _said(cls, bool(member.gpu), met, nanny)
    if cls is Class.KILL and not check and not nanny:
        # To end it would be to lose the worker for good, which is no smaller thing than to leave its device.
        cls, cause = Class.EVICT, replace(cause, evidence=(*cause.evidence, "no nanny could start another process"))
    fact = is_fact(verdict.rule, cls) and (bool(member.gpu) or not met.label)
    return Judged(member.worker, cls, replace(cause, fact=fact), check, nanny, _sign(record, verdict))


def _said(cls: Class, gpu: bool, met: Met, nanny: bool) -> tuple[Class, bool]:
    """Give what a task's error asks for, and whether the process may be sound all the same.

    The text is all there is: a program that reads logs may raise it. Where tasks are known to be to blame, or no GPU is
    known whose context could be broken, the process is tried before it is lost.
    """
    if gpu and not met.culprit:
        return cls, False
    if met.passes or (met.culprit and not (gpu and nanny)):
        return Class.OBSERVE, False  # such errors pass; if the process is dead, other tasks will say so
    return Class.KILL, True


def _in_doubt(record: Record, verdict: Verdict) -> bool:
    """Say whether a device may have stopped answering; a probe that ends by itself, unasked, says nothing of it."""
    timeouts = record.told.of(Name.TIMEOUTS)
    if verdict.rule == "silence" and timeouts and not timeouts[-1].number:
        return False
    return verdict.rule in DOUBTS and not any("overloaded" in each for each in verdict.evidence)


def _sign(record: Record, verdict: Verdict) -> bool:
    """Say whether the device itself says that it may be used again."""
    if verdict.health not in (Health.HEALTHY, Health.DEGRADED):
        return False
    # Of a worker without a GPU the new process is all the sign there is.
    return not record.member.gpu or any(r.number == 0 for r in record.told.of(Name.RECOVERY_ACTION))
