"""What the plugin costs where it has nothing to do, and what its hooks cost when a worker is lost.

Run: ``python benchmarks/overhead.py [--tasks 20000] [--pairs 5] [--repeats 10] [--json FILE]``

The scheduler runs in a process of its own. Wall times of tiny tasks differ from run to run by more than the plugin
costs, so the first figure is exact instead: seconds inside our hooks, rows and handlers, our clock included, over the
CPU seconds of the scheduler's loop. The interleaved A/B beside an A/A shows that nothing larger hides outside of them.
"""

from __future__ import annotations

import statistics
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

from distributed import Client, wait
from distributed.deploy.subprocess import SubprocessCluster
from table import arguments, show

import dask_resilient as dr


def main() -> None:
    args = arguments(__doc__ or "", tasks=20_000, pairs=5, repeats=10, lost=1_000)
    with SubprocessCluster(n_workers=2, threads_per_worker=1) as cluster, Client(cluster) as client:
        tiny(client, args.tasks)  # imports, connections
        rows = [
            *hooks(client, args.tasks),
            *pairs(client, args.tasks, args.pairs),
            *memory(client, args.tasks, args.repeats),
        ]
    rows += [loss(args.lost, stored) for stored in (False, True)]
    show("overhead", rows, args.json)


def row(what: str, value: float, unit: str, goal: str) -> dict[str, Any]:
    print(f"{what}: {value:.4g} {unit} ({goal})", flush=True)
    return {"what": what, "value": value, "unit": unit, "goal": goal}


def store() -> str:
    return str(Path(tempfile.mkdtemp()) / "store")


def inc(x: int, salt: str) -> int:  # noqa: ARG001
    return x + 1


def tiny(client: Client, n: int) -> float:
    """Run n tiny tasks and give the seconds that took."""
    begin = time.perf_counter()
    wait(client.map(inc, range(n), salt=uuid.uuid4().hex, pure=True))
    return time.perf_counter() - begin


# -- seconds inside our code ------------------------------------------------------------------------------------------


def meter_on(dask_scheduler: Any) -> None:
    """Put clocks around every hook, row and handler of ours; the original rows inside ours are taken out again."""
    from time import perf_counter, thread_time

    plugin = dask_scheduler.plugins["resilience"]
    meter = {"ours": 0.0, "inner": 0.0, "calls": 0, "cpu": thread_time()}
    plugin.meter = meter

    def ours(func: Any) -> Any:
        def timed(*args: Any, **kwargs: Any) -> Any:
            before, begin = meter["inner"], perf_counter()
            try:
                return func(*args, **kwargs)
            finally:
                meter["ours"] += perf_counter() - begin - (meter["inner"] - before)
                meter["calls"] += 1

        return timed

    def dasks(func: Any) -> Any:
        def timed(*args: Any, **kwargs: Any) -> Any:
            begin = perf_counter()
            try:
                return func(*args, **kwargs)
            finally:
                meter["inner"] += perf_counter() - begin

        return timed

    for hook in ("transition", "log_event", "add_worker", "remove_worker"):
        setattr(plugin, hook, ours(getattr(plugin, hook)))
    dask_scheduler.stream_handlers["resilience"] = ours(dask_scheduler.stream_handlers["resilience"])
    rows = plugin._watch.rows
    rows._original = {row: dasks(func) for row, func in rows._original.items()}
    table = dask_scheduler._TRANSITIONS_TABLE
    for start, finish in list(table):
        if start in ("waiting", "queued", "no-worker", "processing") and finish in ("released", "memory", "erred"):
            table[start, finish] = ours(rows._leaving(start, finish, rows._original[start, finish]))
        elif table[start, finish].__name__ in dir(rows):
            table[start, finish] = ours(table[start, finish])


def meter_read(dask_scheduler: Any) -> dict[str, float]:
    from time import thread_time

    meter = dict(dask_scheduler.plugins["resilience"].meter)
    return {**meter, "cpu": thread_time() - meter["cpu"]}


