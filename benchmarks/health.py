"""How soon a fault of a device is known, and that a call into NVML that hangs stalls nobody.

Run: ``python benchmarks/health.py [--part signals,lag] [--repeats 20] [--hang 20] [--json FILE]``, with dask-cuda
installed and without an NVIDIA driver: faults are injected into the fakes of the tests, compiled for the run. So a call
into NVML takes no time here, while everything above the driver is real: processes, pipes, event loops, rules.

signals: from the injected signal to the verdict in the scheduler's rows. lag: largest gap beyond ticks of 10 ms on the
event loops of scheduler, nannies and workers, each in a process of its own, while a call into NVML hangs.
"""

from __future__ import annotations

import asyncio
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import dask
from startup import see_gpus
from table import arguments, show

HEALTHY = "healthy"


def main() -> None:
    args = arguments(__doc__ or "", part="signals,lag", repeats=20, hangs=5, dead=2, hang=20.0, rounds=3)
    run({"signals": signals, "lag": lag}, "faults of fake GPUs", args)


def run(parts: dict[str, Callable[[Any], list[dict[str, Any]]]], title: str, args: Any) -> None:
    """Measure what is asked for, on the fakes."""
    if not see_gpus():
        sys.exit("this machine has an NVIDIA driver: faults cannot be injected")
    warnings.simplefilter("ignore")
    show(title, [row for name in args.part.split(",") for row in parts[name](args)], args.json)


def figure(what: str, values: list[float], unit: str, scale: float = 1.0) -> dict[str, Any]:
    """Give a row, and print it: a run takes long."""
    median, worst = scale * statistics.median(values), scale * max(values)
    print(f"{what}: median {median:.4g}, worst {worst:.4g} {unit} ({len(values)})", flush=True)
    return {"what": what, "median": median, "worst": worst, "unit": unit, "repeats": len(values)}


def control(**keys: Any) -> Any:
    from tests.support.fakegpu import Control

    return Control(Path(os.environ["FAKE_NVML_FILE"]), **keys)


@contextmanager
def installed(client: Any, **settings: Any) -> Iterator[Any]:
    import dask_resilient as dr

    values = {f"resilience.probe.{name}": value for name, value in settings.items()}
    with dask.config.set(values):
        handle = dr.install(client, store=tempfile.mkdtemp())
    yield handle
    handle.uninstall(wait=0)


@contextmanager
def local() -> Iterator[tuple[Any, Any]]:
    """Give a cluster of two fake GPUs, whose scheduler and nannies live in this process."""
    from dask_cuda import LocalCUDACluster
    from distributed import Client

    with LocalCUDACluster(n_workers=2, dashboard_address=":0", silence_logs=50) as cluster, Client(cluster) as client:
        yield cluster, client


# -- from the signal to the verdict -----------------------------------------------------------------------------------

Inject = Callable[[Any, int], Any]

SIGNALS: dict[str, tuple[float, str, Inject | None]] = {
    "XID 79, as an event": (5, "xid.79", lambda gpus, i: gpus.xid(i, 79)),
    "device lost": (5, "nvml.15", lambda gpus, i: gpus.gpu(i, **{"return": 15})),
    "a counter rises, read every 5 s": (5, "ecc-uncorrected", lambda gpus, i: gpus.gpu(i, ecc_u_vol=1)),
    "a counter rises, read every 0.5 s": (0.5, "ecc-uncorrected", lambda gpus, i: gpus.gpu(i, ecc_u_vol=1)),
    "sticky error of a task": (5, "cuda.700", None),
}
"""Interval of the probes, the rule expected, and how it is injected; None = by a task."""


def signals(args: Any) -> list[dict[str, Any]]:
    gpus, rows = control(), []
    with local() as (cluster, client):
        for what, signal in SIGNALS.items():
            found = [one(cluster, client, gpus, i % 2, *signal) for i in range(args.repeats)]
            rows.append(figure(what, found, "s"))
        found = [hanging(cluster, client, gpus, i % 2, i < args.dead) for i in range(args.hangs)]
    rows.append(figure("a call into NVML hangs: unknown", [times[0] for times in found], "s"))
    rows.append(figure("a call into NVML hangs: unhealthy", [t for times in found for t in times[1:]], "s"))
    return rows


def one(cluster: Any, client: Any, gpus: Any, i: int, interval: float, rule: str, inject: Inject | None) -> float:
    """Give the seconds to one verdict; what is injected comes at any moment of the interval."""
    with well(cluster, client, gpus, interval):
        time.sleep(random.uniform(0, interval))
        if inject is None:
            address = cluster.sync(address_of, cluster.scheduler, i)
            future = client.submit(sticky, workers=[address], pure=False)
        at, begin = cluster.sync(becomes, cluster.scheduler, i, "unhealthy", rule, lambda: inject and inject(gpus, i))
        return at - (begin if inject else float(str(future.exception()).rpartition(" ")[2]))


