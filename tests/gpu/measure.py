"""The measurements of ``check.py``, each a part in a process of its own.

Run: ``python -m tests.gpu.measure copies|health|job``. A row is written as soon as it is known, so that
a part that does not end gives what it has.
"""
# ruff: noqa: T201  (its output is for people)

from __future__ import annotations

import json
import logging
import math
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import psutil
from distributed import Client, LocalCluster, wait

import dask_resilient as dr
from dask_resilient import partitions
from dask_resilient.testing.codecs import payload_of, staged
from tests.support.waiting import wait_until

MIB = 2**20
SIZES = (1, 16, 64, 192, 1024)
"""MiB of a partition; the last one is more than the pool of pinned memory gives."""

PARTS, SECONDS = 16, 0.25
"""The job: how many partitions, and how long a function takes beside its work on the device."""


def part_mib(*, cpu: bool) -> int:
    """Give the MiB of a partition of the job; small where only the script is tried."""
    return 4 if cpu else 64


def tell(what: str, figure: float, unit: str) -> None:
    """Write one row, and print it."""
    text = f"{figure:,.3g}"
    print(f"{what}: {text} {unit}", flush=True)
    if "GPU_CHECK_ROWS" in os.environ:
        with Path(os.environ["GPU_CHECK_ROWS"]).open("a") as file:
            file.write(json.dumps({"what": what, "figure": text, "unit": unit}) + "\n")


def best(function: Callable[[], Any], seconds: float = 1.0) -> float:
    """Time the fastest of some calls, at least three."""
    fastest, calls, end = math.inf, 0, time.perf_counter() + seconds
    while calls < 3 or time.perf_counter() < end:
        begin = time.perf_counter()
        function()
        fastest = min(fastest, time.perf_counter() - begin)
        calls += 1
    return fastest