def hooks(client: Client, n: int) -> list[dict[str, Any]]:
    shares = []
    for _ in range(3):
        with dr.install(client, store=store()):
            client.run_on_scheduler(meter_on)
            tiny(client, n)
            read = client.run_on_scheduler(meter_read)
        shares.append(100 * read["ours"] / read["cpu"])
    return [row(f"our hooks, {n:,} tiny tasks", statistics.median(shares), "% of scheduler CPU", "at most 2")]


def pairs(client: Client, n: int, k: int) -> list[dict[str, Any]]:
    """Time A/B (without and with the plugin) beside A/A (without, twice), interleaved and in turning order."""
    ab, aa = [], []
    for i in range(k):
        first, second = tiny(client, n), tiny(client, n)
        aa.append(second / first)
        times = {}
        for plugged in (False, True) if i % 2 else (True, False):
            if plugged:
                with dr.install(client, store=store()):
                    times[True] = tiny(client, n)
            else:
                times[False] = tiny(client, n)
        ab.append(times[True] / times[False])
    return [
        row("A/A wall time, median", statistics.median(aa), "ratio", ""),
        row("A/A wall time, range", max(aa) - min(aa), "ratio", ""),
        row("A/B wall time, median", statistics.median(ab), "ratio", "inside the A/A range"),
    ]


# -- memory -----------------------------------------------------------------------------------------------------------


def rss(dask_scheduler: Any) -> float:  # noqa: ARG001
    import gc

    import psutil

    gc.collect()
    return float(psutil.Process().memory_info().rss) / 2**20


def memory(client: Client, n: int, repeats: int) -> list[dict[str, Any]]:
    """Repeat the same load: the second half must not need more than the first."""
    with dr.install(client, store=store()):
        sizes = []
        for _ in range(repeats):
            tiny(client, n)
            sizes.append(client.run_on_scheduler(rss))
    half = repeats // 2
    growth = statistics.median(sizes[half:]) - statistics.median(sizes[:half])
    return [row(f"scheduler memory, {repeats} repeats, growth of the medians", growth, "MiB", "flat")]


# -- a loss -----------------------------------------------------------------------------------------------------------


def loss(n: int, stored: bool) -> dict[str, Any]:
    """Lose n results with one of two workers and give the milliseconds inside our code until the cascade is over."""
    import dask.array as da

    results = []
    for _ in range(3):
        with (
            SubprocessCluster(n_workers=2, threads_per_worker=1) as cluster,
            Client(cluster) as client,
            dr.install(client, store=store()) as res,
        ):
            x = da.ones((2 * n,), chunks=1)
            x = (dr.checkpoint(x, "lost") if stored else x.map_blocks(lambda b: b + 1)).persist()
            wait(x)
            while stored and not all(r["state"] == "durable" for r in res.checkpoints()):
                time.sleep(0.1)
            client.run_on_scheduler(meter_on)
            results.append(client.run_on_scheduler(remove_one))
            wait(x)
    lost, seconds = statistics.median(r[0] for r in results), statistics.median(r[1] for r in results)
    what = f"our hooks for {int(lost):,} lost keys, {'all detoured' if stored else 'nothing stored'}"
    return row(what, 1_000 * seconds * n / max(lost, 1), f"ms per {n:,}", "at most 40" if stored else "at most 5")


async def remove_one(dask_scheduler: Any) -> tuple[int, float]:
    """Remove the worker that holds most, and read the meter at once: all of the cascade runs inside this call."""
    meter = dask_scheduler.plugins["resilience"].meter
    ws = max(dask_scheduler.workers.values(), key=lambda ws: len(ws.has_what))
    lost, before = len(ws.has_what), meter["ours"]
    await dask_scheduler.remove_worker(ws.address, stimulus_id="benchmark", close=False)
    return lost, meter["ours"] - before


if __name__ == "__main__":
    main()
