"""The monitor of a worker on a cluster in this process: readings arrive, and nothing is left when it leaves."""

from __future__ import annotations

import threading
from time import time

import psutil
import pytest
from distributed import LocalCluster
from distributed.client import Client

import dask_resilient as dr
from dask_resilient.core.readings import NOTHING, Name, Reading
from dask_resilient.plugin import NAME
from dask_resilient.probes import device
from dask_resilient.worker import monitor
from tests.support.cluster import Cluster, cluster_test
from tests.support.waiting import until, wait_until


def mine() -> set[str]:
    """Give the names of our threads."""
    return {t.name for t in threading.enumerate() if t.name.startswith("dask-resilient-")}


@cluster_test(resilience__probe__enabled=True, resilience__probe__interval=0.5)
async def test_workers_without_a_gpu_are_healthy_by_host_and_canary(x: Cluster) -> None:
    """Both workers of one process share the probe process."""
    rows = x.watch.members.rows
    await until(lambda: {row["health"] for row in rows()} == {"healthy"})
    assert len(records(x)) == 2
    await until(lambda: all({Name.HOST_MEMORY, Name.CANARY} <= {r.name for r in record.told} for record in records(x)))
    assert len([t for t in mine() if "gauge" in t]) == 1


def records(x: Cluster) -> list:
    return list(x.watch.care.verdicts.records.values())


@cluster_test(resilience__probe__enabled=True, resilience__probe__interval=30)
async def test_a_gpu_that_is_not_the_worker_s_own_is_not_told_of(x: Cluster) -> None:
    """It may never touch it; what the host says is told."""
    side = x.workers[0].plugins[NAME].side
    record = x.watch.care.verdicts.records[x.workers[0].address]
    await until(lambda: Name.HOST_MEMORY in record.told, what="the first sweep is told")
    side._monitor._hear(
        [
            Reading("nvml", "GPU-9", Name.NVML_RETURN, 15, time()),
            Reading("host", "", Name.HOST_MEMORY, 0.01, time()),
            Reading("fans", "", "fan.0", 1200, time()),
        ]
    )
    await until(lambda: record.member.to_dict()["rule"] == "host.memory")
    assert {r.name for r in (*record.told, *record.guests)} & {Name.NVML_RETURN, "fan.0"} == set()


@cluster_test(resilience__probe__enabled=True, resilience__probe__interval=30)
async def test_what_a_third_party_takes_back_leaves_the_row_at_once(x: Cluster) -> None:
    """A class that is stated no more, and what is known again."""
    hear = x.workers[0].plugins[NAME].side._monitor._hear
    row = x.watch.care.verdicts.records[x.workers[0].address].member.to_dict
    fan, stated = "probe.fans.fan.0", "stated.fans"
    await until(lambda: row()["health"] == "healthy")
    hear([Reading.unknown("fans", "", fan, time(), "no sensor"), Reading("fans", "", stated, "degrade", time(), "hot")])
    await until(lambda: row()["class"] == "degrade" and f"{fan}: no sensor" in row()["unknown"])
    hear([Reading("fans", "", fan, 1200, time()), Reading("fans", "", stated, NOTHING, time())])
    await until(lambda: row()["class"] == "observe" and fan not in str(row()["unknown"]))
    assert (row()["health"], row()["rule"]) == ("healthy", "")


@cluster_test(resilience__probe__enabled=True)
async def test_readings_do_not_pile_up_while_the_loop_stands(x: Cluster) -> None:
    """Of what happened meanwhile the newest are told."""
    it = x.workers[0].plugins[NAME].side._monitor
    it._new = [Reading("nvml", "", Name.EVENT, 1, 0.0)]  # as if a flush were on its way
    for i in range(3 * monitor.MOST):
        it._hear([Reading("canary", "", Name.EVENT, i, 0.0)])
    assert len(it._new) <= monitor.MOST
    assert it._new[-1].value == 3 * monitor.MOST - 1
    cut = Reading("canary", "", Name.CANARY, "wrong", 0.0)
    it._hear([cut])
    it._hear([Reading("canary", "", Name.EVENT, i, 0.0) for i in range(monitor.MOST)])
    assert cut not in it._new
    it._hear([cut])
    assert cut in it._new, "what was cut is told with the next reading"


@cluster_test(resilience__probe__enabled=True)
async def test_a_text_with_half_a_character_costs_no_worker_its_connection(x: Cluster) -> None:
    """As the name of a file that is no UTF-8, in a reading or in a reason."""
    side = x.workers[0].plugins[NAME].side
    side._monitor._hear([Reading.unknown("kernel-log", "", Name.HOST_DISK, time(), "/half \udcff: no such file")])
    side.send({"kind": "saving-off", "reason": "/half \udcff: no space"})
    row = x.watch.members.get(x.workers[0].address)
    await until(lambda: row.reason == "/half \\udcff: no space")
    assert len(x.scheduler.workers) == 2


def test_an_entry_point_that_cannot_be_is_told(tmp_path, monkeypatch, caplog):
    """In the log, and as unknown with the reason."""
    monkeypatch.setattr(monitor, "load_entry_points", lambda: ([], [("nvml", "'nvml' cannot be a name")]))
    with (
        LocalCluster(n_workers=1, processes=False, dashboard_address=":0") as cluster,
        Client(cluster) as client,
        dr.install(client, store=tmp_path / "store") as res,
    ):
        wait_until(
            lambda: "probe.nvml: this entry point is left out: 'nvml' cannot" in str(res.workers()[0]["unknown"])
        )
    assert "probe 'nvml' of an installed package is left out" in caplog.text


@pytest.fixture
def broken(monkeypatch):
    """Probe processes cannot be had."""
    monkeypatch.setattr(device, "acquire", lambda **_: 1 / 0)


def test_a_probe_that_cannot_be_started_leaves_the_job_alone(broken, tmp_path, caplog):
    """One line in the log, and the worker is protected."""
    with (
        LocalCluster(n_workers=1, processes=False, dashboard_address=":0") as cluster,
        Client(cluster) as client,
        dr.install(client, store=tmp_path / "store") as res,
    ):
        assert client.submit(sum, [1, 2]).result() == 3
        (row,) = res.workers()
        assert (row["protected"], row["health"]) == (True, "unknown")
    assert len([r for r in caplog.records if "cannot be watched" in r.getMessage()]) == 1


def test_nothing_is_left_after_leaving(tmp_path):
    """No process, no thread, on the worker and on the scheduler; as often as it is installed."""
    before = {p.pid for p in psutil.Process().children()}
    with (
        LocalCluster(n_workers=2, processes=False, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        for _ in range(3):
            with dr.install(client, store=tmp_path / "store") as res:
                wait_until(lambda res=res: {row["health"] for row in res.workers()} == {"healthy"})
            wait_until(lambda: not mine())
            wait_until(lambda: not {p.pid for p in psutil.Process().children()} - before)
