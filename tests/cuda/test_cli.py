"""The command line as clusters are started: ``dask scheduler`` and ``dask cuda worker``, with our preload on both."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import dask.array as da
import numpy as np
import pytest
from distributed import Client, wait

import dask_resilient as dr
from tests.support.fakegpu import uuid
from tests.support.leftovers import children
from tests.support.waiting import wait_until

DASK = str(Path(sys.executable).with_name("dask"))


@pytest.fixture
def start(cuda, tmp_path):
    """Start commands that end with the test, and leave no process behind."""
    before = children()
    started = []

    def start(*command):
        with (tmp_path / f"log-{len(started)}").open("w") as log:
            started.append(subprocess.Popen([DASK, *command], stdout=log, stderr=subprocess.STDOUT))

    yield start
    for process in reversed(started):
        process.send_signal(signal.SIGTERM)
        process.wait(20)
    wait_until(lambda: not children() - before, 20, f"every process ends: {children() - before}")


def plus_one(block):
    """Be the user's function."""
    return block + 1


def test_preload_on_the_command_line_protects_from_the_start(start, tmp_path, monkeypatch):
    """Each worker's GPU is known when it joins; a killed worker's partitions come back; nothing is left at the end."""
    monkeypatch.setenv("DASK_RESILIENCE__STORE", str(tmp_path / "store"))
    file = str(tmp_path / "scheduler.json")
    common = ("--preload", "dask_resilient.preload", "--host", "127.0.0.1")
    start("scheduler", *common, "--port", "0", "--dashboard-address", ":0", "--scheduler-file", file)
    start("cuda", "worker", *common, "--dashboard-address", ":0", "--scheduler-file", file)
    wait_until(Path(file).exists, 30, "the scheduler is up")
    with Client(scheduler_file=file, timeout=30) as client:
        client.wait_for_workers(2, timeout=30)
        handle = dr.connect(client)
        rows = handle.workers()
        assert {row["device"] for row in rows} == {uuid(0), uuid(1)}
        assert all(row["protected"] for row in rows)
        extra = client.run_on_scheduler(lambda dask_scheduler: [ws.extra for ws in dask_scheduler.workers.values()])
        assert {entry["resilience"]["uuid"] for entry in extra} == {uuid(0), uuid(1)}

        marked = dr.checkpoint(da.ones(8, chunks=1).map_blocks(plus_one), "two").persist()
        wait(marked)
        wait_until(lambda: sum(row["state"] == "durable" for row in handle.checkpoints()) == 8)
        pids = client.run(os.getpid)
        victim = rows[0]
        os.kill(pids[victim["worker"]], signal.SIGKILL)
        wait_until(lambda: handle.incidents() and handle.incidents()[0]["seconds"] is not None)
        (row,) = handle.incidents()
        assert row["device"] == victim["device"]
        assert row["lost"] == row["reloaded"] > 0
        assert row["recomputed"] == 0
        np.testing.assert_array_equal(marked.compute(), np.full(8, 2.0))
        assert handle.uninstall()
