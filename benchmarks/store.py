"""What the tools cost: receipts listed and verified per second, and collecting garbage beside a run that saves.

Run: ``python benchmarks/store.py [--partitions 5000] [--kib 64] [--rounds 3] [--json FILE]``

One store of many small partitions, half of it garbage. Listing is compared with reading the same files by plain Python,
verifying with reading the same bytes and taking their crc32c, saving beside a collector with saving alone in the same
round, also with a collector that never rests. Rounds are interleaved; medians are given.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import crc32c
import numpy as np
from table import arguments, show

from dask_resilient import partitions
from dask_resilient.core.manifest import Place
from dask_resilient.core.milestones import Description, Milestone
from dask_resilient.store import PosixStore, open_archive, open_store
from dask_resilient.store.garbage import IDLE, Collector
from dask_resilient.store.survey import milestone_rows, partition_rows

FACTS = {"key": "k", "run": "r", "producer": {"device": "host:h/0"}, "temporary": False}


def main() -> None:
    args = arguments(__doc__ or "", partitions=5000, kib=64, rounds=3)
    root = Path(tempfile.mkdtemp(prefix="resilience-store-"))
    try:
        rows = looking(root / "looking", args.partitions, args.kib, args.rounds)
        rows += beside(root / "beside", args.partitions // 4, args.kib, args.rounds)
    finally:
        shutil.rmtree(root)
    show(f"{args.partitions:,} partitions of {args.kib} KiB", rows, args.json)


def fill(store: PosixStore, m: str, count: int, kib: int, run: str = "r") -> None:
    """Save `count` partitions under one milestone, or abandon them."""
    store.declare(Milestone(m, run, time.time(), Description("clean", "bag", count)))
    staged = partitions.stage(np.random.default_rng(0).random(kib * 128))
    for i in range(count):
        store.write(Place(m, str(i), 0, f"a{i}"), staged, {**FACTS, "run": run})


def looking(root: Path, count: int, kib: int, rounds: int) -> list[dict[str, Any]]:
    store = open_store(root, create=True)
    fill(store, "m", count, kib)
    found: dict[str, list[float]] = {}
    for _ in range(rounds):
        for name, call in {
            "plain read of every receipt": lambda: [p.read_bytes() for p in (root / "commit").rglob("*.json")],
            "ls": lambda: milestone_rows(open_archive(root), 0.0),
            "plain read of every chunk, with crc32c": lambda: [
                crc32c.crc32c(p.read_bytes()) for p in (root / "data").rglob("0")
            ],
            "verify": lambda: list(partition_rows(archive := open_archive(root), archive.milestones())),
        }.items():
            found.setdefault(name, []).append(timed(call))
    seconds = {name: statistics.median(times) for name, times in found.items()}
    peers = {"ls": "plain read of every receipt", "verify": "plain read of every chunk, with crc32c"}
    return [
        {
            "what": name,
            "partitions/s": count / seconds[name],
            "MiB/s": count * kib / 1024 / seconds[name],
            "time against peer": seconds[name] / seconds[peers.get(name, name)],
        }
        for name in found
    ]


def beside(root: Path, count: int, kib: int, rounds: int) -> list[dict[str, Any]]:
    """Save beside nothing, a collector, and one that never rests."""
    kinds: dict[str, float | None] = {
        "saving alone": None,
        "saving beside gc": IDLE,
        "saving beside gc without rest": 0.0,
    }
    saved: dict[str, list[float]] = {}
    collected: dict[str, list[float]] = {}
    for n in range(rounds):
        for name, idle in kinds.items():
            store = open_store(root / f"{n}{name}".replace(" ", ""), create=True)
            fill(store, "old", count, kib, run="done")
            store.journal("done", "complete", {})
            gone: list[float] = []
            stop = threading.Event()
            thread = threading.Thread(target=collect, args=(store.url, idle, gone, stop))
            if idle is not None:
                thread.start()
            saved.setdefault(name, []).append(timed(partial(fill, store, "new", count // 2, kib)))
            stop.set()
            if idle is not None:
                thread.join()
            if gone:
                collected.setdefault(name, []).append(len(gone) / gone[-1])
    alone = statistics.median(saved["saving alone"])
    return [
        {
            "what": name,
            "partitions/s": count // 2 / statistics.median(times),
            "MiB/s": count // 2 * kib / 1024 / statistics.median(times),
            "time against peer": statistics.median(times) / alone,
        }
        for name, times in saved.items()
    ] + [
        {"what": f"gc, {name}", "partitions/s": statistics.median(rates), "MiB/s": 0.0, "time against peer": 1.0}
        for name, rates in collected.items()
    ]


def collect(url: str, idle: float, gone: list[float], stop: threading.Event) -> None:
    """Collect garbage until told to stop; leaves when each piece of it was gone."""
    begun = time.perf_counter()
    for _ in Collector(open_archive(url), delete=True, idle=idle).collect("old", 0.0):
        gone.append(time.perf_counter() - begun)
        if stop.is_set():
            return


def timed(call: Callable[[], Any]) -> float:
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


if __name__ == "__main__":
    main()
