"""What knowing the devices costs: the start of a dask-cuda cluster, the probe processes, Dask's system monitor.

Run: ``python benchmarks/startup.py [--rounds 5] [--watch 10] [--json FILE]``, with dask-cuda installed.

On a machine without an NVIDIA driver the cluster runs on the fakes of the tests, compiled for the run: the times of the
start are then real, those of a call into NVML are not. Rounds are interleaved and medians are given.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import psutil
from table import arguments, show

ROOT = Path(__file__).parent.parent

KINDS = ("plain dask-cuda", "installed from the client", "preload on every worker, then installed")


def main() -> None:
    args = arguments(__doc__ or "", rounds=5, watch=10.0)
    fake = see_gpus()
    runs: dict[str, list[dict[str, float]]] = {}
    for _ in range(args.rounds):
        for kind in KINDS:
            runs.setdefault(kind, []).append(run(kind, 0.0 if runs.get(kind) else args.watch))
    rows = [summary(kind, runs[kind]) for kind in KINDS]
    show(f"a cluster of two {'fake ' if fake else ''}GPUs", rows, args.json)


def see_gpus() -> bool:
    """Say whether the GPUs are fakes; this process is started anew to see those."""
    sys.path.insert(0, str(ROOT))
    from tests.support import fakegpu

    if fakegpu.real_driver():
        return False
    if "FAKE_NVML_FILE" not in os.environ:
        directory = Path(tempfile.mkdtemp(prefix="startup-"))
        environment = fakegpu.Control(directory / "control").environment(fakegpu.build(directory))
        paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **environment, "PYTHONPATH": paths})
    return True


def summary(kind: str, runs: list[dict[str, float]]) -> dict[str, Any]:
    def median(name: str) -> float:
        found = [run[name] for run in runs if name in run]
        return statistics.median(found) if found else 0.0

    return {
        "run": kind,
        "start, s": median("start"),
        "install, s": median("install"),
        "every GPU known after, s": median("known"),
        "monitor on the loop, us a call": 1e6 * median("monitor"),
        "probe process, % of a core": 100 * median("cpu"),
        "probe process, MiB": median("memory") / 2**20,
    }


def run(kind: str, watch: float) -> dict[str, float]:
    """Start one cluster, and measure."""
    from dask_cuda import LocalCUDACluster
    from distributed import Client

    import dask_resilient as dr

    figures: dict[str, float] = {}
    options = {"preload": ["dask_resilient.preload"]} if kind == KINDS[2] else {}
    begin = time.perf_counter()
    with LocalCUDACluster(n_workers=2, dashboard_address=":0", **options) as cluster, Client(cluster) as client:
        figures["start"] = time.perf_counter() - begin
        with tempfile.TemporaryDirectory() as store, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if kind != KINDS[0]:
                begin = time.perf_counter()
                handle = dr.install(client, store=store)
                figures["install"] = time.perf_counter() - begin
                while not all(row["gpu"] for row in handle.workers()):
                    time.sleep(0.01)
                figures["known"] = time.perf_counter() - begin
            figures["monitor"] = statistics.median(client.run(monitor).values())
            if kind != KINDS[0]:
                if watch:
                    figures |= probes(client, watch)
                handle.uninstall(wait=0)
    return figures


def monitor(dask_worker: Any) -> float:
    """Give the seconds of one call of Dask's system monitor on a worker's event loop."""
    times = []
    for _ in range(50):
        begin = time.perf_counter()
        dask_worker.monitor.update()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def probes(client: Any, watch: float) -> dict[str, float]:
    """Give what a probe process takes."""
    workers = [psutil.Process(pid) for pid in client.run(os.getpid).values()]
    found = [p for w in workers for p in w.children() if "gauge.py" in " ".join(p.cmdline())]
    before = [sum(p.cpu_times()[:2]) for p in found]
    time.sleep(watch)
    after = [sum(p.cpu_times()[:2]) for p in found]
    used = [(b - a) / watch for a, b in zip(before, after, strict=True)]
    return {"cpu": statistics.median(used), "memory": statistics.median(p.memory_info().rss for p in found)}


if __name__ == "__main__":
    main()
