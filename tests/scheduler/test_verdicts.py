"""From messages of workers to rows, events and the log."""

from __future__ import annotations

import logging

import pytest

from dask_resilient.core.readings import Name
from dask_resilient.scheduler import verdicts
from tests.support.scheduler import WELL, Stage


def test_nothing_is_known_before_something_was_read(stage):
    """The row says so."""
    row = stage().row("a")
    assert (row["health"], row["rule"], row["readable"], row["since"]) == ("unknown", "", None, None)
    assert row["evidence"] == ["nothing was read yet"]


def test_probes_that_are_off_are_named(stage):
    """The row says which setting."""
    x = stage(probe_enabled=False)
    x.say("a", readings=WELL)
    assert x.row("a")["evidence"] == ["probes are switched off (resilience.probe.enabled is false)"]


def test_a_well_device_is_healthy_and_the_others_stay_unknown(stage):
    """One that says nothing hides no other, and borrows no health from one."""
    x = stage()
    x.say("a", readings=WELL)
    assert x.health("a") == ("healthy", "")
    assert x.health("b") == ("unknown", "")
    assert x.row("a")["since"] == x.now


def test_a_changed_verdict_is_an_event_and_a_warning_once(stage, caplog):
    """Whatever is read after it, as long as it says the same."""
    caplog.set_level(logging.WARNING, "dask_resilient")
    x = stage()
    x.say("a", readings=WELL)
    for _ in range(3):
        x.now += 5
        x.say("a", nvml_return=15)
    assert x.health("a") == ("unhealthy", "nvml.15")
    assert x.row("a")["readable"] is False
    assert x.row("a")["since"] == x.now - 10
    assert [(e["was"], e["health"], e["rule"]) for e in x.events] == [
        ("unknown", "healthy", ""),
        ("healthy", "unhealthy", "nvml.15"),
    ]
    assert [r.getMessage() for r in caplog.records] == [
        "dask-resilient: GPU-0 of worker a is unhealthy: NVML: the GPU is lost (rule nvml.15)"
    ]


def test_readings_grow_old(stage):
    """A worker of which nothing is heard is unknown after a minute, also if nobody says so."""
    x = stage()
    x.say("a", readings=WELL)
    x.now += 59
    x.verdicts.tick(x.now)
    assert x.health("a")[0] == "healthy"
    x.now += 31
    x.verdicts.tick(x.now)
    assert x.health("a") == ("unknown", "nothing-known")


def test_what_is_still_so_need_not_be_told_again(stage):
    """One word for all of them."""
    x = stage()
    x.say("a", readings={**WELL, "remap-pending": 1})
    for _ in range(6):
        x.now += 20
        x.say("a", still=True)
    assert x.health("a") == ("healthy", "remap-pending")


def test_clocks_of_hosts_may_differ(stage):
    """A reading is as old as it was when it was sent."""
    x = stage()
    there = x.now - 7200
    row = {
        "probe": "nvml",
        "device": "",
        "name": "recovery-action",
        "value": 0,
        "time": there - 3,
        "text": "",
        "own": None,
    }
    x.verdicts.readings("a", {"sent": there, "new": [row], "still": False, "pace": None})
    assert x.health("a")[0] == "healthy"
    x.now += 58
    x.verdicts.tick(x.now)
    assert x.health("a")[0] == "unknown"


def test_counters_count_from_a_baseline_that_outlives_the_process(stage):
    """What a device counted before anybody looked is history; what it counts under the next process is not."""
    x = stage()
    x.say("a", readings={**WELL, "ecc-uncorrected": 5})
    assert x.health("a")[0] == "healthy"
    x.leave("a")
    x.join("c", "GPU-0")
    x.say("c", readings={**WELL, "ecc-uncorrected": 6})
    assert x.health("c") == ("unhealthy", "ecc-uncorrected")


def test_what_killed_a_process_is_no_fault_of_its_successor(stage):
    """An XID that named the process before; what the device itself reported stays."""
    x = stage()
    x.say("a", readings={**WELL, Name.XID: 13}, own=True)
    assert x.health("a") == ("unhealthy", "xid.13")
    x.leave("a")
    x.now += 3
    x.join("c", "GPU-0")
    x.say("c", readings=WELL)
    assert x.health("c")[0] == "healthy"


