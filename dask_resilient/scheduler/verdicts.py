"""The health of every worker's device: readings are kept here, judged by the core, and a changed verdict is told.

A verdict is about one worker: the device, and the process that uses it. Counters count from a baseline of the device,
which survives the process.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from time import time
from typing import Any

from dask_resilient.config import Settings
from dask_resilient.core.health import Health, Verdict, judge
from dask_resilient.core.kept import Kept
from dask_resilient.core.limits import Limits
from dask_resilient.core.nvml import SLOW_REASONS
from dask_resilient.core.readings import BUILT_IN, Baseline, Name, Reading
from dask_resilient.core.tables import Tables
from dask_resilient.scheduler.members import Member

logger = logging.getLogger("dask_resilient")

QUIET = 30.0
"""Seconds after which a worker that sends nothing is judged again: what was read of it grows old."""

XIDS = 200
"""XIDs that are remembered of one device at most."""

GUEST_NAMES = 100
"""Names of readings of third parties that are kept of one worker at most."""

PREFIXES = 50
"""Prefixes of which is remembered how long their tasks take on one worker: as many as it remembers itself."""

FUTURE = 1.0
"""Seconds that a reading may come from the future: clocks are compared by when messages were sent."""


@dataclass(slots=True)
class Record:
    """What is known of the device of one worker."""

    member: Member
    began: float
    """When its process joined; UNIX seconds of the scheduler, as all times here."""
    told: Kept = field(default_factory=Kept)
    """By the worker."""
    guests: Kept = field(default_factory=lambda: Kept(GUEST_NAMES))
    """The same, by probes of third parties: whatever they do, they take no room from ours."""
    seen: Kept = field(default_factory=Kept)
    """By the scheduler itself."""
    pace: dict[str, list[float]] = field(default_factory=dict)
    """Seconds of the last tasks by prefix."""
    judged: float = 0.0

    def keep_pace(self, seconds: Mapping[str, list[float]]) -> None:
        """Take in how long the last tasks of some prefixes took."""
        for prefix in seconds:
            self.pace.pop(prefix, None)
        self.pace |= seconds
        while len(self.pace) > PREFIXES:
            del self.pace[next(iter(self.pace))]


class Verdicts:
    """Judges the devices of all workers.

    Parameters
    ----------
    settings
        As the client read them.
    rules
        What the user's file of rules says.
    protocol
        Of the cluster, such as ``tcp`` or ``ucx``.
    event
        Logs a structured event.
    heard
        Acts on what is found.
    canary
        Hears of each device whether it computed right, and when.
    """

    def __init__(
        self,
        settings: Settings,
        rules: Mapping[str, Any] | None,
        protocol: str,
        event: Callable[..., None],
        heard: Callable[[Record, Verdict], None] = lambda _record, _verdict: None,
        canary: Callable[[str, object, float], None] = lambda _device, _result, _at: None,
    ) -> None:
        self._heard = heard
        self._canary = canary
        self._on = settings.probe_enabled
        self._limits = Limits(protocol=protocol, xids=Tables.of(rules).xids)
        self._event = event
        self._baselines: dict[str, Baseline] = {}
        self._xids: dict[str, list[tuple[str, Reading]]] = {}
        """By device, with the worker that told it; they outlive the worker."""
        self.records: dict[str, Record] = {}

    # -- who is there ------------------------------------------------------------------------------------------------

    def joined(self, member: Member, now: float) -> None:
        """Take in a worker; a process that took another's place has a record of its own."""
        self.records[member.worker] = Record(member, now)
        if not self._on:
            member.evidence = ("probes are switched off (resilience.probe.enabled is false)",)

    def removed(self, address: str) -> None:
        """Forget a worker; what is known of its device stays if another process can get it."""
        record = self.records.pop(address, None)
        if record is not None and record.member.device.startswith("host:"):
            self._baselines.pop(record.member.device, None)
            self._xids.pop(record.member.device, None)

    def released(self, device: str) -> None:
        """Take in that an operator put a device back: what it reported before, and counted, is held against it no more.

        Else a worker that joins it after that would be sent away for the same XID again.
        """
        self._xids.pop(device, None)
        self._baselines.pop(device, None)

    # -- hearing -----------------------------------------------------------------------------------------------------

    def readings(self, worker: str, msg: Mapping[str, Any]) -> None:
        """Hear what the probes of a worker read."""
        record = self.records.get(worker)
        if record is None:
            return
        now, device = time(), record.member.device
        # By the time from measuring to sending, since clocks of hosts differ.
        shift = now - float(msg["sent"])
        readings = [Reading.from_dict(row) for row in msg["new"]]
        readings = [r.at(device, min(r.time + shift, now + FUTURE)) for r in readings]
        for reading in readings:
            self._keep(record, reading)
        still = msg["still"]
        if still is not False:
            for kept in (record.told, record.guests):
                kept.still(None if still is True else still, now)
        self._baselines[device] = self._baseline(device).advance(readings)
        record.keep_pace(msg["pace"] or {})
        self.judge(record, now)
        if any(reading.kind == Name.XID for reading in readings):
            for other in self._others(record, same_device=True):
                self.judge(other, now)

    def _keep(self, record: Record, reading: Reading) -> None:
        ours, device = reading.probe in BUILT_IN, record.member.device
        if reading.kind == Name.XID and reading.value is not None:
            self._remember(device, record.member.worker, reading)
        else:
            (record.told if ours else record.guests).add(reading)
        if reading.kind == Name.CANARY and ours:
            self._canary(device, reading.value, reading.time)

    def _remember(self, device: str, worker: str, xid: Reading) -> None:
        """Keep an XID; of too many goes the oldest of the most frequent number, so that a flood hides no other."""
        kept = self._xids.setdefault(device, [])
        kept.append((worker, xid))
        if len(kept) > XIDS:
            ((often, _),) = Counter(reading.value for _, reading in kept).most_common(1)
            del kept[next(i for i, (_, reading) in enumerate(kept) if reading.value == often)]

    def see(self, record: Record, reading: Reading) -> None:
        """Take in what the scheduler itself found; the caller has it judged."""
        record.seen.add(replace(reading, device=record.member.device))

    def tick(self, now: float) -> None:
        """Judge again those of whom nothing was heard for a while."""
        for record in self.records.values():
            if now - record.judged >= QUIET:
                self.judge(record, now)

    # -- judging -----------------------------------------------------------------------------------------------------

    def judge(self, record: Record, now: float) -> None:
        """Judge one worker's device, and tell of it if the verdict changed."""
        record.judged = now
        if not self._on:
            return
        device = record.member.device
        verdict = judge(self._gathered(record), self._baseline(device), self._limits, now, record.began)
        before, record.member.verdict = record.member.verdict, verdict
        if before is None or before.health != verdict.health:
            record.member.since = now
        if before is None or _core(before) != _core(verdict):
            self._changed(record.member, before, verdict)
        self._heard(record, verdict)

    def _gathered(self, record: Record) -> Iterator[Reading]:
        device = record.member.device
        for reading in (*record.told, *record.guests):
            # The device of a worker may have become known only after the first readings.
            yield reading.at(device, reading.time) if reading.device != device else reading
        yield from record.seen
        for worker, reading in self._xids.get(device, ()):
            mine = worker == record.member.worker
            yield reading if mine or not reading.own else replace(reading, own=False)
        # Those of other devices of the host: of heat that all of them have, no single one is to blame.
        if any(isinstance(r.value, int) and r.value & SLOW_REASONS for r in record.told.of(Name.CLOCKS_REASONS)):
            for other in self._others(record, same_device=False):
                yield from other.told.of(Name.CLOCKS_REASONS)

    def _others(self, record: Record, *, same_device: bool) -> Iterator[Record]:
        mine = record.member
        for other in self.records.values():
            its = other.member
            if other is not record and its.host == mine.host and (its.device == mine.device) is same_device:
                yield other

    def _baseline(self, device: str) -> Baseline:
        return self._baselines.get(device) or Baseline(device)

    def _changed(self, member: Member, before: Verdict | None, verdict: Verdict) -> None:
        was = "unknown" if before is None else str(before.health)
        if before is None and verdict.health is Health.UNKNOWN:
            return
        fields = verdict.to_dict()
        self._event("health", worker=member.worker, was=was, **fields)
        if verdict.health is Health.UNHEALTHY:
            logger.warning(
                "dask-resilient: %s of worker %s is unhealthy: %s (rule %s)",
                *(verdict.device, member.worker, "; ".join(verdict.evidence[:3]), verdict.rule),
            )


def _core(verdict: Verdict) -> tuple[object, ...]:
    """Give what a change of counts: the words of the evidence count on, as with seconds of silence."""
    return verdict.health, verdict.cls, verdict.rule, verdict.readable
