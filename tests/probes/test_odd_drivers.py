"""Drivers and libraries that know less, answer otherwise or slowly, and devices that go: through the real pynvml."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from dask_resilient.core.health import Health
from dask_resilient.core.nvml import NVML_REASONS
from dask_resilient.core.readings import Name
from dask_resilient.probes.nvml import OLD
from tests.support import fakegpu
from tests.support.listening import GPU
from tests.support.waiting import wait_until

OLD_PYNVML = """
import sys
from functools import wraps
from pathlib import Path

real = next(f for p in sys.path if (f := Path(p) / "pynvml.py").is_file() and f != Path(__file__))
exec(compile(real.read_text(), str(real), "exec"), globals())


def old(function):
    @wraps(function)
    def wrapper(*args):
        if any(isinstance(arg, str) for arg in args):
            raise TypeError("bytes or integer address expected instead of str instance")
        answer = function(*args)
        return answer.encode() if isinstance(answer, str) else answer

    return wrapper


for name in ("nvmlDeviceGetUUID", "nvmlDeviceGetName", "nvmlDeviceGetHandleByUUID", "nvmlSystemGetDriverVersion"):
    globals()[name] = old(globals()[name])
for name in MISSING:
    del globals()[name]
"""
"""A pynvml that answers with bytes, takes nothing else, and has fewer functions."""

LATER = {
    "nvmlDeviceGetFieldValues": Name.RECOVERY_ACTION,
    "nvmlDeviceGetMarginTemperature": Name.MARGIN,
    "nvmlDeviceGetGpuFabricInfoV": Name.FABRIC,
    "c_nvmlEccSramErrorStatus_v1_t": Name.SRAM_THRESHOLD,
    "nvmlDeviceGetRowRemapperHistogram": Name.REMAP_EXHAUSTED,
    "nvmlEventSetWait_v2": Name.XID,
}


def test_an_old_pynvml_hides_only_what_it_cannot_ask(gpus, nvml, tmp_path, monkeypatch):
    """It answers with bytes, wants bytes, and what it lacks is unknown; throttle reasons have an older name."""
    missing = [*LATER, "nvmlDeviceGetCurrentClocksEventReasons"]
    (tmp_path / "old").mkdir()
    (tmp_path / "old/pynvml.py").write_text(OLD_PYNVML.replace("MISSING", repr(missing)))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "old"), prepend=os.pathsep)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", GPU)
    gpus.gpu(0, name="as the old one says", throttle=0x8, ecc_u_vol=2)
    x = nvml()
    x.until(Name.NVML_RETURN, 0)
    assert (x.gauge.device.uuid, x.gauge.device.name) == (GPU, "as the old one says")
    assert x.gauge.driver["driver"] == "580.95.05"
    assert (x.last(Name.PRESENT).value, x.last(Name.ECC_UNCORRECTED).value) == (True, 2)
    assert x.last(Name.CLOCKS_REASONS).value == 0x8
    x.until(Name.XID, None)
    assert {x.last(name).text for name in LATER.values()} == {OLD}


def test_a_device_without_events_is_read_all_the_same(gpus, nvml):
    """XIDs are then unknown from NVML; when the options are set anew they are tried again."""
    gpus.gpu(0, return__nvmlDeviceRegisterEvents=3)
    x = nvml()
    x.until(Name.NVML_RETURN, 0)
    x.until(Name.XID, None)
    assert x.last(Name.XID).text == NVML_REASONS[3]
    assert x.verdict().health is Health.HEALTHY
    gpus.gpu(0, return__nvmlDeviceRegisterEvents=None)
    x.gauge.configure(interval=0.2)

    def told():
        gpus.xid(0, 13)
        return (r := x.last(Name.XID)) is not None and r.value == 13

    wait_until(told)


def test_xids_that_the_device_does_not_report_are_unknown(gpus, nvml):
    """It lets one register for other events only."""
    gpus.gpu(0, event_types=0x8000)
    x = nvml()
    x.until(Name.XID, None)
    assert x.last(Name.XID).text == NVML_REASONS[3]


def test_a_slice_is_unknown_and_its_log_is_the_whole_device(gpus, nvml, tmp_path, monkeypatch):
    """Of MIG slices nearly nothing is told, and that is no fault; the kernel log names the GPU."""
    source = (Path(fakegpu.__file__).parent / "fake_nvml.c").read_text()
    asked = {word.split('"')[1] for word in source.split("DEV(")[1:] if word.startswith('"nvmlDevice')}
    known = {"nvmlDeviceGetUUID", "nvmlDeviceGetName", "nvmlDeviceGetDeviceHandleFromMigDeviceHandle"}
    gpus.gpu(0, uuid="MIG-1", mig_parent=1, **{f"return.{name}": 3 for name in asked - known})
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-1")
    log = tmp_path / "kmsg"
    log.touch()
    x = nvml(kernel_log=str(log))
    wait_until(lambda: x.last(Name.NVML_RETURN) is not None)
    assert x.gauge.device.memory is None
    unknown = {r.name: r.text for r in x.readings if r.probe == "nvml" and r.value is None}
    assert {*unknown} >= set(Name) - {n for n in Name if n.startswith(("nvlink", "host"))} - NOT_NVML
    assert set(unknown.values()) == {NVML_REASONS[3]}
    x.until(Name.KERNEL_LOG, True)
    with log.open("a") as file:
        file.write("4,1,1,-;NVRM: Xid (PCI:0000:02:00 GPU-I:05): 94, pid=7, name=p, Contained\n")
    assert x.until(Name.XID, 94).own in (None, False)


NOT_NVML = {
    *(Name.EVENT, Name.NVML_RETURN, Name.PRESENT, Name.CUDA_ERROR, Name.CANARY, Name.INDICTED, Name.EXHAUSTED),
    *(Name.STATED, Name.KERNEL_LOG, Name.SILENCE, Name.TIMEOUTS, Name.OVERLOADED),
    *(Name.SLOW_DOWN, Name.HANG, Name.STALE_METRICS, Name.NOT_ANSWERING),
}


def test_a_call_that_hangs_hides_no_other(gpus, nvml):
    """What is asked before it is told; each new process gets as far."""
    gpus.gpu(0, hang__nvmlDeviceGetTemperature=60)
    x = nvml()
    wait_until(lambda: x.last(Name.ECC_UNCORRECTED) is not None)
    gpus.gpu(0, ecc_u_vol=4)
    x.until(Name.ECC_UNCORRECTED, 4)
    wait_until(lambda: (r := x.last(Name.TIMEOUTS)) is not None and r.value >= 1)


@pytest.mark.slow
def test_a_slow_device_is_no_hung_one(gpus, nvml):
    """Each call takes its time, and all of them more than one may."""
    gpus.gpu(0, hang=0.25)
    x = nvml(seconds={"silence": 5.0}, interval=60)
    wait_until(lambda: x.gauge.device is not None)
    begin = time.monotonic()
    wait_until(lambda: x.last(Name.NVML_RETURN) is not None, seconds=60)
    assert time.monotonic() - begin > 5
    wait_until(lambda: x.gauge.reason == "")
    assert not [r for r in x.readings if r.name in {Name.TIMEOUTS, Name.OVERLOADED} and r.value]


def test_a_field_can_say_that_the_device_is_lost(gpus, nvml, tmp_path):
    """The call succeeds then, and the field does not."""
    x = nvml()
    x.until(Name.NVML_RETURN, 0)
    gpus.gpu(0, **{"field_return.230": 15})
    x.until(Name.NVML_RETURN, 15)


def test_another_device_is_never_taken_for_a_lost_one(gpus, nvml, monkeypatch):
    """After a loss the index means the next one, and a new probe process would find that one well."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    x = nvml()
    x.until(Name.PRESENT, True)
    device = x.gauge.device
    gpus.gpu(0, uuid=fakegpu.uuid(7))
    x.gauge._process._process.send_signal(signal.SIGKILL)
    x.readings.clear()
    x.until(Name.PRESENT, False)
    assert x.gauge.device == device
    assert not [r for r in x.readings if r.probe == "nvml" and r.name == Name.TEMPERATURE]
    gpus.gpu(0, uuid=None)
    x.until(Name.PRESENT, True)
    assert x.gauge.device == device


