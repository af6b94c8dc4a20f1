"""How devices stood over time: a stretch for each change, and never more than a bounded number."""

from __future__ import annotations

from dask_resilient.core import timeline
from dask_resilient.core.timeline import Standing, Timeline


def at(device="GPU-0", phase="active", health="healthy", **more):
    return Standing(device, "h", phase, health, **more)


def told(line, **kwargs):
    return [(r["start"], r["end"], r["phase"], r["health"]) for r in line.rows(**kwargs)]


def test_what_does_not_change_is_one_stretch():
    """Also where only the words of the evidence count on."""
    line = Timeline()
    for now in range(5):
        line.sample(now, [at(why=f"for {now} s")])
    assert told(line) == [(0, None, "active", "healthy")]


def test_each_change_begins_a_stretch():
    line = Timeline()
    line.sample(0, [at()])
    line.sample(1, [at(health="unhealthy", rule="xid.79", why="XID 79")])
    line.sample(2, [at(phase="quarantined", health="unhealthy", rule="xid.79")])
    assert told(line) == [
        (0, 1, "active", "healthy"),
        (1, 2, "active", "unhealthy"),
        (2, None, "quarantined", "unhealthy"),
    ]
    assert [row["why"] for row in line.rows()] == ["", "XID 79", ""]


def test_a_device_that_is_named_no_more_is_gone_and_may_come_back():
    line = Timeline()
    line.sample(0, [at()])
    line.sample(1, [])
    line.sample(2, [])
    line.sample(3, [at()])
    assert [(start, phase) for start, _, phase, _ in told(line)] == [(0, "active"), (1, "gone"), (3, "active")]


def test_only_what_had_not_ended_by_then_is_told():
    line = Timeline()
    line.sample(0, [at()])
    line.sample(5, [at(health="degraded")])
    assert told(line, since=5) == [(5, None, "active", "degraded")]
    assert len(told(line, since=4)) == 2


def test_a_device_that_flaps_fills_nothing():
    line = Timeline()
    for now in range(10_000):
        line.sample(now, [at(health=("healthy", "degraded")[now % 2])])
    assert len(told(line)) == timeline.KEPT


def test_of_too_many_devices_those_go_that_are_gone_for_longest(monkeypatch):
    """A cluster whose workers come and go for weeks; one that is there is never forgotten."""
    monkeypatch.setattr(timeline, "DEVICES", 3)
    line = Timeline()
    for now in range(10):
        line.sample(now, [at("stays"), at(f"w{now}")])
    assert [row["device"] for row in line.rows() if row["end"] is None] == ["stays", "w8", "w9"]
