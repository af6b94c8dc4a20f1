"""A worker is killed in the middle of work on photographs: what comes back, with dask-resilient and without.

The photographs are three that scikit-image ships in its wheel: the Hubble eXtreme Deep Field, the retina of an eye, and
the astronaut Eileen Collins. They are cut into 56 tiles and denoised, which is dear, and the outcome is marked as one
milestone a photograph. Later stages take the uneven background away, find what is brighter than it, and measure that.
While these run, the worker that holds the most milestone partitions is killed with SIGKILL.

Run it with ``python examples/images.py``, or on a GPU with ``--cupy``: the tiles are CuPy arrays then. The functions,
which are in ``photographs.py`` beside this file, are the same. ``--help`` lists the options.
"""

from __future__ import annotations

import argparse
import importlib.util
import logging
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
from distributed import Client, LocalCluster, futures_of, wait
from photographs import DEPTH, PHOTOGRAPHS, TILE, array_library, denoise, lift, measure, photograph, without_dask
from rich.console import Console
from rich.table import Column, Table

import dask_resilient as dr

CALLS = "IMAGES_CALLS"
"""Environment variable with the path of the file in which the workers count calls."""
CLUSTER = {"threads_per_worker": 1, "dashboard_address": ":0", "silence_logs": logging.CRITICAL}
"""Tiles overlap, so others may be fetching from the worker that is killed: Dask logs each such failure as an error."""
PATIENCE = {"distributed.comm.timeouts.connect": "5s", "distributed.deploy.lost-worker-timeout": "60s"}
"""How long others try to reach the killed worker (else 30 s), and how long it may take to come back (else 15 s)."""

console = Console()

# -- the work in Dask --------------------------------------------------------------------------------------------------


