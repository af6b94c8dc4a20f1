"""What watching the devices costs: the scheduler's CPU, the probe process, a sweep, the canary.

Run: ``python benchmarks/health_cost.py [--part scheduler,tasks,probe] [--watch 60] [--json FILE]``, on fake GPUs as
health.py: a call into NVML takes no time, so a sweep is what Python makes of it.

scheduler: CPU seconds inside all that is done about health there, of two idle workers, and of 100 with 18 links each
whose messages are played back on a clock of their own. tasks: the figure of overhead.py, with probes and without.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
from health import HEALTHY, becomes, control, figure, installed, local, run
from table import arguments


def main() -> None:
    args = arguments(__doc__ or "", part="scheduler,tasks,probe", watch=60.0, rounds=5, tasks=20_000)
    run({"scheduler": scheduler, "tasks": tasks, "probe": probe}, "watching fake GPUs", args)


# -- the scheduler's CPU ----------------------------------------------------------------------------------------------


def scheduler(args: Any) -> list[dict[str, Any]]:
    gpus = control(**{"gpu*.links": 18})
    first: dict[str, Any] = {}
    with local() as (cluster, client), installed(client):
        cluster.sync(meter, cluster.scheduler, first)
        cluster.sync(becomes, cluster.scheduler, 0, HEALTHY, "", lambda: None)
        before = cluster.sync(used, cluster.scheduler)
        time.sleep(args.watch)
        share = (cluster.sync(used, cluster.scheduler) - before) / (args.watch)
    gpus.clear()
    names = f"{len(first['new'])} readings of a worker"
    return [
        figure("our share of the scheduler, 2 idle workers", [share], "% of a core", 100),
        figure(f"our share, 100 workers, {names}", [many(first) for _ in range(3)], "% of a core", 100),
    ]


def parts_of(care: Any) -> tuple[tuple[Any, str], ...]:
    return (care.verdicts, "readings"), (care.verdicts, "tick"), (care._work, "tick"), (care.blame, "tick")


async def meter(scheduler: Any, longest: dict[str, Any] | None = None) -> None:
    """Put clocks around all that is done about health; keeps the longest message of a worker."""
    from time import thread_time

    care = scheduler.plugins["resilience"]._watch.care
    care.used = 0.0

    def clocked(call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any) -> Any:
            if longest is not None and len(args) > 1 and len(args[1]["new"]) > len(longest.get("new", ())):
                longest.update(args[1])
            begin = thread_time()
            try:
                return call(*args)
            finally:
                care.used += thread_time() - begin

        return timed

    for owner, name in parts_of(care):
        setattr(owner, name, clocked(getattr(owner, name)))


async def used(scheduler: Any) -> float:
    return float(scheduler.plugins["resilience"]._watch.care.used)


def event(*args: Any, **fields: Any) -> None:
    """Stand in for the log of events."""


def many(first: dict[str, Any], workers: int = 100, minutes: int = 12, measured: int = 2) -> float:
    """Let 100 workers, 8 a host, send for some minutes of a clock of its own; give CPU seconds a second of the last."""
    from unittest.mock import patch

    from dask_resilient import config
    from dask_resilient.scheduler import care, keeper, verdicts
    from dask_resilient.scheduler.members import Members

    handlers = {"worker-status-change": event}
    fake = SimpleNamespace(address="ucx://127.0.0.1:1", workers={}, tasks={}, stream_handlers=handlers, loop=None)
    members = Members()
    settings = config.read()
    nothing = SimpleNamespace(store=None)
    watch = SimpleNamespace(settings=settings, scheduler=fake, members=members, run="", queue=nothing, event=event)
    watch.ledger = watch.detour = nothing
    subject = care.Care(fake, settings, None, event, keeper.Keeper(watch))
    now, spent = [0.0], 0.0
    ours = {"probe": "nvml", "device": "", "name": "temperature", "text": "", "own": None}
    with ExitStack() as clocks:
        for module in (care, verdicts, keeper):
            clocks.enter_context(patch.object(module, "time", lambda: now[0]))
        for i in range(workers):
            record = members.add(f"w{i}", i, f"host{i // 8}", 0.0)
            record.gpu = f"GPU-{i:03}"
            subject.joined(record)
            subject._keeper.joined(record)
            state = {"metrics": {}, "last_seen": 0.0, "processing": (), "executing": {}}
            fake.workers[f"w{i}"] = SimpleNamespace(address=f"w{i}", **state)
        for second in range(1, 60 * minutes + 1):
            now[0] = float(second)
            begin = time.thread_time()
            for i in range(second % 5, workers, 5):
                new = [{**ours, "value": 40 + (second + i) % 30, "time": now[0]}]
                if second <= 5:
                    new = [{**row, "time": now[0]} for row in first["new"]]
                still = second % 20 == i % 20
                subject.verdicts.readings(f"w{i}", {"sent": now[0], "new": new, "still": still, "pace": {}})
            for ws in fake.workers.values():
                ws.last_seen = ws.metrics["time"] = now[0]
            subject._tick()
            spent += (time.thread_time() - begin) * (second > 60 * (minutes - measured))
    assert {record.verdict.health for record in members._members.values()} == {HEALTHY}
    return spent / (60 * measured)


def tasks(args: Any) -> list[dict[str, Any]]:
    """Take the figure of overhead.py, with probes and without, in turns."""
    import overhead
    from distributed import Client
    from distributed.deploy.subprocess import SubprocessCluster

    # The scheduler imports `overhead`, too.
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), os.environ["PYTHONPATH"]])
    shares, walls, ours = {}, {}, []
    with SubprocessCluster(n_workers=2, threads_per_worker=1) as cluster, Client(cluster) as client:
        overhead.tiny(client, args.tasks)
        for i in range(args.rounds):
            for on in (True, False) if i % 2 else (False, True):
                with installed(client, enabled=on):
                    client.run_on_scheduler(overhead.meter_on)
                    client.run_on_scheduler(meter_there)
                    walls.setdefault(on, []).append(overhead.tiny(client, args.tasks))
                    read = client.run_on_scheduler(overhead.meter_read)
                    shares.setdefault(on, []).append(read["ours"] / read["cpu"])
                    ours += [client.run_on_scheduler(used_there) / read["cpu"]] if on else []
    ratios = [on / off for on, off in zip(walls[True], walls[False], strict=True)]
    return [
        figure(f"hooks, {args.tasks:,} tiny tasks, probes off", shares[False], "% of scheduler CPU", 100),
        figure(f"hooks, {args.tasks:,} tiny tasks, probes on", shares[True], "% of scheduler CPU", 100),
        figure("of it, and of ticks, for health", ours, "% of scheduler CPU", 100),
        figure("wall time of tiny tasks, on over off", ratios, "ratio"),
        figure("spread of wall times, off", [max(walls[False]) / min(walls[False])], "ratio"),
    ]


async def meter_there(dask_scheduler: Any) -> None:
    await meter(dask_scheduler)


async def used_there(dask_scheduler: Any) -> float:
    return await used(dask_scheduler)


# -- the probe process ------------------------------------------------------------------------------------------------


def probe(args: Any) -> list[dict[str, Any]]:
    import numpy as np
    import pynvml

    from dask_resilient.probes import canary
    from dask_resilient.probes.nvml import Nvml

    rows = []
    for what, links, visible in (("a GPU", 0, "0"), ("a GPU of 18 links", 18, "0"), ("no GPU", 0, "")):
        control(**{"gpu*.links": links})
        rows += process(f"probe process, {what}", visible, args.watch)
        if visible:
            pynvml.nvmlInit()
            handle = pynvml.nvmlDeviceGetHandleByIndex(0)
            uuid = pynvml.nvmlDeviceGetUUID(handle)
            device = Nvml(pynvml, handle, uuid, "", lambda words: nullcontext())  # noqa: ARG005
            for full in (True, False):  # links are looked for in a full one
                times = timed(lambda: list(device.sweep(full=full)), 100)  # noqa: B023
                rows.append(figure(f"one sweep{', full' if full else ''}, {what}", times, "ms", 1e3))
    rows.append(figure("canary on NumPy, the first", timed(lambda: canary.is_right(np), 1), "ms", 1e3))
    rows.append(figure("canary on NumPy", timed(lambda: canary.is_right(np), 20), "ms", 1e3))
    return rows


def timed(call: Callable[[], Any], times: int) -> list[float]:
    found = []
    for _ in range(times):
        begin = time.perf_counter()
        call()
        found.append(time.perf_counter() - begin)
    return found


def process(what: str, visible: str, seconds: float) -> list[dict[str, Any]]:
    from dask_resilient.probes.device import COMMAND

    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": visible, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.DEVNULL}
    with subprocess.Popen(COMMAND, env=environment, **pipes) as running:
        running.stdin.write(b"{}\n")  # it waits for its options
        running.stdin.flush()
        inside = psutil.Process(running.pid)
        time.sleep(6)  # the first, full sweep is over
        before = sum(inside.cpu_times()[:2])
        time.sleep(seconds)
        share = (sum(inside.cpu_times()[:2]) - before) / seconds
        memory = inside.memory_full_info()
        running.kill()
    return [
        figure(f"{what}: memory (RSS)", [memory.rss / 2**20], "MiB"),
        figure(f"{what}: of its own (USS)", [memory.uss / 2**20], "MiB"),
        figure(f"{what}: CPU", [share], "% of a core", 100),
    ]


if __name__ == "__main__":
    main()
