"""What two losses cost around a P2P shuffle: plain Dask and dask-resilient side by side.

Run: ``python benchmarks/shuffle.py [--partitions 40] [--seconds 0.2] [--rounds 3] [--json FILE]``

The partitions of a frame are read, shuffled over the workers' network, and kept; both the frame and what comes out of
the shuffle are milestones. One of three workers is killed with SIGKILL when half of the parts have been transferred,
and another one when every output is in memory, and durable where the plugin runs. Counted are the functions that ran to
their end and then again: readers, which sleep, transfers, barriers, and outputs.
"""

from __future__ import annotations

import os
import signal
import statistics
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
from distributed import Client, LocalCluster, wait
from distributed.client import futures_of
from distributed.diagnostics.plugin import WorkerPlugin
from table import arguments, show

import dask_resilient as dr

ROWS = 10_000
PARTS = {"_shuffle_transfer": "transfers", "p2p_barrier": "barriers", "shuffle_unpack": "outputs", "read": "readers"}


def main() -> None:
    args = arguments(__doc__ or "", partitions=40, seconds=0.2, rounds=3)
    runs: dict[bool, list[dict[str, float]]] = {False: [], True: []}
    for _ in range(args.rounds):
        for ours, done in runs.items():
            done.append(run(args.partitions, args.seconds, ours=ours))
    rows = [
        {"run": name, "loss": loss, **{what: median(runs[ours], f"{loss} {what}") for what in columns()}}
        for loss in ("midway", "unpacked")
        for ours, name in ((False, "plain Dask"), (True, "dask-resilient"))
    ]
    show(f"functions run again, of {args.partitions} each, and seconds until whole again", rows, args.json)


def columns() -> list[str]:
    return [*PARTS.values(), "seconds"]


def median(runs: list[dict[str, float]], name: str) -> float:
    value = statistics.median(run[name] for run in runs)
    return value if name.endswith("seconds") else int(value)


def read(i: int, seconds: float) -> pd.DataFrame:
    time.sleep(seconds)
    rng = np.random.default_rng(i)
    return pd.DataFrame({"k": rng.integers(0, 1_000, ROWS), "v": rng.integers(0, 1_000, ROWS)})


def part_of(task: Any) -> str:
    """Say what a task is, also if it was fused with others; empty if it does not count."""
    func = getattr(task, "func", None)
    if getattr(func, "__name__", "") == "_execute_subgraph":
        return next(filter(None, map(part_of, task.args[0].values())), "")
    return PARTS.get(getattr(func, "__name__", ""), "")


class Count(WorkerPlugin):
    """Counts the tasks of a shuffle when they have given their value."""

    name = "count"

    def __init__(self, where: str) -> None:
        self.where = where

    def setup(self, worker: Any) -> None:
        """Know the worker."""
        self.worker = worker

    def transition(self, key: Any, start: str, finish: str, **kwargs: Any) -> None:  # noqa: ARG002
        """Count a task that was executed."""
        if start != "executing" or finish != "memory":
            return
        part = part_of(self.worker.state.tasks[key].run_spec)
        if part:
            fd = os.open(f"{self.where}/{os.getpid()}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.write(fd, f"{part} {key}\n".encode())
            os.close(fd)


def counts(where: Path) -> Counter[str]:
    counter: Counter[str] = Counter()
    for file in where.iterdir():
        counter.update(file.read_text().splitlines())
    return counter


def ended(where: Path, part: str) -> int:
    return sum(line.startswith(part) for line in counts(where))


def again(before: Counter[str], after: Counter[str]) -> dict[str, int]:
    """Give how many functions ran again, by part of the shuffle."""
    more = Counter(dict.fromkeys(PARTS.values(), 0))
    for line, n in after.items():
        more[line.partition(" ")[0]] += max(n - max(before[line], 1), 0)
    return dict(more)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline, "not within 120 s"
        time.sleep(0.02)


def run(partitions: int, seconds: float, *, ours: bool) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as directory:
        where = Path(directory, "calls")
        where.mkdir()
        with (
            LocalCluster(n_workers=3, threads_per_worker=2, dashboard_address=None) as cluster,
            Client(cluster) as client,
            dr.install(client, store=f"{directory}/store") if ours else nullcontext() as res,
        ):
            client.register_plugin(Count(str(where)))
            meta = pd.DataFrame({"k": np.array([], dtype=int), "v": np.array([], dtype=int)})
            # Marked in both runs: without the plugin a milestone is a pass-through.
            df = dr.checkpoint(dd.from_map(read, range(partitions), seconds=seconds, meta=meta), "frame")
            with dask.config.set({"dataframe.shuffle.method": "p2p"}):
                kept = dr.checkpoint(df.shuffle("k", npartitions=partitions), "shuffled").persist()
            until(lambda: ended(where, "transfers") >= partitions / 2)
            figures = lose(client, kept, where, "midway")
            if res is not None:
                until(lambda: durable(res) == partitions)
            figures |= lose(client, kept, where, "unpacked")
            right(kept, partitions)
    return figures


def durable(res: Any) -> int:
    return sum(row["state"] == "durable" and row["name"] == "shuffled" for row in res.checkpoints())


def lose(client: Client, kept: Any, where: Path, loss: str) -> dict[str, float]:
    """Kill a worker, wait until all is there again, and say what that cost."""
    before, begin = counts(where), time.perf_counter()
    workers = client.run(os.getpid)
    address = next(iter(workers))
    os.kill(workers[address], signal.SIGKILL)
    until(lambda: address not in client.scheduler_info(n_workers=-1)["workers"])
    wait(futures_of(kept))
    wall = time.perf_counter() - begin
    more = again(before, counts(where))
    return {f"{loss} {what}": n for what, n in more.items()} | {f"{loss} seconds": wall}


def right(kept: Any, partitions: int) -> None:
    frame = pd.concat([read(i, 0) for i in range(partitions)])
    rows, total = dask.compute(kept.shape[0], kept.v.sum())
    assert (rows, total) == (len(frame), frame.v.sum()), (rows, total)


if __name__ == "__main__":
    warnings.simplefilter("ignore", dr.ResilienceWarning)
    main()
