"""What the loss of a worker costs: plain Dask and dask-resilient side by side.

Run: ``python benchmarks/recovery.py [--partitions 48] [--seconds 0.5] [--rounds 3] [--json FILE]``

Three stages of costly functions over each partition; the results are kept. One of four workers is killed with SIGKILL
when 70 % of the functions have run. Time lost = wall time of that run less that of the same run without the kill. The
functions sleep, so that the machine's cores decide nothing; rounds are interleaved and medians are given.
"""

from __future__ import annotations

import os
import signal
import statistics
import tempfile
import threading
import time
import warnings
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
from distributed import Client, LocalCluster, wait
from table import arguments, show

import dask_resilient as dr

STAGES = ("read", "transform", "fit")


def main() -> None:
    args = arguments(__doc__ or "", partitions=48, seconds=0.5, rounds=3)
    runs: dict[tuple[bool, bool], list[dict[str, float]]] = {}
    for _ in range(args.rounds):
        for kill in (False, True):
            for ours in (False, True):
                runs.setdefault((ours, kill), []).append(run(args.partitions, args.seconds, ours=ours, kill=kill))
    rows = [summary(ours, runs[ours, False], runs[ours, True]) for ours in (False, True)]
    rows[1]["of plain Dask's"] = rows[1]["time lost, s"] / rows[0]["time lost, s"]
    rows[0]["of plain Dask's"] = 1.0
    show("one of four workers killed at 70 %", rows, args.json)


def summary(ours: bool, calm: list[dict[str, float]], killed: list[dict[str, float]]) -> dict[str, Any]:
    def median(runs: list[dict[str, float]], name: str) -> float:
        return statistics.median(run[name] for run in runs)

    return {
        "run": "dask-resilient" if ours else "plain Dask",
        "no kill, s": median(calm, "wall"),
        "killed, s": median(killed, "wall"),
        "time lost, s": median(killed, "wall") - median(calm, "wall"),
        "functions run again": int(median(killed, "again")),
        "saved functions run again": int(max(run["saved_again"] for run in killed)),
    }


def run(partitions: int, seconds: float, *, ours: bool, kill: bool) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as directory:
        calls = Path(directory) / "calls"
        calls.mkdir()
        with (
            LocalCluster(n_workers=4, threads_per_worker=1, dashboard_address=None) as cluster,
            Client(cluster) as client,
            dr.install(client, store=f"{directory}/store") if ours else nullcontext() as res,
        ):
            x = da.from_array(np.arange(partitions, dtype="f8"), chunks=1)
            for stage in STAGES:
                # Marked in both runs: without the plugin a milestone is a pass-through, and it keeps Dask from fusing
                # the three stages into one task, so that both runs have the same functions to run again.
                x = x.map_blocks(costly, stage, str(calls), seconds, dtype="f8", meta=np.empty(0))
                x = dr.checkpoint(x, stage)
            saved: set[str] = set()
            if kill:
                threading.Thread(target=kill_at, args=(client, calls, partitions, res, saved), daemon=True).start()
            begin = time.perf_counter()
            kept = x.persist()
            wait(kept)
            total = float(kept.sum().compute())
            wall = time.perf_counter() - begin
            assert total == sum(i + len(STAGES) for i in range(partitions)), total
            if kill and res is not None:
                print(res.report())
        counts = read(calls)
    again = {name: n - 1 for name, n in counts.items() if n > 1}
    saved_again = sum(n for name, n in again.items() if name in saved)
    return {"wall": wall, "again": sum(again.values()), "saved_again": saved_again}


def costly(block: Any, stage: str, calls: str, seconds: float) -> Any:
    fd = os.open(f"{calls}/{os.getpid()}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(fd, f"{stage} {int(block[0]) - STAGES.index(stage)}\n".encode())
    os.close(fd)
    time.sleep(seconds)
    return block + 1


def read(calls: Path) -> Counter[str]:
    counter: Counter[str] = Counter()
    for file in calls.iterdir():
        counter.update(file.read_text().splitlines())
    return counter


def kill_at(client: Client, calls: Path, partitions: int, res: Any, saved: set[str]) -> None:
    pids = list(client.run(os.getpid).values())
    while sum(read(calls).values()) < 0.7 * partitions * len(STAGES):
        time.sleep(0.02)
    if res is not None:
        durable = [r for r in res.checkpoints() if r["state"] == "durable"]
        saved.update(f"{r['name']} {int(r['index'])}" for r in durable)
    os.kill(pids[0], signal.SIGKILL)


if __name__ == "__main__":
    warnings.simplefilter("ignore", dr.ResilienceWarning)
    main()
