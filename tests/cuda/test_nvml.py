"""NVML off the event loops of scheduler, nannies and workers, and Dask's GPU pages as before."""

from __future__ import annotations

import collections
import os
import time
import urllib.request

import psutil
import pytest
from distributed import Client

import dask_resilient as dr
from dask_resilient.internals import nvml
from tests.support.waiting import wait_until

LOOPS = 2.0
"""Seconds that are watched: the system monitor would call four times a process."""


def callers(log, seconds):
    """Give how often each process calls NVML during some seconds."""
    start = len(log.read_text().splitlines())
    deadline = time.monotonic() + seconds
    wait_until(lambda: time.monotonic() > deadline)
    return collections.Counter(int(line.split()[0]) for line in log.read_text().splitlines()[start:])


@pytest.fixture
def log(tmp_path_factory, monkeypatch):
    """Log every call into NVML, with the process."""
    path = tmp_path_factory.mktemp("log") / "nvml"
    path.touch()
    monkeypatch.setenv("FAKE_NVML_CALLLOG", str(path))
    return path


def test_only_probe_processes_call_nvml(log, own):
    """After installing; before, and after uninstalling, the scheduler, the nannies and the workers do."""
    x = own()
    workers = {ws.pid for ws in x.ask(lambda: list(x.scheduler.workers.values()))}
    before = callers(log, LOOPS)
    assert set(before) >= {os.getpid(), *workers}
    x.install(quarantine__observe=True)  # what is lost or hangs stays where it is
    x.known()
    during = callers(log, LOOPS)
    assert not set(during) & {os.getpid(), *workers}
    assert {psutil.Process(pid).ppid() for pid in during} == workers
    assert all("gauge.py" in " ".join(psutil.Process(pid).cmdline()) for pid in during)
    assert x.handle.uninstall()
    assert set(callers(log, LOOPS)) >= {os.getpid(), *workers}


def test_cluster_that_closes_with_the_plugin_leaves_nothing_in_the_process(cuda, tmp_path):
    """A script that never uninstalls may start another cluster, whose monitors see the GPUs again."""
    from dask_cuda import LocalCUDACluster

    with (
        LocalCUDACluster(n_workers=1, dashboard_address=":0", silence_logs=False) as cluster,
        Client(cluster) as client,
    ):
        dr.install(client, store=tmp_path / "store")
        assert nvml._stand_in
    assert not nvml._stand_in


def test_pages_show_the_values_of_the_devices(x, cuda):
    """Utilisation and memory of each GPU follow it, in the metrics and on Dask's own pages."""
    x.install(quarantine__observe=True)  # what is lost or hangs stays where it is
    x.known()
    cuda.gpu(0, util_gpu=37, mem_used=11)
    cuda.gpu(1, util_gpu=73, mem_used=22)

    def values():
        return {
            str(ws.name): (ws.metrics["gpu_utilization"], ws.metrics["gpu_memory_used"])
            for ws in x.scheduler.workers.values()
        }

    x.until(lambda: values() == {"0": (37, 11), "1": (73, 22)}, what="the metrics follow")
    port = x.scheduler.http_server.port
    for page in ("gpu", "individual-gpu-utilization", "individual-gpu-memory"):
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/{page}", timeout=10) as answer:
            assert answer.status == 200

    from distributed.dashboard.components.nvml import GPUCurrentLoad

    def page():
        load = GPUCurrentLoad(x.scheduler)
        load.update()
        return sorted(load.source.data["utilization"]), sorted(load.source.data["memory"])

    assert x.ask(page) == ([37, 73], [11, 22])
    cuda.gpu(0, hang=60)
    x.until(lambda: None in [value[0] for value in values().values()], what="an unknown value is unknown")
    assert x.ask(page)[0] == [0, 73]
    cuda.clear()  # else Dask's own way, which uninstalling gives back, would hang


def test_gpu_that_hangs_stalls_nobody(x, cuda):
    """GPU 0 is the scheduler's own too: its loop, the nannies' and the workers' go on."""
    x.install(quarantine__observe=True)  # what is lost or hangs stays where it is
    x.known()
    cuda.gpu(0, hang=60)
    cuda.gpu(1, hang=60)
    deadline = time.monotonic() + 3
    slowest = 0.0
    while time.monotonic() < deadline:
        begin = time.monotonic()
        assert sum(x.client.gather(x.client.map(abs, range(8), pure=False))) == 28
        slowest = max(slowest, time.monotonic() - begin)
    assert slowest < 2
    cuda.clear()


def test_gpu_that_is_lost_freezes_no_metric(x, cuda):
    """The other metrics of the worker go on; plain Dask's stand still then."""
    x.install(quarantine__observe=True)  # what is lost or hangs stays where it is
    x.known()
    cuda.gpu(0, **{"return": 15})
    x.until(
        lambda: (
            next(ws for ws in x.scheduler.workers.values() if str(ws.name) == "0").metrics["gpu_utilization"] is None
        )
    )
    first = x.ask(lambda: {ws.address: ws.metrics["time"] for ws in x.scheduler.workers.values()})
    x.until(lambda: all(ws.metrics["time"] > first[ws.address] for ws in x.scheduler.workers.values()))
    cuda.clear()