def counted(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Wrap a function of one tile so that each start is counted in a file, which outlives a killed worker."""

    def call(*tiles: Any, block_id: tuple[int, ...] = ()) -> Any:
        with Path(os.environ[CALLS]).open("a") as file:
            file.write(f"{function.__name__} of {name} {block_id}\n")
        return function(*tiles)

    return call


def calls(function: str = "") -> list[str]:
    """List the calls counted so far, of one function or of all."""
    return [line for line in Path(os.environ[CALLS]).read_text().splitlines() if line.startswith(function)]


def overlapping(function: Callable[[Any], Any], tiles: da.Array, name: str) -> da.Array:
    """Apply a function to tiles, each of which sees a rim of its neighbours: lazy."""
    step = counted(function, name)
    return da.map_overlap(step, tiles, depth=DEPTH[function], boundary="reflect", meta=tiles._meta)


def denoised_tiles(name: str, xp: Any) -> da.Array:
    """Read a photograph, cut it into tiles, move them to the device if CuPy is asked for, and denoise them: lazy."""
    shape = photograph(name).shape
    whole = da.from_delayed(dask.delayed(counted(photograph, name))(name), shape, np.float32)
    tiles = whole.rechunk((TILE, TILE))
    if xp is not np:
        tiles = tiles.map_blocks(xp.asarray, meta=xp.empty((0, 0), np.float32))
    return overlapping(denoise, tiles, name)


def measured_tiles(denoised: da.Array, name: str) -> da.Array:
    """Take away the background, find the bright regions and measure them: lazy, three numbers for each tile."""
    lifted = overlapping(lift, denoised, name)
    chunks = (*((1,) * blocks for blocks in lifted.numblocks), (3,))
    return da.map_blocks(
        counted(measure, name), lifted, denoised, new_axis=2, chunks=chunks, meta=np.empty((0, 0, 0), np.float64)
    )


# -- the run that loses a worker ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """What one run gave, and what it took."""

    label: str
    seconds: float
    calls: list[str]
    reloaded: str
    results: list[Any]

    def run_again(self) -> str:
        """Say how often each function ran for a tile for which it had run before."""
        again = Counter(call.split()[0] for call, n in Counter(self.calls).items() for _ in range(n - 1))
        return ", ".join(f"{n} {name}" for name, n in sorted(again.items())) or "none"


def until(condition: Callable[[], bool], what: str, seconds: float = 120) -> None:
    """Wait for a condition, or give up with an error that names it."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"waited {seconds:.0f} s in vain until {what}")
        time.sleep(0.02)


def pipeline(client: Client, res: dr.Handle | None, xp: Any, kill: bool) -> list[Any]:
    """Run everything on one cluster and kill a worker while the later stages run."""
    denoised = [denoised_tiles(name, xp) for name in PHOTOGRAPHS]
    if res is not None:
        denoised = [dr.checkpoint(tiles, name) for tiles, name in zip(denoised, PHOTOGRAPHS, strict=True)]
    denoised = list(dask.persist(*denoised))
    wait(denoised)
    partitions = {future.key for future in futures_of(denoised)}
    console.print(f"  {len(partitions)} tiles are denoised; the later stages start")
    later = client.compute([measured_tiles(*pair) for pair in zip(denoised, PHOTOGRAPHS, strict=True)])
    if kill:
        if res is not None:
            until(lambda: all(row["state"] == "durable" for row in res.checkpoints()), "the milestones are durable")
        until(lambda: len(calls("lift")) >= len(partitions) // 4, "a quarter of the later stages has started")
        kill_a_worker(client, partitions)
    results = client.gather(later)
    if res is not None:
        print(res.report())
    return list(results)


def kill_a_worker(client: Client, partitions: set[Any]) -> None:
    """Send SIGKILL to the worker that holds the most partitions of the milestones."""
    held = {worker: len(partitions.intersection(has)) for worker, has in client.has_what().items()}
    victim = max(held, key=lambda worker: held[worker])
    pid = client.run(os.getpid, workers=[victim])[victim]
    os.kill(pid, signal.SIGKILL)
    console.print(f"  killed worker {victim}, which held {held[victim]} partitions of the milestones")


def cluster_of(workers: int, xp: Any) -> Any:
    """Start a cluster: of dask-cuda if CuPy is asked for, dask-cuda is there, and each worker gets a GPU of its own."""
    if xp is np or importlib.util.find_spec("dask_cuda") is None or xp.cuda.runtime.getDeviceCount() < workers:
        return LocalCluster(n_workers=workers, **CLUSTER)
    from dask_cuda import LocalCUDACluster

    return LocalCUDACluster(n_workers=workers, **CLUSTER)


def run(workers: int, store: Path | None, xp: Any, kill: bool) -> Outcome:
    """Run the pipeline on a fresh cluster, with dask-resilient where a store is given."""
    label = "plain Dask" if store is None else "dask-resilient"
    with tempfile.TemporaryDirectory() as folder:
        os.environ[CALLS] = str(Path(folder, "calls"))  # before the workers start, which inherit it
        with (
            cluster_of(workers, xp) as cluster,
            Client(cluster) as client,
            dr.install(client, store=store) if store else nullcontext() as res,
        ):
            console.print(f"[bold]{label}[/bold]: a fresh {type(cluster).__name__} of {workers} workers")
            start = time.perf_counter()
            results = pipeline(client, res, xp, kill)
            seconds = time.perf_counter() - start
            reloaded = str(sum(row["reloaded"] for row in res.incidents())) if res else "-"
        return Outcome(label, seconds, calls(), reloaded, results)


def differs(outcome: Outcome, expected: list[Any]) -> bool:
    """Say whether results differ from those without Dask: numbers and pixels exactly, brightness by more than 1e-9."""
    for name, got, want in zip(PHOTOGRAPHS, outcome.results, expected, strict=True):
        tiles = got.reshape(want.shape)
        if not ((tiles[:, :2] == want[:, :2]).all() and np.allclose(tiles, want, rtol=1e-9, atol=0)):
            console.print(f"[red]{outcome.label}: the result for {name!r} differs from that without Dask[/red]")
            return True
    return False


def findings(expected: list[Any]) -> Table:
    """Say what was found in each photograph."""
    name = Column("photograph", overflow="fold")
    table = Table(name, "tiles", "bright regions", "pixels in them", "their mean brightness")
    for photo, tiles in zip(PHOTOGRAPHS, expected, strict=True):
        regions, pixels, light = tiles.sum(axis=0)
        table.add_row(photo, str(len(tiles)), f"{regions:.0f}", f"{pixels:.0f}", f"{light / pixels:.3f}")
    return table


def comparison(outcomes: list[Outcome], wrong: list[bool]) -> Table:
    """Set the runs side by side."""
    table = Table(Column(no_wrap=True), "seconds", "functions run", "run again", "reloaded", "as without Dask")
    for run, bad in zip(outcomes, wrong, strict=True):
        numbers = f"{run.seconds:.1f}", str(len(run.calls)), run.run_again(), run.reloaded
        table.add_row(run.label, *numbers, "NO" if bad else "yes")
    return table


def main() -> int:
    """Run what the command line asks for; the exit status says whether all results are right."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--workers", type=int, default=4, help="number of worker processes (default: 4)")
    parser.add_argument("--cupy", action="store_true", help="CuPy arrays on a GPU instead of NumPy arrays")
    parser.add_argument("--plain", action="store_true", help="only the run without dask-resilient")
    parser.add_argument("--no-kill", action="store_true", help="let all workers live")
    parser.add_argument("--store", type=Path, help="where to keep partitions (default: a temporary folder)")
    options = parser.parse_args()
    if options.workers < 2 and not options.no_kill:
        parser.error(f"--workers is {options.workers}; a run that loses one needs at least 2")

    xp = array_library(options.cupy)
    dask.config.set(PATIENCE)
    with tempfile.TemporaryDirectory() as folder:
        stores = [None] if options.plain else [options.store or Path(folder, "store"), None]
        outcomes = [run(options.workers, store, xp, not options.no_kill) for store in stores]
    console.print(f"[bold]without Dask[/bold]: the same in one process with {xp.__name__}, to compare")
    expected = [without_dask(name, xp) for name in PHOTOGRAPHS]
    wrong = [differs(outcome, expected) for outcome in outcomes]
    console.print(findings(expected), comparison(outcomes, wrong))
    return int(any(wrong))


if __name__ == "__main__":
    sys.exit(main())