def hanging(cluster: Any, client: Any, gpus: Any, i: int, dead: bool) -> list[float]:
    """Give the seconds to UNKNOWN, and to UNHEALTHY if that is asked for."""
    with well(cluster, client, gpus, 5):
        time.sleep(random.uniform(0, 5))
        at, begin = cluster.sync(becomes, cluster.scheduler, i, "unknown", "silence", lambda: gpus.gpu(i, hang=600))
        times = [at - begin]
        if dead:
            at, _ = cluster.sync(becomes, cluster.scheduler, i, "unhealthy", "silence", lambda: None)
            times.append(at - begin)
        return times


@contextmanager
def well(cluster: Any, client: Any, gpus: Any, interval: float) -> Iterator[None]:
    """Install anew, without a fault, and wait until both devices are healthy."""
    gpus.clear()
    with installed(client, interval=interval):
        for i in range(2):
            cluster.sync(becomes, cluster.scheduler, i, HEALTHY, "", lambda: None)
        yield
    gpus.clear()


def member(scheduler: Any, i: int) -> dict[str, Any]:
    rows = scheduler.plugins["resilience"]._watch.members.rows()
    return next((row for row in rows if row["device"].endswith(f"{i:012x}")), {"health": "", "rule": "", "worker": ""})


async def address_of(scheduler: Any, i: int) -> str:
    return str(member(scheduler, i)["worker"])


async def becomes(scheduler: Any, i: int, health: str, rule: str, inject: Callable[[], Any]) -> tuple[float, float]:
    """Inject, and look every 5 ms on the scheduler's loop; give when the verdict was there, and when it began."""
    begin = time.time()
    inject()
    while (row := member(scheduler, i))["health"] != health or row["rule"] != rule:
        assert time.time() - begin < 120, row
        await asyncio.sleep(0.005)
    return time.time(), begin


def sticky() -> None:
    raise RuntimeError(f"cudaErrorIllegalAddress: an illegal memory access was encountered at {time.time():.6f}")


# -- event loops while a call hangs -----------------------------------------------------------------------------------

LAGS = (("plugin, no hang", True, False), ("plugin, hang", True, True), ("no plugin, hang", False, True))


def lag(args: Any) -> list[dict[str, Any]]:
    """Scheduler, nannies and workers in processes of their own; the call of one of two devices hangs."""
    gpus, gaps = control(), {}
    with apart() as client:
        for _ in range(args.rounds):
            for name, plugged, hangs in LAGS:
                gpus.clear()
                with installed(client) if plugged else nullcontext():
                    time.sleep(3)
                    everywhere(client, tick)
                    if hangs:
                        gpus.gpu(0, hang=600)
                    time.sleep(args.hang)
                    gpus.clear()  # those that hang go on
                    for where, values in everywhere(client, ticked).items():
                        gaps.setdefault((where, name), []).append(max(values))
    return [figure(f"largest gap, {where}: {name}", values, "ms", 1e3) for (where, name), values in gaps.items()]


@contextmanager
def apart() -> Iterator[Any]:
    from distributed import Client

    with ExitStack() as stack:
        file = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "scheduler.json"
        dask_ = [sys.executable, "-m", "dask"]
        commands = (
            [*dask_, "scheduler", "--host", "127.0.0.1", "--port", "0", "--dashboard-address", ":0"],
            [*dask_, "cuda", "worker", "--dashboard-address", ":0"],
        )
        for command in commands:
            process = subprocess.Popen([*command, "--scheduler-file", str(file)], stderr=subprocess.DEVNULL)
            stack.callback(process.wait)
            stack.callback(process.terminate)
        client = stack.enter_context(Client(scheduler_file=str(file), timeout=60))
        client.wait_for_workers(2)
        yield client


def everywhere(client: Any, call: Callable[..., Any]) -> dict[str, list[float]]:
    return {
        "scheduler": [client.run_on_scheduler(call)],
        "nannies": list(client.run(call, nanny=True).values()),
        "workers": list(client.run(call).values()),
    }


async def tick(dask_scheduler: Any = None, dask_worker: Any = None) -> None:
    node = dask_scheduler or dask_worker
    node.gap, node.ticking = 0.0, True

    async def ticks() -> None:
        last = time.perf_counter()
        while node.ticking:
            await asyncio.sleep(0.01)
            now = time.perf_counter()
            node.gap, last = max(node.gap, now - last - 0.01), now

    node.ticks = asyncio.ensure_future(ticks())


async def ticked(dask_scheduler: Any = None, dask_worker: Any = None) -> float:
    node = dask_scheduler or dask_worker
    node.ticking = False
    await node.ticks
    return float(node.gap)


if __name__ == "__main__":
    main()