def test_what_a_device_reported_concerns_its_next_process_too(stage):
    """A nanny restarts a worker within a second, and the memory is as bad as it was."""
    x = stage()
    x.say("a", readings={**WELL, Name.XID: 95})
    x.leave("a")
    x.now += 3
    x.join("c", "GPU-0")
    x.say("c", readings=WELL)
    assert x.health("c") == ("unhealthy", "xid.95")
    x.now += 601
    x.say("c", readings=WELL)
    assert x.health("c")[0] == "healthy"


def test_an_xid_of_one_process_is_its_own(stage):
    """The other worker on the same GPU is not killed for it."""
    x = stage()
    x.join("c", "GPU-0")
    x.say("a", readings=WELL)
    x.say("c", readings=WELL)
    x.say("a", readings={Name.XID: 31}, own=True)
    assert x.health("a") == ("unhealthy", "xid.31")
    assert x.health("c")[0] == "healthy"


def test_an_xid_of_the_device_concerns_all_its_workers_at_once(stage):
    """Whoever heard of it."""
    x = stage()
    x.join("c", "GPU-0")
    x.say("c", readings=WELL)
    x.say("a", readings={**WELL, Name.XID: 79})
    assert x.health("a") == x.health("c") == ("unhealthy", "xid.79")
    assert x.health("b")[0] == "unknown"


@pytest.mark.parametrize(("fatal", "flood"), [(95, 31), (79, 63)])
def test_a_flood_of_one_xid_hides_no_other(stage, fatal, flood):
    """Whoever it names."""
    x = stage()
    x.say("a", readings={**WELL, Name.XID: fatal})
    for _ in range(verdicts.XIDS + 50):
        x.say("a", readings={Name.XID: flood}, own=False)
    assert x.health("a") == ("unhealthy", f"xid.{fatal}")
    assert len(x.verdicts._xids["GPU-0"]) == verdicts.XIDS


def test_heat_that_all_devices_of_the_host_have_is_no_single_one_s(stage):
    """One that is slow alone is drained, of two neither."""
    x = stage()
    for _ in range(11 * 3):
        x.now += 20
        x.say("a", readings={**WELL, Name.CLOCKS_REASONS: 0x40})
    assert x.health("a") == ("unhealthy", "slow-down")
    for _ in range(11 * 3):
        x.now += 20
        x.say("a", readings={**WELL, Name.CLOCKS_REASONS: 0x40})
        x.say("b", readings={**WELL, Name.CLOCKS_REASONS: 0x40})
    assert x.health("a") == x.health("b") == ("degraded", "slow-down")


def test_links_matter_where_the_cluster_uses_them(monkeypatch):
    """A down link is UNHEALTHY under ucx, DEGRADED under tcp."""
    found = {}
    for protocol in ("tcp", "ucx", "ucxx"):
        x = Stage(monkeypatch, {"a": "GPU-0"}, protocol=protocol)
        x.say("a", readings={**WELL, "nvlink-state.3": 1})
        x.say("a", readings={"nvlink-state.3": 0})
        found[protocol] = x.health("a")
    assert found == {
        "tcp": ("degraded", "nvlink-state.3"),
        "ucx": ("unhealthy", "nvlink-state.3"),
        "ucxx": ("unhealthy", "nvlink-state.3"),
    }


def test_rows_of_the_user_s_file_count(stage):
    """And the verdict names the row."""
    x = stage(rules={"file": "f.yaml", "xid": {79: {"class": "observe"}}})
    x.say("a", readings={**WELL, Name.XID: 79})
    assert x.health("a") == ("healthy", "xid.79")


def test_messages_of_a_worker_that_left_change_nothing(stage):
    """They may be on their way."""
    x = stage()
    x.leave("a")
    x.say("a", readings=WELL)
    assert set(x.verdicts.records) == {"b"}


def test_nothing_is_kept_of_a_cpu_worker_that_left(monkeypatch):
    """Its device had the worker's name, and nobody will have it again."""
    x = Stage(monkeypatch, {"a": "host:h/a"})
    x.say("a", readings={"host-memory": 0.5, Name.XID: 1})
    assert x.health("a")[0] == "unhealthy"
    x.leave("a")
    assert not x.verdicts._baselines
    assert not x.verdicts._xids
