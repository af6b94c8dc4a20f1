"""Devices slower than others, tasks that do not end, workers that do not answer: as readings, not verdicts.

None of them is a fault by itself: a task may be long, a host busy, a task may hold Python's lock.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import median

from dask_resilient.core.readings import Name, Reading

PROBE = "work"

LEAST_TASKS = 5
"""Tasks of one prefix on one device from which their median says something. Judgement."""

LEAST_SECONDS = 0.01
"""Median below which a prefix shows Dask's own overhead rather than the device. Source: Dask takes 1 ms a task at best
(distributed, "Efficiency"), and ten times that is mostly work."""

HANG_SECONDS = 2.0
"""Seconds that no task is taken for hung in, however short others of its prefix are. Judgement."""

STALE_SECONDS, STALE_BEATS = 5.0, 3
"""Seconds and heartbeats over which a worker's metrics stand still before they count as stale. Dask reads them every
0.5 s (distributed.admin.system-monitor.interval); after a task that held Python's lock one heartbeat may be earlier."""

ANSWER_SECONDS, ANSWER_BEATS = 5.0, 3
"""Seconds, and missed heartbeats, after which a worker counts as not answering. Judgement: on ten workers a heartbeat
comes every 0.5 s (distributed, heartbeat_interval)."""


@dataclass(frozen=True, slots=True)
class SlowDown:
    """How one device compares with the others on the same prefixes."""

    device: str
    ratio: float
    """Times by which it is slower; below 1 it is faster."""
    prefixes: tuple[str, ...]
    """What was compared."""
    tasks: int
    """Of the device, in that."""

    def reading(self, now: float) -> Reading:
        """Give it as a reading."""
        text = f"{self.ratio:.2f} times the others' median on {', '.join(self.prefixes)} ({self.tasks} tasks)"
        return Reading(PROBE, self.device, Name.SLOW_DOWN, self.ratio, now, text)


def slow_downs(
    seconds: Mapping[str, Mapping[str, Sequence[float]]], models: Mapping[str, str] | None = None
) -> dict[str, SlowDown]:
    """Compare devices by how long tasks of the same prefixes take. Pure (no I/O).

    Medians throughout: a few long tasks, or one slow device among the others, change nothing.

    Parameters
    ----------
    seconds
        By device and prefix, how long its last tasks took.
    models
        What kind of device each is; only devices of one kind are compared. Without it all are of one kind.

    Returns
    -------
    Those devices that can be compared with at least one other on at least one prefix.
    """
    typical = {device: _medians(prefixes) for device, prefixes in seconds.items()}
    kinds = {device: None if models is None else models.get(device) for device in typical}
    alike: dict[tuple[str | None, str], list[float]] = {}
    for device, own in typical.items():
        for prefix, value in own.items():
            alike.setdefault((kinds[device], prefix), []).append(value)
    for values in alike.values():
        values.sort()
    found = {}
    for device, own in typical.items():
        ratios = {}
        for prefix, value in own.items():
            others = _median_of_others(alike[kinds[device], prefix], value)
            if others is not None and others >= LEAST_SECONDS:
                ratios[prefix] = value / others
        if ratios:
            tasks = {prefix: len(seconds[device][prefix]) for prefix in ratios}
            ratio = _weighted_median([(ratios[prefix], tasks[prefix]) for prefix in ratios])
            found[device] = SlowDown(device, ratio, tuple(sorted(ratios)), sum(tasks.values()))
    return found


def _medians(prefixes: Mapping[str, Sequence[float]]) -> dict[str, float]:
    return {prefix: median(s) for prefix, s in prefixes.items() if len(s) >= LEAST_TASKS}


def _median_of_others(values: list[float], own: float) -> float | None:
    """Give the median of sorted values but for one of them, without making that list: there are many devices."""
    rest = len(values) - 1
    if not rest:
        return None
    left_out = bisect_left(values, own)
    low, high = ((i + (i >= left_out)) for i in ((rest - 1) // 2, rest // 2))
    return (values[low] + values[high]) / 2


def _weighted_median(weighted: list[tuple[float, int]]) -> float:
    """Give the least value that half of the weight does not exceed: of two equals the milder."""
    values = sorted(weighted)
    passed = accumulate(weight for _, weight in values)
    half = sum(weight for _, weight in values) / 2
    return next(value for (value, _), weight in zip(values, passed, strict=True) if weight >= half)


@dataclass(frozen=True, slots=True)
class Running:
    """A task that runs on a device."""

    device: str
    key: str
    elapsed: float
    """Seconds so far."""
    usual: float | None
    """Median of its prefix; None if none of its kind has ended."""
    progress: bool | None
    """Whether the device does anything; None if that cannot be seen."""


def hang(task: Running, multiple: float | None, now: float) -> Reading | None:
    """Give a reading of a task that has run far too long on a device that does nothing.

    Parameters
    ----------
    multiple
        Times the usual duration; None, unless the user asked for it, looks at nothing.
    """
    if multiple is None or task.progress or task.usual is None:
        return None
    if task.elapsed < HANG_SECONDS or task.elapsed < multiple * task.usual:
        return None
    if task.progress is None:
        reason = f"task {task.key} has run for {task.elapsed:.1f} s; whether the device does anything cannot be seen"
        return Reading.unknown(PROBE, task.device, Name.HANG, now, reason)
    text = f"task {task.key} has run for {task.elapsed:.1f} s, others {task.usual:.2g} s, and the device does nothing"
    times = task.elapsed / task.usual if task.usual > 0 else task.elapsed
    return Reading(PROBE, task.device, Name.HANG, times, now, text)


@dataclass(frozen=True, slots=True)
class Pulse:
    """What the scheduler hears from a worker, all by its own clock: those of workers may differ."""

    device: str
    last_seen: float
    """When the last heartbeat came."""
    same_since: float
    """When the first heartbeat came whose metrics had the time that the last one's still have."""
    beats: int
    """Heartbeats with that time."""
    executing: int
    """Tasks that run there, as far as is known."""
    interval: float = 0.5
    """Seconds between heartbeats that the worker was asked for."""

    @property
    def patience(self) -> float:
        """Give the seconds without a heartbeat after which the worker does not answer."""
        return max(ANSWER_SECONDS, ANSWER_BEATS * self.interval)


def stale_metrics(pulse: Pulse, now: float) -> Reading | None:
    """Give a reading of metrics that stand still while heartbeats come: Dask's monitor fails, as on a lost device."""
    still = pulse.last_seen - pulse.same_since
    if now - pulse.last_seen >= pulse.patience or still < STALE_SECONDS or pulse.beats < STALE_BEATS:
        return None
    text = f"heartbeats come, but their metrics have stood still for {still:.1f} s"
    return Reading(PROBE, pulse.device, Name.STALE_METRICS, still, now, text)


def not_answering(pulse: Pulse, now: float) -> Reading | None:
    """Give a reading of a worker from which no heartbeat comes: it is busy if a task runs there, else nobody knows."""
    silent = now - pulse.last_seen
    if silent < pulse.patience:
        return None
    if pulse.executing:
        text = f"busy, not answering for {silent:.1f} s"
        return Reading(PROBE, pulse.device, Name.NOT_ANSWERING, silent, now, text)
    reason = f"not answering for {silent:.1f} s, and no task runs there"
    return Reading.unknown(PROBE, pulse.device, Name.NOT_ANSWERING, now, reason)
