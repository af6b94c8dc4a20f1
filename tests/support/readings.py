"""Readings of one fake device, and the verdict that the rules make of them."""

from __future__ import annotations

from dask_resilient.core.faults import Class
from dask_resilient.core.health import Verdict, health, judge
from dask_resilient.core.limits import Limits
from dask_resilient.core.readings import Baseline, Name, Reading

GPU, OTHER = "GPU-0", "GPU-1"
NOW = 100_000.0
TCP, UCX = Limits(), Limits(protocol="ucx")

Value = int | float | bool | str | None


def reading(name: str, value: Value, age: float = 1.0, text: str = "", own: bool | None = None) -> Reading:
    return Reading("nvml", GPU, name, value, NOW - age, text, own)


def verdict(*readings: Reading, before: dict[str, float] | None = None, limits: Limits = TCP) -> Verdict:
    return judge(readings, Baseline(GPU, before or {}), limits, NOW)


WELL = reading(Name.RECOVERY_ACTION, 0)
"""NVIDIA wants nothing done."""


def check(found: Verdict, cls: Class, rule: str) -> None:
    """Compare class, health, readability and rule: they belong together."""
    assert (found.cls, found.health, found.rule) == (cls, health(cls), rule), found
    assert found.readable is (cls not in {Class.KILL, Class.EVICT})
    assert found.device == GPU
    assert found.evidence
