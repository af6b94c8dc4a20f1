"""From readings to a verdict: how a device is, which rule says so, and whether what it holds can still be read.

1. The worst that any rule asks for counts. Of rules that ask for the same, the first of the table names the verdict:
   NVIDIA's recovery action, then XIDs and other reports of the driver, then counters.
2. What is not known is neither healthy nor unhealthy: it adds nothing and takes nothing away.
3. A device of which nothing is known at present is UNKNOWN, and so is one that does not answer, until that lasts.

What to do about a verdict is not decided here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from dask_resilient.core.faults import Class, together
from dask_resilient.core.history import Finding, History
from dask_resilient.core.limits import Limits
from dask_resilient.core.readings import Baseline, Name, Reading
from dask_resilient.core.rules import RULES, Rule


class Health(StrEnum):
    """How a device is."""

    HEALTHY = "healthy"
    DEGRADED = "degraded"
    """It works, with a trouble that is named."""
    UNHEALTHY = "unhealthy"
    """It, or the process that uses it, is not to be worked with."""
    UNKNOWN = "unknown"
    """Nothing can be said at present."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the rules make of the readings of one device."""

    device: str
    health: Health
    cls: Class
    """What is asked for."""
    rule: str
    """The rule that fired, and the row of its table behind a point; empty if none did."""
    evidence: tuple[str, ...]
    """In words, the rule's own first."""
    readable: bool | None
    """Whether what this process holds on the device can still be read; None if that is not known."""
    source: str = ""
    """Where the rule, or its row, comes from."""
    unknown: tuple[str, ...] = ()
    """What could not be read, and why."""

    def to_dict(self) -> dict[str, Any]:
        """Give plain types for the wire."""
        return {name: _plain(value) for name, value in asdict(self).items()}


def _plain(value: object) -> object:
    if isinstance(value, tuple):
        return list(value)
    return str(value) if isinstance(value, StrEnum) else value


_EVENTS = frozenset({Name.XID, Name.EVENT, Name.CUDA_ERROR})
_SILENCES = frozenset({Name.SILENCE, Name.TIMEOUTS, Name.OVERLOADED, Name.PRESENT})
_WORK = frozenset(
    {Name.KERNEL_LOG, Name.SLOW_DOWN, Name.HANG, Name.STALE_METRICS, Name.NOT_ANSWERING, Name.INDICTED, Name.EXHAUSTED}
)
_HOST = frozenset(name for name in Name if name.startswith("host-"))
"""Of these only workers that compute on the host itself are made."""
_PROOF = frozenset(Name) - _EVENTS - _SILENCES - _WORK
"""Readings that are not there when nothing is known of the device."""

SHOWN = 20
"""Findings that a verdict quotes at most."""


def judge(
    readings: Iterable[Reading], baseline: Baseline, limits: Limits, now: float, since: float = -math.inf
) -> Verdict:
    """Judge the device of a baseline by its readings. Pure (no I/O).

    Parameters
    ----------
    readings
        All of the last ten minutes, and XIDs of the last day, in any order; also those of other devices of the host.
    baseline
        Names the device, and says where its counters stood.
    limits
        The thresholds.
    now
        Seconds, of the clock that the readings carry.
    since
        When the process that uses the device began: what happened before was no fault of it.
    """
    history = History(readings, baseline, limits, now, since)
    found = list(_findings(history))
    asked = [(rule, finding, finding.cls) for rule, finding in found if finding.cls is not None]
    unknown = _unknown(history)
    if asked:
        rule, finding, _ = max(asked, key=lambda one: one[2].rank)
        cls = together(cls for _, _, cls in asked)
        # Each task that failed says the same.
        others = list(dict.fromkeys(other.evidence for _, other, _ in asked if other.evidence != finding.evidence))
        others = others[: SHOWN - 1]
        if cls is not Class.OBSERVE:
            readable = cls.readable or (cls is Class.KILL and _alive(baseline.device, found))
            return _verdict(baseline.device, cls, rule, finding, others, unknown, readable=readable)
    doubt = next(((rule, finding) for rule, finding in found if finding.cls is None), None)
    if doubt is not None or not _proven(history):
        # Where nothing puts it in doubt, what is noted may be why nothing is known: a worker that is busy and silent.
        noted = next(((rule, finding) for rule, finding, _ in asked), None)
        return _in_doubt(baseline.device, doubt or noted, unknown)
    if asked:
        return _verdict(baseline.device, Class.OBSERVE, rule, finding, others, unknown, readable=True)
    return Verdict(baseline.device, Health.HEALTHY, Class.OBSERVE, "", (), True, unknown=unknown)


def _findings(history: History) -> Iterator[tuple[Rule, Finding]]:
    for rule in RULES:
        for finding in rule.judge(history):
            yield rule, finding


def _alive(device: str, found: list[tuple[Rule, Finding]]) -> bool:
    """Say whether a process that is to be replaced can be read: its memory is the host's, or it only gets no more."""
    return _on_host(device) or all(finding.readable for _, finding in found if finding.cls is Class.KILL)


def _on_host(device: str) -> bool:
    return device.startswith("host:")


def _verdict(
    device: str,
    cls: Class,
    rule: Rule,
    finding: Finding,
    others: list[str],
    unknown: tuple[str, ...],
    *,
    readable: bool,
) -> Verdict:
    evidence = (finding.evidence, *others)
    return Verdict(device, health(cls), cls, _name(rule, finding), evidence, readable, _source(rule, finding), unknown)


def _in_doubt(device: str, doubt: tuple[Rule, Finding] | None, unknown: tuple[str, ...]) -> Verdict:
    if doubt is None:
        evidence = unknown or ("nothing was read lately",)
        return Verdict(device, Health.UNKNOWN, Class.OBSERVE, "nothing-known", evidence, None, unknown=unknown)
    name, said, source = _name(*doubt), doubt[1].evidence, _source(*doubt)
    return Verdict(device, Health.UNKNOWN, Class.OBSERVE, name, (said,), None, source, unknown)


def _name(rule: Rule, finding: Finding) -> str:
    return f"{rule.name}.{finding.row}" if finding.row else rule.name


def _source(rule: Rule, finding: Finding) -> str:
    return finding.source or rule.source


def health(cls: Class) -> Health:
    """Give the health that a class stands for."""
    if cls is Class.OBSERVE:
        return Health.HEALTHY
    return Health.DEGRADED if cls is Class.DEGRADE else Health.UNHEALTHY


def _unknown(history: History) -> tuple[str, ...]:
    """Give what could not be read lately, each reason once."""
    return tuple(f"{r.name}: {r.text or 'no reason is given'}" for r in history.present.values() if r.value is None)


def _proven(history: History) -> bool:
    """Say whether anything that the rules understand is known of the device at present."""
    proof = _PROOF if _on_host(history.baseline.device) else _PROOF - _HOST
    said = (r for r in history.present.values() if r.kind in proof and (r.number is not None or r.value in _WORDS))
    return any(r.kind != Name.CANARY or history.now - r.time <= history.limits.tried for r in said)


_WORDS = frozenset({"right", "wrong", *Class})
"""What readings say that are no numbers: the canary, and probes that state a class."""
