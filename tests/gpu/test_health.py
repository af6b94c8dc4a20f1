"""What is read of a real GPU, the canary on it, and what a real error of CUDA is taken for."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time

import pytest

from dask_resilient.core.cuda_errors import classify
from dask_resilient.core.faults import Class
from dask_resilient.core.health import Health, judge
from dask_resilient.core.limits import Limits
from dask_resilient.core.readings import Baseline, Name
from dask_resilient.probes.canary import Canary, readings
from dask_resilient.probes.device import Gauge
from tests.gpu.test_arrays import SLOW
from tests.support.waiting import wait_until

pytestmark = pytest.mark.gpu


@pytest.fixture
def gauge():
    """Give a gauge of the first device, and what it read."""
    pytest.importorskip("pynvml")
    gauge, told = Gauge(), []
    gauge.configure(interval=0.5)
    gauge.listen(told.extend)
    gauge.start()
    yield gauge, told
    gauge.stop()
    wait_until(lambda: not [t for t in threading.enumerate() if t.name == "dask-resilient-gauge"])


PLAUSIBLE = {
    Name.NVML_RETURN: {0},
    Name.PRESENT: {True},
    Name.RECOVERY_ACTION: range(5),
    Name.TEMPERATURE: range(5, 105),
    Name.CLOCKS_REASONS: range(2**16),
    Name.PCIE_GENERATION: range(1, 8),
    Name.PCIE_WIDTH: {1, 2, 4, 8, 16, 32},
    Name.PCIE_WIDTH_MAX: {1, 2, 4, 8, 16, 32},
    Name.TEMPERATURE_SHUTDOWN: range(60, 130),
    Name.MARGIN: range(-20, 130),
    Name.MEMORY_TEMPERATURE: range(5, 115),
    Name.ECC_UNCORRECTED: range(2**20),
    Name.REMAPPED_ROWS: range(2**10),
    Name.INFOROM: {True, False},
}
"""What a device that works gives, where it gives anything."""


def test_readings_of_a_device_are_plausible(gauge):
    """Each is a number that such a device can have, or unknown with a reason; and nothing of them speaks against it."""
    gauge, told = gauge
    device = gauge.wait(20)
    assert device is not None, gauge.reason
    assert device.uuid.startswith(("GPU-", "MIG-"))
    assert device.memory > 2**30
    wait_until(lambda: sum(r.name == Name.NVML_RETURN for r in told) >= 3, 20, "three sweeps")
    seen = [r for r in list(told) if r.device == device.uuid]
    assert [r for r in seen if r.value is None and not r.text] == []
    for r in seen:
        assert r.value is None or r.name not in PLAUSIBLE or r.value in PLAUSIBLE[r.name], r
    known = {r.name for r in seen if r.value is not None}
    assert {Name.NVML_RETURN, Name.PRESENT, Name.TEMPERATURE, Name.CLOCKS_REASONS} <= known, known
    verdict = judge(seen, Baseline(device.uuid).advance(seen), Limits(), time.time())
    assert verdict.health in {Health.HEALTHY, Health.DEGRADED}, verdict
    assert gauge.real_time()["memory-used"] > 0


def test_xids_can_be_waited_for(gauge):
    """The driver takes the registration; where it does not, each sweep says why."""
    gauge, told = gauge
    wait_until(lambda: sum(r.name == Name.NVML_RETURN for r in told) >= 2, 20, "two sweeps")
    assert [r.text for r in list(told) if r.name == Name.XID] == []


def test_the_canary_is_right(cupy):
    """By CuPy, on the device; what it took is back, and the current stream and device are what they were."""
    before = cupy.cuda.get_current_stream(), cupy.cuda.Device().id
    (reading,) = readings("GPU-0", True)
    assert (reading.name, reading.value) == (Name.CANARY, "right"), reading
    pool = cupy.get_default_memory_pool()
    used, held = pool.used_bytes(), []
    for _ in range(10):
        told = []
        Canary().start("GPU-0", True, told.extend)
        wait_until(lambda told=told: told)
        assert told[0].value == "right", told
        held.append(pool.total_bytes())
    assert pool.used_bytes() == used
    assert held[-1] == held[0]
    assert (cupy.cuda.get_current_stream(), cupy.cuda.Device().id) == before


def test_the_canary_does_not_wait_for_tasks(cupy):
    """A kernel that runs on the tasks' stream meanwhile is still running when the canary has its answer."""
    readings("GPU-0", True)  # loads what it needs
    kernel = cupy.RawKernel(SLOW, "slow")
    value = cupy.zeros(10)
    cycles = int(cupy.cuda.Device().attributes["ClockRate"])
    kernel((1,), (32,), (value, cupy.int64(10), cupy.int64(1)))
    cupy.cuda.Device().synchronize()
    kernel((1,), (32,), (value, cupy.int64(10), cupy.int64(3000 * cycles)))
    (reading,) = readings("GPU-0", True)
    assert reading.value == "right"
    assert not cupy.cuda.Stream.null.done
    cupy.cuda.Device().synchronize()


ILLEGAL = r"""
import json
import cupy
from dask_resilient.core.messages import texts
from dask_resilient.probes.canary import readings

kernel = cupy.RawKernel('extern "C" __global__ void wild(int* p) { p[1LL << 36] = 1; }', "wild")
readings("GPU-0", True)
try:
    kernel((1,), (1,), (cupy.zeros(1, "i4"),))
    cupy.cuda.Device().synchronize()
except Exception as e:
    said = texts(e)
print(json.dumps([said, [r.to_dict() for r in readings("GPU-0", True)]]), flush=True)
import os
os._exit(0)
"""
"""In a process of its own, since no other kernel runs in it any more."""


def test_an_illegal_address_costs_the_process(cupy):
    """It is recognised by what CuPy says of it; the canary of that process is unknown, and says the same."""
    done = subprocess.run([sys.executable, "-c", ILLEGAL], capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stderr
    said, after = json.loads(done.stdout.splitlines()[-1])
    fault = classify(said)
    assert fault is not None, said
    assert (fault.code, fault.cls, fault.sticky) == (700, Class.KILL, True), said
    canary, error = after
    assert (canary["name"], canary["value"]) == (Name.CANARY, None), after
    assert (error["name"], error["value"]) == (f"{Name.CUDA_ERROR}.700", Class.KILL), after
