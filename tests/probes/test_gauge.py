"""The probe process and its gauge: which device a process has, what was read last, and what a hung NVML does to it."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest

from dask_resilient.probes import device, process
from dask_resilient.probes.device import COMMAND, Gauge
from tests.support import fakegpu
from tests.support.waiting import wait_until


@pytest.fixture
def start():
    """Start gauges that are stopped at the end; no process and no thread is left over."""
    gauges = []

    def start(**kwargs):
        gauges.append(Gauge(**{"silence": 1.0, "patience": 20.0, "first_delay": 0.05, **kwargs}))
        gauges[-1].start()
        return gauges[-1]

    before = {p.pid for p in psutil.Process().children()}
    yield start
    for gauge in gauges:
        gauge.stop()
    wait_until(lambda: not [t for t in threading.enumerate() if t.name == "dask-resilient-gauge"])
    wait_until(lambda: not {p.pid for p in psutil.Process().children()} - before)


def say(*lines, then="sys.stdin.read()"):
    """Give the command of a probe process that says some lines."""
    code = f"import sys, os, time\nfor line in {lines!r}: print(line, flush=True)\n{then}"
    return [sys.executable, "-c", code]


DEVICE = json.dumps({"uuid": "GPU-1", "name": "A", "memory": 80, "own": True})
READING = json.dumps({"round": True, "utilization": 7, "used": 5})

# -- on the real pynvml ------------------------------------------------------------------------------------------------

VISIBLE = {
    "index": ("1,0", {}, 1),
    "uuid": (fakegpu.uuid(1), {}, 1),
    "none set": (None, {}, 0),
    "CUDA counts in another order than NVML": ("0,1", {"FAKE_CUDA_ORDER": "1,0"}, 1),
}


@pytest.mark.parametrize(("visible", "environment", "index"), VISIBLE.values(), ids=VISIBLE)
def test_device_is_the_first_that_cuda_shows(visible, environment, index, gpus, start, monkeypatch):
    """Under an index, a UUID, and where CUDA's order is not NVML's; without a list it is not the process's own."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    for name, value in {"CUDA_VISIBLE_DEVICES": visible, **environment}.items():
        if value is not None:
            monkeypatch.setenv(name, value)
    gpus.gpu(index, util_gpu=37, mem_used=123)
    gauge = start()
    found = gauge.wait(10)
    assert found is not None
    assert (found.uuid, found.memory, found.own) == (fakegpu.uuid(index), 80 * fakegpu.GIB, visible is not None)
    wait_until(lambda: gauge.real_time() == {"utilization": 37, "memory-used": 123})


def test_empty_list_of_devices_means_none(gpus, start, monkeypatch):
    """And the reason says so; the host is read all the same."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    gauge = start()
    heard = []
    gauge.listen(heard.extend)
    assert gauge.wait(10) is None
    assert gauge.reason == "CUDA_VISIBLE_DEVICES is empty"
    wait_until(lambda: {r.name for r in heard} >= {"host-memory", "host-files"})
    assert {r.device for r in heard} == {""}


def test_driver_that_is_not_loaded_is_waited_for(gpus, start):
    """NVML's own words are the reason: Dask saw a GPU here, so the driver may come back."""
    gpus.set(return__nvmlInitWithFlags=9)
    gauge = start()
    wait_until(lambda: gauge.reason == "NVML: Driver Not Loaded")
    gpus.set(return__nvmlInitWithFlags=None)
    assert gauge.wait(10)


def test_order_of_devices_is_not_guessed(gpus, start, monkeypatch):
    """Where the CUDA driver does not answer, a number says nothing, unless CUDA was told to count as NVML does."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,0")
    monkeypatch.setenv("FAKE_CUDA_INIT", "999")
    gauge = start()
    wait_until(lambda: "does not say which device it counts first" in gauge.reason)
    assert gauge.device is None
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    assert start().wait(10).uuid == fakegpu.uuid(1)


def test_many_open_files_do_not_blind_it(gpus, start):
    """A worker of a wide cluster has more than the 1,024 that select can name."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(2048, hard), hard))
    files = [Path(os.devnull).open() for _ in range(1100)]  # noqa: SIM115
    try:
        gauge = start()
        assert gauge.wait(10)
        wait_until(lambda: gauge.reason == "")
    finally:
        for file in files:
            file.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_no_pynvml_means_none(start):
    """A worker without it has no device that anybody could watch."""
    gauge = start(command=[sys.executable, "-S", *COMMAND[1:]])
    assert gauge.wait(10) is None
    assert gauge.reason == "pynvml is not installed"


def test_hang_makes_the_state_unknown_and_ends(gpus, start):
    """The device stays known, its state does not; when NVML answers again, so does the gauge."""
    gauge = start()
    assert gauge.wait(10)
    gpus.gpu(0, hang__nvmlDeviceGetUtilizationRates=60)
    wait_until(lambda: "hangs" in gauge.reason)
    wait_until(lambda: math.isnan(gauge.real_time()["memory-used"]))
    assert gauge.device is not None
    gpus.gpu(0, hang__nvmlDeviceGetUtilizationRates=None, util_gpu=9)
    wait_until(lambda: gauge.real_time()["utilization"] == 9)
    assert gauge.reason == ""


def test_hang_at_the_start_is_waited_for_a_bounded_time(gpus, start):
    """Whoever waits for the device gets nothing, in time; it is told as soon as it is known."""
    gpus.set(hang__nvmlInitWithFlags=60)
    gauge = start()
    told = []
    gauge.tell(told.append)
    assert gauge.wait(0.3) is None
    gpus.set(hang__nvmlInitWithFlags=None)
    wait_until(lambda: told)
    assert told == [gauge.device]


