"""Where Dask calls NVML on event loops, and the stand-in that keeps it from there."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
from distributed import system_monitor, worker
from distributed.diagnostics import nvml
from distributed.system_monitor import SystemMonitor

from dask_resilient.internals.nvml import off_loop
from dask_resilient.probes.device import Device

SEES_A_GPU = SimpleNamespace(monitor=SimpleNamespace(gpu_name="A"))
SEES_NONE = SimpleNamespace(monitor=SimpleNamespace(gpu_name=None))


class Source:
    """A gauge without a process."""

    device = Device("GPU-1", "Fake", 80, True)

    def real_time(self):
        return {"utilization": 3, "memory-used": 5}


@pytest.fixture(autouse=True)
def calls(monkeypatch):
    """Count what reaches the real module."""
    calls = []
    for name in ("device_get_count", "one_time", "real_time"):
        monkeypatch.setattr(nvml, name, lambda name=name: calls.append(name) or 0)
    yield calls
    assert system_monitor.nvml is nvml
    assert worker.nvml is nvml


def test_monitor_and_worker_look_nvml_up_where_the_stand_in_is_put(calls):
    """A monitor that is made and updated, and the metric of workers, get the source's values and call nothing."""
    undo = off_loop(SEES_A_GPU, Source())
    monitor = SystemMonitor()
    assert (monitor.gpu_name, monitor.gpu_memory_total) == ("Fake", 80)
    result = monitor.update()
    assert (result["gpu-memory-total"], result["gpu_utilization"], result["gpu_memory_used"]) == (80, 3, 5)
    assert worker.nvml.real_time() == Source().real_time()
    assert not calls
    undo()
    SystemMonitor()
    assert calls == ["device_get_count"]


def test_scheduler_and_nanny_get_nothing_and_servers_made_later_see_no_gpu(calls):
    """Their monitors go on, with unknown values that Dask's pages can compute with."""
    seeing = SystemMonitor()
    seeing.gpu_name, seeing.gpu_memory_total = "A", 80
    for name in ("gpu-memory-total", "gpu_utilization", "gpu_memory_used"):
        seeing.quantities[name] = seeing.quantities["cpu"].__class__(maxlen=2)
    calls.clear()
    undo = off_loop(SEES_A_GPU, None)
    assert math.isnan(seeing.update()["gpu_memory_used"])
    assert SystemMonitor().gpu_name is None
    assert not calls
    undo()


def test_servers_of_one_process_share_it_and_the_last_one_takes_it_away():
    """In any order, and undone twice does no harm."""
    scheduler, work = off_loop(SEES_A_GPU, None), off_loop(SEES_A_GPU, Source())
    assert worker.nvml.device_get_count() == 1
    scheduler()
    scheduler()
    assert worker.nvml.real_time()["utilization"] == 3
    work()
    assert worker.nvml is nvml


def test_where_dask_sees_no_gpu_nothing_is_done():
    """A CPU cluster is left alone."""
    undo = off_loop(SEES_NONE, None)
    assert worker.nvml is nvml
    undo()


def test_everything_else_of_the_module_is_passed_on():
    """What dask-cuda or a later Dask asks of it still comes from it."""
    undo = off_loop(SEES_A_GPU, None)
    assert worker.nvml.has_cuda_context is nvml.has_cuda_context
    undo()


def test_somebody_elses_stand_in_stays(monkeypatch):
    """Who put something over ours keeps it."""
    undo = off_loop(SEES_A_GPU, None)
    other = object()
    with monkeypatch.context() as patch:
        patch.setattr(worker, "nvml", other)
        undo()
        assert worker.nvml is other
    worker.nvml = nvml
