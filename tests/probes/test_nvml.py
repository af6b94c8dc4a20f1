"""What NVML says, row by row, through the real probe process and the real pynvml, on a fake driver."""

from __future__ import annotations

import time

import pytest

from dask_resilient.core.health import Health
from dask_resilient.core.nvml import NVML_REASONS
from dask_resilient.core.readings import Name
from tests.support.listening import GPU
from tests.support.waiting import wait_until

SAID = {
    Name.RECOVERY_ACTION: ({"fi__230": 4}, 4),
    Name.ECC_UNCORRECTED: ({"ecc_u_vol": 3}, 3),
    Name.ECC_CORRECTED_DRAM: ({"ecc_c_vol": 5}, 5),
    Name.ECC_CORRECTED_SRAM: ({"ecc_sram": 6}, 6),
    Name.SRAM_THRESHOLD: ({"sram_threshold": 1}, True),
    Name.REMAPPED_ROWS: ({"rr_unc": 7}, 7),
    Name.REMAP_PENDING: ({"rr_pending": 1}, True),
    Name.REMAP_FAILED: ({"rr_failure": 1}, True),
    Name.REMAP_EXHAUSTED: ({"rr_hist": "600,30,7,2,1"}, 3),
    Name.RETIRED_PAGES: ({"retired": 63}, 63),
    Name.TEMPERATURE: ({"temp": 71}, 71),
    Name.TEMPERATURE_SHUTDOWN: ({"threshold__0": 90}, 90),
    Name.TEMPERATURE_MAX: ({"threshold__3": 80}, 80),
    Name.MARGIN: ({"margin": -3}, -3),
    Name.MARGIN_SHUTDOWN: ({"fi__193": -8}, -8),
    Name.MARGIN_MAX: ({"fi__196": -1}, -1),
    Name.MEMORY_TEMPERATURE: ({"fi__82": 66}, 66),
    Name.MEMORY_TEMPERATURE_MAX: ({"threshold__2": 94}, 94),
    Name.CLOCKS_REASONS: ({"throttle": 0x40}, 0x40),
    Name.PCIE_REPLAYS: ({"pcie_replays": 9}, 9),
    Name.PCIE_GENERATION: ({"pcie_gen": 3}, 3),
    Name.PCIE_WIDTH: ({"pcie_width": 8}, 8),
    Name.PCIE_WIDTH_MAX: ({"pcie_width_max": 4}, 4),
    f"{Name.NVLINK_STATE}.1": ({"links": 2, "link.1": 0}, 0),
    f"{Name.NVLINK_REPLAY}.0": ({"links": 2, "link_err.0.0": 11}, 11),
    f"{Name.NVLINK_RECOVERY}.1": ({"links": 2, "link_err.1.1": 12}, 12),
    f"{Name.NVLINK_CRC}.1": ({"links": 2, "link_err.1.2": 13}, 13),
    f"{Name.NVLINK_BER}.1": ({"links": 2, "fi.220.1": 3 << 8 | 11}, 3e-11),
    Name.FABRIC: ({"fabric": 3}, 3),
    Name.INFOROM: ({"inforom": 0}, False),
}


def test_every_row_gives_what_the_driver_says(gpus, nvml):
    """All of them at once, from one sweep, of our device only."""
    keys = {}
    for more, _ in SAID.values():
        keys |= more
    gpus.gpu(0, **keys)
    x = nvml()
    x.until(Name.NVML_RETURN, 0)
    found = {name: getattr(x.last(name), "value", "missing") for name in SAID}
    assert found == pytest.approx({name: value for name, (_, value) in SAID.items()})
    assert {r.device for r in x.readings if r.probe == "nvml"} == {GPU}
    assert x.last(Name.PRESENT).value is True
    others = {r.name for r in x.readings if r.probe == "nvml"} - set(SAID)
    assert {name for name in others if not name.startswith("nvlink")} == {"present", "nvml-return"}


def test_a_well_device_is_healthy(nvml):
    """What a fake device says by default, which knows less than a real one."""
    x = nvml()
    x.until(Name.NVML_RETURN, 0)
    assert x.verdict().health is Health.HEALTHY


@pytest.mark.parametrize("code", sorted(set(NVML_REASONS) - {28}))
def test_one_call_that_is_refused_hides_no_other(code, gpus, nvml):
    """It is unknown, with the reason in words; nothing of it is a fault."""
    gpus.gpu(0, **{"return.nvmlDeviceGetRemappedRows": code, "fi.230": 0})
    x = nvml()
    wait_until(lambda: x.last(Name.NVML_RETURN) is not None)
    for name in (Name.REMAPPED_ROWS, Name.REMAP_PENDING, Name.REMAP_FAILED):
        assert (x.last(name).value, x.last(name).text) == (None, NVML_REASONS[code])
    assert x.last(Name.RECOVERY_ACTION).value == 0
    assert x.last(Name.NVML_RETURN).value == 0
    assert x.verdict().health is Health.HEALTHY