def test_lost_device_is_unknown_with_nvmls_words_and_comes_back(gpus, start):
    """An error of one reading ends nothing."""
    gauge = start(silence=10.0)
    assert gauge.wait(10)
    process = gauge._process._process
    gpus.gpu(0, **{"return": 15})
    wait_until(lambda: gauge.reason == "NVML: GPU is lost")
    gpus.gpu(0, **{"return": None})
    wait_until(lambda: gauge.reason == "")
    assert gauge._process._process is process


def test_probe_process_ends_with_its_parent(gpus):
    """Also where that is killed while NVML hangs."""
    code = (
        "from dask_resilient.probes import device\ngauge = device.acquire()\nassert gauge.wait(10)\n"
        "print(gauge._process._process.pid, flush=True)\nimport time\ntime.sleep(60)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    child = psutil.Process(int(parent.stdout.readline()))
    gpus.gpu(0, hang=60)
    os.kill(parent.pid, signal.SIGKILL)
    parent.communicate()
    wait_until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)


# -- whatever the probe process does -----------------------------------------------------------------------------------


def test_silent_process_is_replaced_with_growing_delay(start, monkeypatch):
    """Each one that says nothing is killed; the next one comes later and later, at most a minute."""
    delays = []
    wait = threading.Event.wait
    monkeypatch.setattr(process, "LONGEST_DELAY", 0.35)
    monkeypatch.setattr(
        threading.Event, "wait", lambda event, seconds=None: delays.append((event, seconds)) or wait(event, seconds)
    )
    gauge = start(command=say(then="time.sleep(60)"), patience=0.1, first_delay=0.1)

    def found():
        return [seconds for event, seconds in delays if event is gauge._process._stop and seconds > 0.05]

    wait_until(lambda: len(found()) >= 4)
    assert found()[:4] == pytest.approx([0.1, 0.2, 0.35, 0.35], abs=0.01)


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (say(then="os._exit(3)"), "ended"),
        (say("no JSON"), "cannot be started"),
        (["/no/such/program"], "cannot be started"),
        (say(DEVICE, json.dumps({"error": "lost"})), "NVML: lost"),
    ],
    ids=["ends", "talks nonsense", "is not there", "tells of an error"],
)
def test_whatever_it_does_the_state_is_unknown_with_the_reason(command, reason, start):
    """And nothing is raised."""
    gauge = start(command=command)
    wait_until(lambda: reason in gauge.reason)
    assert gauge.real_time()["utilization"] is None


def test_listener_that_raises_is_told_of_once(start, caplog):
    """It is asked again, and the others hear everything."""
    reading = json.dumps({"probe": "host", "readings": [["host-memory", 0.5, "", None]]})
    gauge = start(command=say(then=f"while True: print({reading!r}, flush=True); time.sleep(0.02)"))
    asked, heard = [], []

    def bad(readings):
        asked.append(readings)
        raise KeyError("bad")

    gauge.listen(bad)
    gauge.listen(heard.extend)
    wait_until(lambda: len(asked) > 3 and len(heard) > 3)
    gauge.unlisten(bad)
    assert len([r for r in caplog.records if "readings could not be taken" in r.getMessage()]) == 1


@pytest.mark.parametrize("expected", [True, False])
def test_trouble_is_warned_of_where_a_gpu_is_expected(expected, start, caplog):
    """A host without one may have NVML installed, and its workers are as they should be."""
    gauge = start(command=say(json.dumps({"error": "Driver Not Loaded", "code": 9})))
    if expected:
        gauge.expect()
    wait_until(lambda: "Driver Not Loaded" in gauge.reason)
    assert bool([r for r in caplog.records if "unknown" in r.getMessage()]) is expected


def test_process_is_not_blamed_when_its_parent_did_not_get_to_listen(start):
    """A worker that holds the GIL hears later what was said in time."""
    gauge = start(
        command=say(DEVICE, then=f"while True: print({READING!r}, flush=True); time.sleep(0.02)"), silence=2.0
    )
    assert gauge.wait(10)
    process, heard = gauge._process._process, []

    def busy(readings):
        heard.extend(readings)

    hear, held = gauge._process._hear, []

    def slow(said):
        if not held:
            held.append(threading.Event().wait(3.0))
        return hear(said)

    gauge.listen(busy)
    gauge._process._hear = slow
    wait_until(lambda: held)
    wait_until(lambda: gauge.reason == "")
    assert gauge._process._process is process
    assert not [r for r in heard if r.name == "silence" and r.value]


def test_old_reading_is_not_the_present_state(start, monkeypatch):
    """What was read last is unknown again when it is older than a few seconds."""
    gauge = start(command=say(DEVICE, READING))
    wait_until(lambda: gauge.real_time() == {"utilization": 7, "memory-used": 5})
    monkeypatch.setattr(device, "STALE", 0.0)
    assert math.isnan(gauge.real_time()["memory-used"])


def test_one_gauge_serves_all_of_a_process(monkeypatch):
    """It stops with the last of them, and whoever comes later gets a new one."""
    monkeypatch.setattr(device.Gauge.__init__, "__defaults__", (say(DEVICE, READING), 5.0, 5.0, 1.0))
    first, second = device.acquire(), device.acquire()
    assert first is second
    device.release()
    assert first._process._thread.is_alive()
    assert not first._process.stopped
    device.release()
    wait_until(lambda: not first._process._thread.is_alive())
    third = device.acquire()
    assert third is not first
    device.release()
    wait_until(lambda: not third._process._thread.is_alive())
