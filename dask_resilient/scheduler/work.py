"""What the work on a device tells of it: slower than others, a task that does not end, a worker that is silent."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from statistics import median
from typing import Any

from distributed.scheduler import heartbeat_interval

from dask_resilient.core.readings import Name, Reading
from dask_resilient.core.stragglers import Pulse, Running, hang, not_answering, slow_downs, stale_metrics
from dask_resilient.scheduler.verdicts import Record, Verdicts

COMPARE = 30.0
"""Seconds between comparisons of devices with each other: half of what a reading counts as present."""

ALARM = 50.0
"""Times the usual duration after which a task on a device that does nothing is told of where no limit is set, if it has
run for `ALARM_SECONDS` as well. Judgement."""

ALARM_SECONDS = 300.0

IDLE_CPU = 5.0
"""Percent of one processor below which a worker without a GPU does nothing. Judgement: Dask's own loop takes 2 to 3."""


@dataclass(slots=True)
class _Beats:
    """The heartbeats of a worker since its metrics last changed."""

    metrics: float = 0.0
    since: float = 0.0
    seen: float = 0.0
    count: int = 0


class Work:
    """Looks at all workers once a tick.

    Parameters
    ----------
    scheduler
        The `distributed.Scheduler`.
    verdicts
        Where what was found is judged.
    multiple
        Times the usual duration after which a task on a device that does nothing is taken to hang; None = never, and
        one is only told of after `ALARM` times.
    hung
        Acts on a task that hangs, or only tells of it.
    """

    def __init__(
        self,
        scheduler: Any,
        verdicts: Verdicts,
        multiple: float | None,
        hung: Callable[[Record, Hashable, Reading, bool], None] = lambda *_: None,
    ) -> None:
        self._hung = hung
        self._scheduler = scheduler
        self._verdicts = verdicts
        self._multiple = multiple
        self._beats: dict[str, _Beats] = {}
        self._compared = 0.0
        self._medians: dict[str, float | None] = {}
        """By prefix, in one tick."""

    def removed(self, address: str) -> None:
        """Forget a worker."""
        self._beats.pop(address, None)

    def tick(self, now: float) -> None:
        """Look at all workers."""
        self._medians.clear()
        for address, record in self._verdicts.records.items():
            ws = self._scheduler.workers.get(address)
            if ws is not None:
                pulse = self._pulse(record, ws)
                self._note(record, now, Name.STALE_METRICS, stale_metrics(pulse, now))
                self._note(record, now, Name.NOT_ANSWERING, not_answering(pulse, now))
                self._look_for_hangs(record, ws, now)
        if now - self._compared >= COMPARE:
            self._compared = now
            self._compare(now)

    def _note(self, record: Record, now: float, name: str, reading: Reading | None) -> None:
        """Have it judged if there is something, or was; what was needs no more than that."""
        if reading is not None:
            self._verdicts.see(record, reading)
        elif name in record.seen:
            record.seen.drop(name)
        else:
            return
        self._verdicts.judge(record, now)

    def _pulse(self, record: Record, ws: Any) -> Pulse:
        beats = self._beats.setdefault(ws.address, _Beats())
        at = float(ws.metrics.get("time") or 0.0)
        if at != beats.metrics or not at:
            beats.metrics, beats.since, beats.count = at, ws.last_seen, 0
        if ws.last_seen != beats.seen:
            beats.seen = ws.last_seen
            beats.count += 1
        return Pulse(
            record.member.device,
            last_seen=ws.last_seen,
            same_since=beats.since,
            beats=beats.count,
            executing=len(ws.processing),
            interval=heartbeat_interval(len(self._scheduler.workers)),
        )

    def _look_for_hangs(self, record: Record, ws: Any, now: float) -> None:
        asked = self._multiple is not None
        key, reading = next(self._hangs(record, ws, now), (None, None))
        if asked:
            self._note(record, now, Name.HANG, reading)
        # A worker that does not answer may hold Python's lock and be well: nothing is said of its tasks.
        if reading is not None and reading.value is not None and Name.NOT_ANSWERING not in record.seen:
            self._hung(record, key, reading, asked)

    def _hangs(self, record: Record, ws: Any, now: float) -> Iterator[tuple[Hashable, Reading]]:
        multiple = ALARM if self._multiple is None else self._multiple
        for ts, elapsed in ws.executing.items():
            if self._multiple is None and elapsed < ALARM_SECONDS:
                continue
            task = Running(
                record.member.device, str(ts.key), elapsed, self._usual(ts.prefix.name), _progress(record, ws)
            )
            reading = hang(task, multiple, now)
            if reading is not None:
                yield ts.key, reading

    def _usual(self, prefix: str) -> float | None:
        """Give the median of all tasks of a prefix that were told of lately."""
        if prefix not in self._medians:
            seconds = [s for record in self._verdicts.records.values() for s in record.pace.get(prefix, ())]
            self._medians[prefix] = median(seconds) if seconds else None
        return self._medians[prefix]

    def _compare(self, now: float) -> None:
        records = self._verdicts.records.values()
        seconds: dict[str, dict[str, list[float]]] = {}
        for record in records:
            of_device = seconds.setdefault(record.member.device, {})
            for prefix, values in record.pace.items():
                of_device.setdefault(prefix, []).extend(values)
        found = slow_downs(seconds, {record.member.device: record.member.gpu_name for record in records})
        for record in records:
            slow = found.get(record.member.device)
            self._note(record, now, Name.SLOW_DOWN, None if slow is None else slow.reading(now))


def _progress(record: Record, ws: Any) -> bool | None:
    """Say whether the device does anything, None if that cannot be seen."""
    if not record.member.gpu:
        return bool(ws.metrics.get("cpu", 0.0) > IDLE_CPU)
    busy = ws.metrics.get("gpu_utilization")
    return None if busy is None else bool(busy)
