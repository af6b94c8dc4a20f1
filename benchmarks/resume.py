"""What going on from an earlier run costs and saves: functions, seconds, listings, fingerprints.

Run: ``python benchmarks/resume.py [--partitions 40] [--seconds 0.25] [--rounds 5] [--receipts 100000] [--tasks 100000]
[--processes 20] [--json FILE]``

1. A job of costly functions is killed with all its processes when 60 % of the partitions are durable, and run again;
   beside it, interleaved, a run on an empty store and one of plain Dask, which compute everything. The functions sleep,
   so that the machine's cores decide nothing; the start of the cluster is not counted.
2. The names of many receipts are listed, as it is done before a graph is scheduled.
3. Fingerprints of large graphs, beside what Dask itself takes to build and to order them.
4. Fingerprints of one collection of each kind in processes with other seeds of hashes and other working directories.

With ``--json FILE`` each of these is written beside it: FILE becomes ``FILE-1.json`` and so on.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
from dask.order import order
from distributed import Client, LocalCluster
from table import arguments, show

import dask_resilient as dr
from dask_resilient.core.shelf import Shelf
from dask_resilient.graph.fingerprint import fingerprint
from dask_resilient.store.archive import Archive, open_archive

SHARE = 0.6
REPEATS = 7


def main() -> None:
    args = arguments(
        __doc__ or "", partitions=40, seconds=0.25, rounds=5, receipts=100_000, tasks=100_000, processes=20
    )
    tables = [
        (f"killed at {SHARE:.0%} of {args.partitions}", killed(args.partitions, args.seconds, args.rounds)),
        ("listing receipts", listing(args.receipts)),
        ("fingerprints of large graphs", large(args.tasks)),
        (f"one fingerprint in {args.processes} processes", stability(args.processes)),
    ]
    for number, (title, rows) in enumerate(tables, 1):
        to = None if args.json is None else args.json.with_name(f"{args.json.stem}-{number}.json")
        show(title, rows, to)


# -- 1: killed and run again -------------------------------------------------------------------------------------------


def killed(partitions: int, seconds: float, rounds: int) -> list[dict[str, Any]]:
    runs: dict[str, list[dict[str, float]]] = {}
    for _ in range(rounds):
        for kind, figures in one_round(partitions, seconds).items():
            runs.setdefault(kind, []).append(figures)
    rows = []
    for kind, found in runs.items():
        row = {"run": kind}
        for name in ("wall", "ran", "missing"):
            row[name] = statistics.median(run[name] for run in found)
        worst = max(run["ran"] - run["missing"] for run in found)
        rows.append(
            {
                "run": kind,
                "seconds": float(row["wall"]),
                "functions run": int(row["ran"]),
                "not stored before": int(row["missing"]),
                "run although stored, most": int(worst),
            }
        )
    plain = rows[-1]["seconds"]
    return [row | {"of plain Dask's": row["seconds"] / plain} for row in rows]


def one_round(partitions: int, seconds: float) -> dict[str, dict[str, float]]:
    with tempfile.TemporaryDirectory() as directory:
        store = Path(directory, "store")
        child = start(directory, "killed", partitions, seconds, store)
        while len(list(store.glob("commit/*/*.json"))) < SHARE * partitions and child.poll() is None:
            time.sleep(0.01)
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        missing = partitions - len(list(store.glob("commit/*/*.json")))
        plans = [
            ("run again", store, missing),
            ("clean run", Path(directory, "other"), partitions),
            ("plain Dask", None, partitions),
        ]
        figures = {}
        for kind, where, expected in plans:
            child = start(directory, kind, partitions, seconds, where)
            if child.wait() != 0:
                raise SystemExit(f"{kind} failed")
            said = json.loads(Path(directory, f"{kind}.json").read_text())
            ran = len(Path(directory, f"{kind}.calls").read_text().split())
            figures[kind] = {"wall": said["wall"], "ran": ran, "missing": expected}
    return figures


def start(directory: str, kind: str, partitions: int, seconds: float, store: Path | None) -> subprocess.Popen[bytes]:
    calls = Path(directory, f"{kind}.calls")
    calls.touch()
    job = {
        "partitions": partitions,
        "seconds": seconds,
        "store": store and str(store),
        "to": f"{directory}/{kind}.json",
    }
    environment = {**os.environ, "BENCHMARK_CALLS": str(calls)}
    command = [sys.executable, __file__, "job", json.dumps(job)]
    return subprocess.Popen(command, env=environment, start_new_session=True, stderr=subprocess.DEVNULL)


def costly(seconds: float, block_id: Any = None) -> Any:
    fd = os.open(os.environ["BENCHMARK_CALLS"], os.O_WRONLY | os.O_APPEND)
    os.write(fd, f"{block_id[0]}\n".encode())
    os.close(fd)
    time.sleep(seconds)
    return np.full(1000, float(block_id[0]))


def job(partitions: int, seconds: float, store: str | None, to: str) -> None:
    with (
        LocalCluster(n_workers=4, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
        dr.install(client, store=store) if store else nullcontext(),
    ):
        begin = time.perf_counter()
        x = da.map_blocks(costly, seconds, chunks=((1000,) * partitions,), dtype="f8", meta=np.empty(0))
        total = float(dr.checkpoint(x, "costly").sum().compute())
        wall = time.perf_counter() - begin
        assert total == 1000 * partitions * (partitions - 1) / 2, total
    Path(to).write_text(json.dumps({"wall": wall}))


# -- 2: listing --------------------------------------------------------------------------------------------------------


def listing(receipts: int) -> list[dict[str, Any]]:
    from dask_resilient.store import open_store

    with tempfile.TemporaryDirectory() as directory:
        open_store(directory, create=True)
        milestone = "0" * 32
        where = Path(directory, "commit", milestone)
        where.mkdir(parents=True)
        for i in range(receipts):
            (where / f"{i}.0.json").touch()

        def look() -> int:
            archive = open_archive(directory)
            found = Archive(archive.root, archive.token, archive.calls).listing(milestone)
            return Shelf.of(milestone, "x", receipts, found.valid(), found.tombstones).found

        assert look() == receipts
        seconds = median(look)
        names = median(lambda: len(os.listdir(where)))  # noqa: PTH208
    return [{"receipts": receipts, "seconds": seconds, "os.listdir alone, s": names}]


def median(call: Callable[[], Any]) -> float:
    return statistics.median(timed(call) for _ in range(REPEATS))


def timed(call: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


# -- 3: large graphs ---------------------------------------------------------------------------------------------------


def add(block: Any) -> Any:
    return block + 1


def frame_of(i: int) -> pd.DataFrame:
    return pd.DataFrame({"a": [i], "b": [1.0]})


def large(tasks: int) -> list[dict[str, Any]]:
    def array() -> Any:
        x = da.ones(tasks // 5, chunks=1)
        for _ in range(4):
            x = x.map_blocks(add, dtype="f8", meta=np.empty(0))
        return x

    def frame() -> Any:
        made = dd.from_map(frame_of, range(tasks // 3), meta=frame_of(0).iloc[:0])
        return made.map_partitions(add, meta=made._meta)

    rows = []
    for name, make, graph in (
        ("array: a chain of map_blocks", array, lambda x: dict(x.__dask_graph__())),
        ("frame: from_map and map_partitions", frame, lambda x: dict(x.optimize(fuse=False).__dask_graph__())),
    ):
        times: dict[str, list[float]] = {"fingerprint": [], "graph": [], "order": []}
        for _ in range(REPEATS):
            times["graph"].append(timed(lambda: graph(make())))  # noqa: B023
            collection = make()
            times["fingerprint"].append(timed(lambda: fingerprint(collection)))  # noqa: B023
            spelled = graph(collection)
            times["order"].append(timed(lambda: order(spelled)))  # noqa: B023
        assert fingerprint(collection).pinned
        found = {what: statistics.median(each) for what, each in times.items()}
        own = found["graph"] + found["order"]
        row = {"what": name, "tasks": len(spelled), "fingerprint, s": found["fingerprint"]}
        row |= {"Dask builds, s": found["graph"], "Dask orders, s": found["order"]}
        rows.append(row | {"of Dask's": found["fingerprint"] / own})
    return rows


# -- 4: one fingerprint ------------------------------------------------------------------------------------------------


def half(frame: Any) -> Any:
    return frame / 2


def collections(files: str) -> dict[str, Callable[[], Any]]:
    frame = pd.DataFrame({"a": range(20), "b": [i % 3 for i in range(20)], "c": [f"x{i}" for i in range(20)]})
    df = dd.from_pandas(frame, npartitions=4)
    x = da.from_array(np.arange(40.0).reshape(8, 5), chunks=(4, 5))
    pure = dask.delayed(frame_of, pure=True)
    return {
        "read_parquet": lambda: dd.read_parquet(f"{files}/p").a + 1,
        "read_csv": lambda: dd.read_csv(f"{files}/c.csv").a + 1,
        "from_zarr": lambda: da.from_zarr(f"{files}/z") + 1,
        "from_array": lambda: x + 1,
        "from_pandas": lambda: df,
        "from_map": lambda: dd.from_map(frame_of, [1, 2, 3]),
        "from_delayed": lambda: dd.from_delayed([pure(1), pure(2)], meta=frame_of(0)),
        "map_blocks": lambda: x.map_blocks(half),
        "map_partitions": lambda: df[["a"]].map_partitions(half),
        "blockwise": lambda: da.blockwise(half, "ij", x, "ij", dtype=float),
        "rechunk": lambda: x.rechunk((2, 5)),
        "shuffle": lambda: df.shuffle("b"),
        "merge": lambda: df.merge(df.assign(d=1)[["a", "d"]], on="a"),
        "groupby": df.groupby("b").a.mean,
        "pure delayed": lambda: dask.delayed(sorted, pure=True)({"a", "b", "c"}),
    }


def stability(processes: int) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as directory:
        frame = pd.DataFrame({"a": range(20)})
        frame.to_csv(f"{directory}/c.csv")
        dd.from_pandas(frame, npartitions=2).to_parquet(f"{directory}/p")
        da.ones((8, 5), chunks=4).to_zarr(f"{directory}/z")
        seen: dict[str, Counter[str]] = {}
        pinned: dict[str, bool] = {}
        for seed in range(processes):
            where = Path(directory, f"cwd-{seed}")
            where.mkdir()
            command = [sys.executable, Path(__file__).absolute(), "fingerprints", directory]
            paths = os.pathsep.join(filter(None, [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH")]))
            environment = {**os.environ, "PYTHONHASHSEED": str(seed), "PYTHONPATH": paths}
            out = subprocess.run(command, cwd=where, env=environment, check=True, capture_output=True).stdout
            for name, (digest, is_pinned) in json.loads(out).items():
                seen.setdefault(name, Counter())[digest] += 1
                pinned[name] = pinned.get(name, True) and is_pinned
    return [{"made by": name, "fingerprints": len(found), "pinned": str(pinned[name])} for name, found in seen.items()]


def fingerprints(files: str) -> None:
    found = {name: fingerprint(make()) for name, make in collections(files).items()}
    print(json.dumps({name: (each.digest, each.pinned) for name, each in found.items()}))


if __name__ == "__main__":
    warnings.simplefilter("ignore", dr.ResilienceWarning)
    dask.config.set({"resilience.probe.enabled": False})
    if sys.argv[1:2] == ["job"]:
        job(**json.loads(sys.argv[2]))
    elif sys.argv[1:2] == ["fingerprints"]:
        fingerprints(sys.argv[2])
    else:
        main()