def test_a_device_that_supports_nothing_is_unknown(gpus, nvml):
    """As under WSL: every reason is there, and no verdict."""
    x = nvml()
    x.until(Name.NVML_RETURN, 0)
    gpus.gpu(0, **{"return": 3})
    x.until(Name.TEMPERATURE, None)
    x.readings.clear()
    wait_until(lambda: x.last(Name.NVML_RETURN) is not None)
    assert x.last(Name.TEMPERATURE).text == NVML_REASONS[3]
    verdict = x.verdict()
    assert (verdict.health, verdict.rule) == (Health.UNKNOWN, "nvml.3")
    assert f"temperature: {NVML_REASONS[3]}" in verdict.unknown


@pytest.mark.parametrize(("code", "rule"), [(15, "nvml.15"), (16, "nvml.16")])
def test_a_lost_device_is_said_at_once(code, rule, gpus, nvml):
    """Not only with the next sweep; and it is not said again and again without a pause."""
    x = nvml(interval=60)
    wait_until(lambda: x.last(Name.NVML_RETURN) is not None)
    begin = time.monotonic()
    gpus.gpu(0, **{"return": code})
    x.until(Name.NVML_RETURN, code)
    assert time.monotonic() - begin < 3
    verdict = x.verdict()
    assert (verdict.health, verdict.rule, verdict.readable) == (Health.UNHEALTHY, rule, False)
    count = len(x.readings)
    deadline = time.monotonic() + 1
    wait_until(lambda: time.monotonic() > deadline)
    assert len(x.readings) - count < 20


def test_a_device_that_is_listed_no_more_is_said_so(gpus, nvml):
    """By its UUID: indices move."""
    x = nvml()
    x.until(Name.PRESENT, True)
    gpus.gpu(0, uuid="GPU-another")
    x.until(Name.PRESENT, False)


EVENTS = {
    "an XID": ((8, 79), Name.XID, 79),
    "poison": ((0x2000, 0), "event.0x2000", 0x2000),
    "retirement": ((0x400, 0), "event.0x400", 0x400),
}


@pytest.mark.parametrize(("event", "name", "value"), EVENTS.values(), ids=EVENTS)
def test_events_come_at_once(event, name, value, gpus, nvml):
    """Also where the next sweep is far away."""
    x = nvml(interval=60)
    wait_until(lambda: x.last(Name.NVML_RETURN) is not None)
    begin = time.monotonic()
    gpus.event(0, *event)
    reading = x.until(name, value)
    assert time.monotonic() - begin < 3
    assert reading.own is None


def test_a_changed_recovery_action_is_read_at_once(gpus, nvml):
    """The event says only that it changed."""
    x = nvml(interval=60)
    x.until(Name.NVML_RETURN, 0)
    gpus.gpu(0, **{"fi.230": 1})
    gpus.event(0, 0x8000)
    x.until(Name.RECOVERY_ACTION, 1)


def test_events_of_another_device_are_not_ours(gpus, nvml):
    """They would kill the wrong worker."""
    x = nvml()
    x.until(Name.NVML_RETURN, 0)
    gpus.xid(1, 79)
    gpus.xid(0, 13)
    x.until(Name.XID, 13)
    assert not [r for r in x.readings if r.value == 79]


def test_a_call_that_hangs_is_named(gpus, nvml):
    """Its silence is a reading, and so is the number of processes that were killed for it."""
    x = nvml()
    x.until(Name.NVML_RETURN, 0)
    gpus.gpu(0, hang__nvmlDeviceGetTemperature=60)
    wait_until(lambda: (r := x.last(Name.TIMEOUTS)) is not None and r.value >= 2)
    assert x.last(Name.SILENCE).text == "temperature"
    assert x.last(Name.OVERLOADED).value is False
    gpus.gpu(0, hang__nvmlDeviceGetTemperature=None)
    x.until(Name.SILENCE, 0)
    assert x.last(Name.TIMEOUTS).value == 0


def test_a_process_that_gets_no_processor_says_nothing_about_the_device(nvml):
    """One that is stopped cannot even say that a call hangs."""
    import signal

    x = nvml()
    x.until(Name.NVML_RETURN, 0)
    process = x.gauge._process._process
    process.send_signal(signal.SIGSTOP)
    try:
        x.until(Name.OVERLOADED, True)
    finally:
        process.send_signal(signal.SIGCONT)


def test_a_call_that_ends_the_process_is_no_hang(gpus, nvml):
    """It is silent, but was not killed for that."""
    x = nvml()
    x.until(Name.NVML_RETURN, 0)
    gpus.set(exit__nvmlDeviceGetTemperature=3)
    wait_until(lambda: (r := x.last(Name.SILENCE)) is not None and r.value > 2)
    assert x.last(Name.TIMEOUTS).value == 0
    assert "ended" in x.gauge.reason
    gpus.set(exit__nvmlDeviceGetTemperature=None)
    x.until(Name.SILENCE, 0)
