"""A process of the cluster that has stopped: what asks it does not wait for it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from distributed import Client

import dask_resilient as dr
from tests.support.waiting import wait_until


@pytest.mark.parametrize("which", ["nanny", "worker"])
def test_one_that_does_not_answer_holds_up_nobody(which, tmp_path):
    """With a nanny or a worker that hangs, installing and leaving take seconds, and the others are protected."""
    dask_command = str(Path(sys.executable).with_name("dask"))
    file = tmp_path / "scheduler.json"
    options = ["--host", "127.0.0.1", "--no-dashboard", "--scheduler-file", str(file)]
    started = []

    def start(*command):
        started.append(
            subprocess.Popen([dask_command, *command, *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        )

    try:
        start("scheduler", "--port", "0")
        wait_until(file.exists, 30, "the scheduler is up")
        start("worker", "--nanny", "--nthreads", "1")
        start("worker", "--nanny", "--nthreads", "1")
        with Client(scheduler_file=str(file)) as client:
            client.wait_for_workers(2, 30)
            pids = client.run(os.getpid)
            address, worker = next((a, p) for a, p in pids.items() if psutil.Process(p).ppid() == started[1].pid)
            stopped = started[1].pid if which == "nanny" else worker
            os.kill(stopped, signal.SIGSTOP)
            begin = time.monotonic()
            handle = dr.install(client, store=tmp_path / "store")
            rows = {row["worker"]: row["protected"] for row in handle.workers()}
            assert rows == {a: a != address or which == "nanny" for a in pids}
            handle.uninstall()
            assert time.monotonic() - begin < 25
            os.kill(stopped, signal.SIGCONT)
    finally:
        for process in reversed(started):
            process.send_signal(signal.SIGCONT)
            process.terminate()
            process.wait(20)
