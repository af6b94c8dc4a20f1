"""What a broken worker of four costs, with plain Dask and with dask-resilient, and how soon it is out.

Run: ``python benchmarks/quarantine.py [--part jobs,times] [--repeats 5] [--json FILE]``. Workers are processes without
a GPU, whose tasks raise errors as a broken GPU gives them.

jobs: *hole*: one of four workers fails every task at once, 200 tasks of 0.2 s without retries. *sticky*: one fails
everything from its tenth task on until its process is replaced, 400 tasks of 20 ms with two retries. Tasks lost, and
attempts on the sick worker. times: from the moment in which a task raises such an error until its worker gets no more
tasks, until every result that was lost with it is back, and until the next process of that worker serves.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import dask
from distributed import Client, LocalCluster, get_worker, wait
from table import arguments, show

import dask_resilient as dr

ILLEGAL = "cudaErrorIllegalAddress: an illegal memory access was encountered"
SECONDS = 120.0


def main() -> None:
    args = arguments(__doc__ or "", part="jobs,times", repeats=5)
    warnings.simplefilter("ignore")
    parts: dict[str, Callable[[Any], list[dict[str, Any]]]] = {"jobs": jobs, "times": times}
    show("a broken worker of four", [row for part in args.part.split(",") for row in parts[part](args)], args.json)


@contextmanager
def cluster(ours: bool) -> Iterator[tuple[Any, Path, Any]]:
    """Give four workers of one thread, a directory, and the handle where the plugin is installed."""
    quiet = {"distributed.worker.profile.enabled": False, "logging.distributed": "critical"}
    with (
        tempfile.TemporaryDirectory() as directory,
        dask.config.set(quiet),
        LocalCluster(n_workers=4, threads_per_worker=1, dashboard_address=":0", silence_logs=60) as local,
        Client(local) as client,
    ):
        if not ours:
            yield client, Path(directory), None
            return
        with dr.install(client, store=f"{directory}/store") as res:
            until(lambda: {row["health"] for row in res.workers()} == {"healthy"})
            yield client, Path(directory), res


def until(question: Callable[[], Any]) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + SECONDS
    while not question():
        if time.monotonic() > deadline:
            raise TimeoutError("the benchmark waits in vain")
        time.sleep(0.005)


# -- jobs --------------------------------------------------------------------------------------------------------------


def jobs(args: Any) -> list[dict[str, Any]]:
    """Run both jobs, with and without, in turns."""
    found: dict[tuple[str, str], list[tuple[int, int, int, float]]] = {}
    for _ in range(args.repeats):
        for name, task, n, retries in (("hole", hole, 200, 0), ("sticky", sticky, 400, 2)):
            for who in ("plain Dask", "dask-resilient"):
                with cluster(who == "dask-resilient") as (client, directory, _):
                    found.setdefault((name, who), []).append(job(client, directory, task, n, retries))
                print(name, who, found[name, who][-1], flush=True)
    rows = []
    for (name, who), runs in found.items():
        lost, attempts, each, seconds = zip(*runs, strict=True)
        rows.append(
            {
                "job": name,
                "with": who,
                "tasks lost, median": statistics.median(lost),
                "worst": max(lost),
                "attempts on the sick one, median": statistics.median(attempts),
                "most": max(attempts),
                "most in one process": max(each),
                "seconds, median": statistics.median(seconds),
            }
        )
    return rows


def job(client: Any, directory: Path, task: Callable[..., Any], n: int, retries: int) -> tuple[int, int, int, float]:
    """Give how many tasks were lost, attempts on the sick worker, most of them in one process, and seconds."""
    begin = time.monotonic()
    futures = client.map(task, range(n), directory=str(directory), retries=retries, pure=False)
    wait(futures, SECONDS)
    lost = sum(future.status != "finished" for future in futures)
    wrong = [i for i, future in enumerate(futures) if future.status == "finished" and future.result() != i]
    assert not wrong, wrong
    attempts = [file.stat().st_size for file in directory.glob("sick-*")]
    return lost, sum(attempts), max(attempts, default=0), time.monotonic() - begin


def note(directory: str, what: str) -> int:
    """Count, across processes; gives the count."""
    fd = os.open(f"{directory}/{what}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(fd, b"x")
        return os.fstat(fd).st_size
    finally:
        os.close(fd)


def hole(i: int, directory: str) -> int:
    if get_worker().name == 0:
        note(directory, f"sick-{os.getpid()}")
        raise RuntimeError(ILLEGAL)
    time.sleep(0.2)
    return i


def sticky(i: int, directory: str) -> int:
    # Its first process only: the error leaves the device sound.
    if get_worker().name == 0 and note(directory, f"process-{os.getpid()}") > 10:
        first, mine = Path(directory) / "first", Path(directory) / f"process-{os.getpid()}"
        with suppress(FileExistsError):
            os.link(mine, first)
        if first.samefile(mine):
            note(directory, f"sick-{os.getpid()}")
            raise MemoryError(f"std::bad_alloc: CUDA error (failed to allocate 8 bytes) at: x: {ILLEGAL}")
    time.sleep(0.02)
    return i


# -- times -------------------------------------------------------------------------------------------------------------


def times(args: Any) -> list[dict[str, Any]]:
    """Have a worker with results meet such an error that costs it its process, again and again."""
    found: dict[str, list[float]] = {}
    for _ in range(4 * args.repeats):
        for name, seconds in once().items():
            found.setdefault(name, []).append(seconds)
    return [
        {"what": name, "median, ms": 1e3 * statistics.median(v), "worst, ms": 1e3 * max(v), "repeats": len(v)}
        for name, v in found.items()
    ]


def once() -> dict[str, float]:
    with cluster(ours=True) as (client, _, res):
        held = client.map(value, range(40), pure=False)
        wait(held)
        address = next(row["worker"] for row in res.workers() if row["name"] == "0")
        for _ in range(2):  # without a GPU the first error costs no more than a canary
            bad = client.submit(raises, workers=[address], allow_other_workers=True, pure=False)
            fault = bad.result(SECONDS)  # elsewhere it gives when it was raised
            wait(held, SECONDS)
            until(lambda: any(event["after"] == "active" for event in decisions(client, fault)))  # noqa: B023
        assert address not in {row["worker"] for row in res.workers()}
        decided = next(event for event in decisions(client, fault) if event["after"] == "probation")
        back = [event for _, event in client.get_events("resilience") if event["action"] == "whole-again"]
        admitted = next(event for event in decisions(client, fault) if event["after"] == "active")
        return {
            "error to no more tasks": decided["time"] - fault,
            "error to all lost results back": max((e["time"] + e["seconds"] for e in back), default=fault) - fault,
            "error to the next process serving": admitted["time"] - fault,
        }


def decisions(client: Any, since: float) -> list[Any]:
    events = (event for _, event in client.get_events("resilience"))
    return [event for event in events if event["action"] == "device" and event["time"] >= since]


def value(i: int) -> bytes:
    return bytes(1000) + bytes([i])


def raises() -> float:
    if get_worker().name == 0:
        raised().write_text(repr(time.time()))
        raise RuntimeError(ILLEGAL)
    return float(raised().read_text())


def raised() -> Path:
    """Give the file that says when; the workers of one host share the directory above their own."""
    return Path(get_worker().local_directory).parent / "raised"


if __name__ == "__main__":
    main()
