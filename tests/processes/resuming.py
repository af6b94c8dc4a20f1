"""A user's script, run again and again as ``python -m tests.processes.resuming '{"kind": "array", ...}'``.

Its functions count their calls in a file, and are held by files, that the environment names: what a constant of the
module named would be an input of every milestone. What it knows in the end it writes as JSON.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import dask.dataframe as dd
import helper
import numpy as np
import pandas as pd
from distributed import Client, LocalCluster, wait

import dask_resilient as dr

SIZE = 5_000
"""Elements of a partition."""


def count(name: str, i: int) -> None:
    """Count a call of a function on a partition before it does anything, and hold it if it is not one of the first.

    Not by the partition's number: Dask begins with any of them.
    """
    calls, gate = Path(os.environ["RESUMING_CALLS"]), Path(os.environ["RESUMING_GATES"], name)
    fd = os.open(calls, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.write(fd, f"{name} {i}\n".encode())
    os.close(fd)
    begun = [line for line in calls.read_text().splitlines() if line.startswith(f"{name} ")]
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        try:
            if begun.index(f"{name} {i}") < gate.stat().st_size:
                break
        except FileNotFoundError:
            break
        time.sleep(0.01)


# -- functions of the user's -------------------------------------------------------------------------------------------


def read(block_id: Any = None) -> Any:
    """Make a block."""
    count("read", block_id[0])
    return np.arange(SIZE) + 1000.0 * block_id[0]


def clean(block: Any, block_id: Any = None) -> Any:
    """Do what the helper says."""
    count("clean", block_id[0])
    return helper.clean(block)


def more(block: Any, block_id: Any = None) -> Any:
    """Go on from a cleaned block."""
    count("more", block_id[0])
    return block**2


def read_wide(block_id: Any = None) -> Any:
    """Make some rows of a matrix."""
    count("read", block_id[0])
    return np.arange(4.0 * 240).reshape(4, 240) + 1000 * block_id[0]


def clean_columns(block: Any, block_id: Any = None) -> Any:
    """Do what the helper says with all rows of some columns."""
    count("clean", block_id[1])
    return helper.clean(block)


def read_frame(i: int) -> pd.DataFrame:
    """Make a partition of a frame."""
    count("read", i)
    n = np.arange(400)
    return pd.DataFrame({"part": i, "key": (n * 7 + i) % 41, "x": n + 1000.0 * i})


def clean_frame(frame: pd.DataFrame, partition_info: Any = None) -> pd.DataFrame:
    """Do what the helper says with a column."""
    count("clean", partition_info["number"])
    return frame.assign(x=helper.clean(frame["x"]))


# -- jobs --------------------------------------------------------------------------------------------------------------


def array(n: int) -> Any:
    """Blocks that are read and cleaned."""
    made = da.map_blocks(read, chunks=((SIZE,) * n,), dtype=float, meta=np.empty(0))
    return made.map_blocks(clean, dtype=float, meta=np.empty(0))


def rechunked(n: int) -> Any:
    """Rows that are cut into columns by a P2P rechunk, which are cleaned."""
    made = da.map_blocks(read_wide, chunks=((4,) * n, (240,)), dtype=float, meta=np.empty((0, 0)))
    return made.rechunk((4 * n, 240 // n), method="p2p").map_blocks(clean_columns, dtype=float, meta=np.empty((0, 0)))


def shuffled(n: int) -> Any:
    """Partitions that are shuffled and cleaned."""
    meta = pd.DataFrame({"part": [0], "key": [0], "x": [0.0]}).iloc[:0]
    made = dd.from_map(read_frame, range(n), meta=meta, enforce_metadata=False)
    return made.shuffle("key", npartitions=n, shuffle_method="p2p").map_partitions(clean_frame, meta=meta)


def parquet(n: int) -> Any:
    """Files that are read by Dask, under keys that are new in each process, and cleaned."""
    frame = dd.read_parquet(os.environ["RESUMING_DATA"])
    assert frame.npartitions == n
    return frame.map_partitions(clean_frame, meta=frame._meta)


def above(kind: str, clean: Any) -> Any:
    """Make the result of the milestone."""
    if kind in ("array", "persisted"):
        return clean.map_blocks(more, dtype=float, meta=np.empty(0))
    if kind == "rechunked":
        return clean.rechunk((4, 240), method="p2p").sum(axis=1)
    return clean.shuffle("part", shuffle_method="p2p") if kind == "shuffled" else clean


def frame_bytes(frame: pd.DataFrame) -> bytes:
    """Give the bytes of a frame, whatever the order in which a shuffle gave its rows."""
    return bytes(frame.sort_values(["part", "x", "key"]).to_records(index=False).tobytes())


def run(options: dict[str, Any], client: Client, res: Any) -> bytes:
    """Run the job, and give the bytes of its result."""
    kind = options["kind"]
    made = {"persisted": array}.get(kind) or globals()[kind]
    clean = dr.checkpoint(made(options["n"]), "clean", version=options.get("version"))
    if kind == "persisted":
        clean = clean.persist()
        wait(clean)
    result = above(kind, clean)
    if kind == "persisted":
        result = dr.checkpoint(result, "top")
    value = result.compute()
    return frame_bytes(value) if isinstance(value, pd.DataFrame) else value.tobytes()


def main() -> None:
    """Start a cluster, run, and write down what is known then."""
    options = json.loads(sys.argv[1])
    warnings.simplefilter("error", dr.ResilienceWarning)
    if options.get("expect_warning"):
        warnings.simplefilter("ignore", dr.ResilienceWarning)
    with (
        LocalCluster(
            n_workers=options.get("workers", 2),
            threads_per_worker=options.get("threads", 1),
            host="127.0.0.1",
            dashboard_address=None,
            validate=True,  # a nanny does not ask the configuration for it
        ) as cluster,
        Client(cluster) as client,
        dr.install(client, store=options["store"], resume=options.get("resume")) as res,
    ):
        assert cluster.scheduler.validate
        assert all(client.run(lambda dask_worker: dask_worker.state.validate).values())
        found = run(options, client, res)
        names = ("clean", "top") if options["kind"] == "persisted" else ("clean",)
        off = options.get("resume") == "off"
        said = {} if off else {name: str(res.explain(name)) for name in names}
        incidents = res.incidents()
    body = {"sha256": hashlib.sha256(found).hexdigest(), "explain": said, "incidents": len(incidents)}
    draft = Path(options["out"] + ".draft")
    draft.write_text(json.dumps(body))
    draft.rename(options["out"])


if __name__ == "__main__":
    dask.config.set({"resilience.probe.enabled": False})
    main()