def test_a_flood_of_events_is_no_flood_of_questions(gpus, nvml):
    """They are told in parts, and the device is read once for many."""
    x = nvml(interval=60)
    x.until(Name.NVML_RETURN, 0)
    before = len([r for r in x.readings if r.name == Name.NVML_RETURN])
    for xid in range(250):
        gpus.xid(0, 1000 + xid)
    x.until(Name.XID, 1249)
    found = [r.value for r in x.readings if r.name == Name.XID]
    assert found == [1000 + xid for xid in range(250)]
    assert len([r for r in x.readings if r.name == Name.NVML_RETURN]) - before <= 10


@pytest.mark.slow
def test_a_device_that_hangs_for_good_is_evicted_in_time(gpus, nvml):
    """With the real seconds: in doubt after 15, hung after 45, and by then more than one process was killed for it."""
    x = nvml(seconds={"silence": 5.0, "patience": 20.0, "first_delay": 1.0}, interval=5.0)
    x.until(Name.NVML_RETURN, 0)
    begin = time.monotonic()
    gpus.gpu(0, hang=600)
    seen = []

    def verdict():
        found = x.verdict()
        if not seen or seen[-1][1:] != (found.health, found.rule):
            seen.append((time.monotonic() - begin, found.health, found.rule))
        return found.health

    wait_until(lambda: verdict() is Health.UNHEALTHY, seconds=60)
    assert [health for _, health, _ in seen] == [Health.HEALTHY, Health.UNKNOWN, Health.UNHEALTHY]
    assert 14 <= seen[1][0] < 30  # since the last answer, which was up to half a second before
    assert 44 <= seen[2][0] < 60
    assert x.last(Name.TIMEOUTS).value >= 2


def test_a_log_that_comes_later_is_read(gpus, nvml, tmp_path):
    """It is tried again each minute, and when the options are set anew; a line may name the process that listens."""
    log = tmp_path / "kmsg"
    x = nvml(kernel_log=str(log))
    x.until(Name.KERNEL_LOG, None)
    assert x.last(Name.KERNEL_LOG).text == f"{log}: No such file or directory"
    log.touch()
    x.gauge.configure(interval=0.2)
    text = x.until(Name.KERNEL_LOG, True).text
    with log.open("a") as file:
        file.write(f"4,1,1,-;NVRM: Xid (PCI:0000:01:00): 31, pid={os.getpid()}, name=python3, x\n")
    assert x.until(Name.XID, 31).own is (None if "namespace" in text else True)
