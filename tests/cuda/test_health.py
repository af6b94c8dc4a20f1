"""Health on the real dask-cuda and pynvml: what each fault of a device makes of it, and of the others."""

from __future__ import annotations

import ctypes
import time

import pytest

from tests.support.waiting import wait_until

FAST = {"probe__interval": 0.5, "quarantine__observe": True}


def health(x, name):
    row = next(row for row in x.handle.workers() if row["name"] == name)
    return row["health"], row["rule"]


def row(x, name):
    return next(row for row in x.handle.workers() if row["name"] == name)


@pytest.fixture
def well(x):
    """The plugin is installed, and both devices are healthy."""
    x.install(**FAST)
    x.known()
    x.until(lambda: {r["health"] for r in x.watch.members.rows()} == {"healthy"}, what="both are healthy")
    return x


FAULTS = {
    "lost": ({"return": 15}, "unhealthy", "nvml.15", False),
    "reset required": ({"return": 16}, "unhealthy", "nvml.16", False),
    "a new uncorrectable error": ({"ecc_u_vol": 1}, "unhealthy", "ecc-uncorrected", True),
    "recovery action: drain and reset": ({"fi__230": 4}, "unhealthy", "recovery-action.4", True),
    "recovery action: reset": ({"fi__230": 1}, "unhealthy", "recovery-action.1", False),
    "row remapping failed": ({"rr_failure": 1}, "unhealthy", "remap-failed", True),
    "row remapping pending": ({"rr_pending": 1}, "healthy", "remap-pending", True),
    "hot": ({"temp": 91}, "unhealthy", "temperature", True),
    "warm": ({"temp": 86}, "degraded", "temperature", True),
    "narrow bus": ({"pcie_width": 8}, "degraded", "pcie.width", True),
    "nothing is supported": ({"return": 3}, "unknown", "nvml.3", None),
    "an unknown error": ({"return": 999}, "unknown", "nvml.999", None),
}


@pytest.mark.parametrize(("keys", "how", "rule", "readable"), FAULTS.values(), ids=FAULTS)
def test_a_fault_of_one_device(keys, how, rule, readable, well, cuda):
    """It is seen, named and judged; the other device and the work go on; and when it is gone, so is the verdict."""
    cuda.gpu(0, **keys)
    well.until(lambda: health_of(well, "0") == (how, rule), what=f"it is {how} by {rule}")
    assert row(well, "0")["readable"] is readable
    assert health(well, "1") == ("healthy", "")
    assert sum(well.client.gather(well.client.map(abs, range(8), pure=False))) == 28
    cuda.clear()
    if rule != "ecc-uncorrected":  # that stays: it is told apart by the baseline
        well.until(lambda: health_of(well, "0") == ("healthy", ""), what="it is healthy again")


def health_of(x, name):
    """Give the same on the scheduler's loop."""
    row = of(x, name)
    return row["health"], row["rule"]


def of(x, name):
    return next(row for row in x.watch.members.rows() if row["name"] == name)


@pytest.mark.parametrize(("number", "how"), [(79, "unhealthy"), (63, "healthy"), (92, "degraded")])
def test_an_xid(number, how, well, cuda):
    """It comes as an event, not with the next reading."""
    cuda.xid(1, number)
    well.until(lambda: health_of(well, "1") == (how, f"xid.{number}"))
    assert health(well, "0") == ("healthy", "")
    events = [event for _, event in well.client.get_events("resilience") if event["action"] == "health"]
    if how != "healthy":
        assert (events[-1]["rule"], events[-1]["device"]) == (f"xid.{number}", well.devices()["1"])


def test_the_kernel_log_tells_of_an_xid(x, cuda, tmp_path):
    """With the line as evidence; a pid of another process leaves the worker alone."""
    log = tmp_path / "kmsg"
    log.touch()
    x.install(probe__kernel_log=str(log), **FAST)
    x.known()
    x.until(lambda: {r["health"] for r in x.watch.members.rows()} == {"healthy"})
    with log.open("a") as file:
        file.write("NVRM: Xid (PCI:0000:01:00): 31, pid=1, name=other, x\n")
        file.write("NVRM: Xid (PCI:0000:02:00): 95, pid='<unknown>', name=<unknown>, Uncontained\n")
    x.until(lambda: health_of(x, "1") == ("unhealthy", "xid.95"))
    assert "Uncontained" in row(x, "1")["evidence"][0]
    assert row(x, "0")["health"] == "healthy"


def test_a_device_that_hangs_is_unknown_and_stalls_nobody(well, cuda):
    """The worker, its nanny and the scheduler go on; what is unknown is said, with the call that hangs."""
    cuda.gpu(0, hang=60)
    begin = time.monotonic()
    well.until(lambda: health_of(well, "0") == ("unknown", "silence"), 40)
    assert time.monotonic() - begin > 10
    assert "no answer for" in row(well, "0")["evidence"][0]
    assert health(well, "1") == ("healthy", "")
    assert sum(well.client.gather(well.client.map(abs, range(8), pure=False))) == 28
    cuda.clear()
    well.until(lambda: health_of(well, "0") == ("healthy", ""))


@pytest.mark.slow
def test_a_device_that_hangs_for_good_is_given_up(well, cuda):
    """After one time-out of NVIDIA's firmware, and two probe processes."""
    cuda.gpu(0, hang=120)
    well.until(lambda: health_of(well, "0") == ("unhealthy", "silence"), 70)
    assert row(well, "0")["readable"] is False
    cuda.clear()
    well.until(lambda: health_of(well, "0") == ("healthy", ""))


class Raises:
    name = "raises"
    interval = 0.2

    def read(self, device):
        raise ValueError(device)


class Fans:
    name = "fans"
    interval = 0.2

    def read(self, device):
        return [("stated", "drain", "fan 2 stands still")] if device.endswith("1") else []


def test_a_probe_that_raises_changes_nothing_else(x):
    """The job runs, the device is judged by the others, and the row says what is unknown."""
    x.install(probes=[Raises, Fans], **FAST)
    x.known()
    x.until(lambda: health_of(x, "1") == ("unhealthy", "stated.fans"))
    x.until(lambda: health_of(x, "0") == ("healthy", ""))
    x.until(lambda: any("probe 'raises' raised ValueError" in text for text in of(x, "0")["unknown"]))
    assert sum(x.client.gather(x.client.map(abs, range(8), pure=False))) == 28


def hold(seconds):
    ctypes.PyDLL(None).sleep(seconds)
    return seconds


def test_a_task_that_holds_the_lock_is_busy_not_sick(well):
    """Nothing can be heard of the worker; the row says why, and the result arrives."""
    (address,) = [row["worker"] for row in well.handle.workers() if row["name"] == "0"]
    future = well.client.submit(hold, 12, workers=[address])
    well.until(lambda: any("busy, not answering" in text for text in evidence(well, "0")))
    seen = {health(well, "0")[0]}
    assert wait_until(future.done, 40)
    assert future.result() == 12
    seen.add(health(well, "0")[0])
    assert "unhealthy" not in seen
    well.until(lambda: health_of(well, "0") == ("healthy", ""))


def evidence(x, name):
    return of(x, name)["evidence"]


def test_without_probes_no_process_is_started(x):
    """And the row says which setting."""
    x.install(probe__enabled=False)
    x.known()
    assert row(x, "0")["health"] == "unknown"
    assert "resilience.probe.enabled" in row(x, "0")["evidence"][0]