def copies(*, cpu: bool) -> None:
    """Measure what staging and restoring take, by size."""
    for mib in SIZES[:3] if cpu else SIZES:
        host = np.random.default_rng(0).random(mib * MIB // 8)
        if cpu:
            value = host
        else:
            import cupy

            value = cupy.asarray(host)
            copy_speed(value, mib)
        result = staged(value)
        payload = payload_of(result)
        gb = value.nbytes / 1e9
        tell(f"stage {mib} MiB, checksum included", gb / best(lambda v=value: staged(v)), "GB/s")  # type: ignore[misc]
        tell(f"restore {mib} MiB", gb / best(lambda r=result, p=payload: give_back(r, p)), "GB/s")  # type: ignore[misc]


def copy_speed(value: Any, mib: int) -> None:
    """Measure the copy alone, to pinned and to ordinary memory."""
    from dask_resilient.partitions import driver
    from dask_resilient.partitions.pinned import Pool

    for kind, pool in (("pinned", Pool(2048 * MIB)), ("ordinary", Pool(0))):
        memory = pool.take(value.nbytes, 0)
        seconds = best(lambda m=memory: driver.read(0, value.data.ptr, m))  # type: ignore[misc]
        tell(f"copy {mib} MiB to {kind} memory", value.nbytes / 1e9 / seconds, "GB/s")
        begin = time.perf_counter()
        del memory
        pool.take(value.nbytes, 0)
        tell(f"take {mib} MiB of {kind} memory again", (time.perf_counter() - begin) * 1e3, "ms")
        pool.trim()


def give_back(result: Any, payload: Any) -> None:
    partitions.restore(result.codec, result.schema, payload)


# -- how a device is watched -------------------------------------------------------------------------------------------


def health(*, cpu: bool) -> None:
    """Measure the canary and the probe process, and count what the device tells."""
    from dask_resilient.core.readings import Name
    from dask_resilient.probes.canary import readings
    from dask_resilient.probes.device import Gauge

    begin = time.perf_counter()
    for what in ("canary, the first", "canary, again"):
        (reading,) = readings("here", not cpu)
        assert reading.value == "right", reading
        tell(what, (time.perf_counter() - begin) * 1e3, "ms")
        begin = time.perf_counter()
    tell("canary, the fastest", best(lambda: readings("here", not cpu)) * 1e3, "ms")
    told: list[Any] = []
    gauge = Gauge()
    gauge.listen(told.extend)
    begin = time.perf_counter()
    gauge.start()
    last = Name.HOST_FILES if cpu else Name.NVML_RETURN
    wait_until(lambda: any(reading.name == last for reading in told), 30, "the first readings")
    tell("probe process, from its start to the first readings", time.perf_counter() - begin, "s")
    (process,) = psutil.Process().children()
    tell("probe process, memory", process.memory_info().rss / MIB, "MiB")
    first = {reading.name: reading for reading in told}
    tell("readings that are known", sum(reading.value is not None for reading in first.values()), "")
    tell("readings that are unknown", sum(reading.value is None for reading in first.values()), "")
    for name, reading in sorted(first.items()):
        print(f"  {name}: {reading.text if reading.value is None else reading.value}", flush=True)
    gauge.stop()


# -- a job whose worker is killed --------------------------------------------------------------------------------------


def work(block_id: Any = None, cpu: bool = False) -> Any:
    """Make one partition, which takes its time."""
    time.sleep(SECONDS)
    n = part_mib(cpu=cpu) * MIB // 8
    if cpu:
        return np.arange(n, dtype="f8") + block_id[0]
    import cupy

    return cupy.arange(n, dtype="f8") + block_id[0]


def total(block: Any, cpu: bool = False) -> Any:
    """Sum up one partition, which has to be of the library that made it."""
    assert type(block).__module__ == ("numpy" if cpu else "cupy"), type(block)
    return np.asarray([float(block.sum())])


def cluster(*, cpu: bool) -> Any:
    """Start one worker with a nanny: of dask-cuda where that is installed, else a plain one."""
    options = {"n_workers": 1, "threads_per_worker": 1, "dashboard_address": ":0", "silence_logs": logging.ERROR}
    if not cpu:
        try:
            from dask_cuda import LocalCUDACluster
        except ImportError as e:
            print(f"plain workers in place of dask-cuda's: {e}", flush=True)
        else:
            return LocalCUDACluster(**options)
    return LocalCluster(**options)


def job(*, cpu: bool) -> None:
    """Measure what saving costs, and what the loss of the worker costs, with and without us."""
    figures = {ours: run(cpu=cpu, ours=ours) for ours in (False, True)}
    size = f"{PARTS} partitions of {part_mib(cpu=cpu)} MiB"
    for ours, (calm, again) in figures.items():
        tell(f"{size}, {'all saved' if ours else 'none saved'}", calm, "s")
        tell(f"the same after its worker was killed, {'reloaded' if ours else 'recomputed'}", again, "s")
    tell("saving costs the job", 100 * (figures[True][0] / figures[False][0] - 1), "%")


def states(res: Any) -> Counter[str]:
    """Count the partitions by their state."""
    return Counter(each["state"] for each in res.checkpoints())


def run(*, cpu: bool, ours: bool) -> tuple[float, float]:
    """Give the seconds until all partitions are there, and again after the worker that holds them is killed."""
    n = part_mib(cpu=cpu) * MIB // 8
    with (
        tempfile.TemporaryDirectory(dir=os.environ.get("GPU_CHECK_TMP")) as store,
        cluster(cpu=cpu) as made,
        Client(made) as client,
        dr.install(client, store=store) if ours else nullcontext() as res,
    ):
        client.run(work, block_id=(0,), cpu=cpu)  # the first use of a device takes seconds
        parts = da.map_blocks(work, chunks=((n,) * PARTS,), dtype="f8", meta=np.empty(0), cpu=cpu)
        begin = time.perf_counter()
        held = dr.checkpoint(parts, "parts").persist()
        wait(held)
        calm = time.perf_counter() - begin
        if res is not None:
            wait_until(lambda: states(res)["durable"] == PARTS, 30, "every partition is durable")
        ((address, pid),) = client.run(os.getpid).items()
        begin = time.perf_counter()
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: client.ncores().keys() - {address}, 30, "the worker is back")
        print(f"the worker was back after {time.perf_counter() - begin:.1f} s", flush=True)
        begin = time.perf_counter()
        sums = held.map_blocks(total, dtype="f8", meta=np.empty(0), chunks=((1,) * PARTS,), cpu=cpu).compute()
        again = time.perf_counter() - begin
        assert sums.tolist() == [n * (n - 1) / 2 + i * n for i in range(PARTS)]
        if res is not None:
            (incident,) = res.incidents()
            assert (incident["reloaded"], incident["recomputed"]) == (PARTS, 0), incident
    return calm, again


if __name__ == "__main__":
    with dask.config.set({"distributed.comm.timeouts.connect": "20s"}):
        {"copies": copies, "health": health, "job": job}[sys.argv[1]](cpu="--cpu" in sys.argv)
