"""A real pipeline that is killed and run again: the second run goes on from what the first one has stored.

The data and the functions are those of ``flights.py`` beside this file: 24 partitions of flights are read, cleaned and
joined, which is the milestone "enriched"; how late each flight was beside flights in like weather is the dear part, and
the milestone "scored"; then that is summed up by carrier. Nothing in here says what is stored already.

Run it with ``python examples/resume.py``, kill it at any moment, with Ctrl-C or ``kill -9``, and run it again. With
``--kill-after 30`` it kills itself as soon as so many of the 48 partitions are stored. ``--help`` lists the options.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import threading
from collections import Counter
from pathlib import Path

import dask
from distributed import Client, LocalCluster
from flights import CALLS, CLUSTER, PARTS, calls, console, enriched_flights, score, summaries, until

import dask_resilient as dr


def die_when_stored(store: Path, many: int) -> None:
    """Kill this process with SIGKILL, and so the workers with it, when so many partitions are in the store."""

    def wait() -> None:
        until(lambda: len(list(store.glob("commit/*/*.json"))) >= many, f"{many} partitions are stored")
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=wait, daemon=True).start()


def run(workers: int, store: Path) -> None:
    """Run the pipeline, and say what was reused and how often each function ran."""
    with (
        LocalCluster(n_workers=workers, **CLUSTER) as cluster,
        Client(cluster) as client,
        dr.install(client, store=store) as res,
    ):
        enriched = dr.checkpoint(enriched_flights(), "enriched")
        scored = dr.checkpoint(score(enriched), "scored")
        by_carrier, *_ = summaries(scored)
        result = by_carrier.compute().sort_index()
        for name in ("enriched", "scored"):
            console.print(str(res.explain(name)), highlight=False)
    ran = Counter(call.split()[0] for call in calls())
    counts = ", ".join(f"{ran[name]} of {len(PARTS)} {name}" for name in ("flights", "daylight", "excess"))
    console.print(f"functions that ran: {counts}", highlight=False)
    print(result.round(3).to_string())


def main() -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--workers", type=int, default=4, help="number of worker processes (default: 4)")
    parser.add_argument("--store", type=Path, default=Path("flights-store"), help="where to keep partitions")
    parser.add_argument("--kill-after", type=int, help="die when so many partitions are stored")
    options = parser.parse_args()

    dask.config.set({"dataframe.convert-string": False})  # strings of the type that plain pandas has
    if options.kill_after is not None:
        die_when_stored(options.store, options.kill_after)
    with tempfile.TemporaryDirectory() as folder:
        os.environ[CALLS] = str(Path(folder, "calls"))  # before the workers start, which inherit it
        Path(os.environ[CALLS]).touch()
        run(options.workers, options.store)
    return 0


if __name__ == "__main__":
    sys.exit(main())
