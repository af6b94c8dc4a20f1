"""A loop that is killed and run again: the palette of a photograph by k-means, the state kept from step to step.

The photograph is the astronaut that scikit-image ships in its wheel, 512 by 512 pixels of three colours. Twelve colours
are drawn at random, then moved, step by step, to the mean of the pixels that are next to them; a colour without pixels
is drawn anew, so the generator of random numbers is a part of the state. How often each pixel has changed its colour is
a Dask array in the state.

Run it with ``python examples/kmeans.py``, kill it at any moment, and run it again: it goes on after the last snapshot
and ends with the same palette, bit for bit. With ``--kill-after 12`` it kills itself after so many steps.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import signal
import sys
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import numpy.typing as npt
import skimage.data
from distributed import Client, LocalCluster

import dask_resilient as dr

PICTURE = "astronaut"
COLOURS = 12
STEPS = 20
CLUSTER = {"threads_per_worker": 1, "dashboard_address": ":0"}

Floats = npt.NDArray[np.float64]


def nearest(pixels: Floats, palette: Floats) -> Any:
    """Give the index of the colour next to each pixel, shape (n, 1)."""
    distances = ((pixels[:, None, :] - palette[None]) ** 2).sum(-1)
    return distances.argmin(1)[:, None]


def sums(pixels: Floats, labels: npt.NDArray[np.int64]) -> Floats:
    """Give the sum and the number of the pixels of each colour, shape (1, COLOURS, 4)."""
    chosen = [pixels[labels[:, 0] == k] for k in range(COLOURS)]
    return np.array([[[*pixels.sum(0), len(pixels)] for pixels in chosen]])


def move(pixels: da.Array, labels: da.Array, rng: np.random.Generator) -> Floats:
    """Give the next palette: the mean of the pixels of each colour; one without pixels is drawn anew."""
    chunks = ((1,) * pixels.numblocks[0], (COLOURS,), (4,))
    found: Floats = da.map_blocks(sums, pixels, labels, dtype=float, chunks=chunks, new_axis=2).sum(0).compute()
    palette = found[:, :3] / np.maximum(found[:, 3:], 1)
    empty = found[:, 3] == 0
    palette[empty] = rng.random((int(empty.sum()), 3))
    return palette


def label(pixels: Any, palette: Floats) -> Any:
    """Give the index of the colour of each pixel, lazily."""
    return pixels.map_blocks(nearest, palette, dtype=np.int64, chunks=(pixels.chunks[0], (1,)))


def palette_of(pixels: da.Array) -> Any:
    """Run the loop and give its last state."""
    rng = np.random.default_rng(7)
    first = label(pixels, np.zeros((COLOURS, 3)))
    begin = {"palette": rng.random((COLOURS, 3)), "rng": rng, "labels": first, "changed": da.zeros_like(first)}
    loop = dr.loop("palette", steps=STEPS, every=5)
    for step, state in loop(**begin):
        before, state.labels = state.labels, label(pixels, state.palette).persist()
        state.changed = (state.changed + (state.labels != before)).persist()
        state.palette = move(pixels, state.labels, state.rng)
        print(f"step {step}", flush=True)
        if os.environ.get("KMEANS_DIES_AFTER") == str(step + 1):
            os.kill(os.getpid(), signal.SIGKILL)
    return loop.state


def main() -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--workers", type=int, default=4, help="number of worker processes (default: 4)")
    parser.add_argument("--store", type=Path, default=Path("palette-store"), help="where to keep snapshots")
    parser.add_argument("--kill-after", type=int, help="die after so many steps")
    options = parser.parse_args()
    if options.kill_after is not None:
        os.environ["KMEANS_DIES_AFTER"] = str(options.kill_after)
    with (
        LocalCluster(n_workers=options.workers, **CLUSTER) as cluster,
        Client(cluster) as client,
        dr.install(client, store=options.store),
    ):
        picture = getattr(skimage.data, PICTURE)().reshape(-1, 3) / 255
        state = palette_of(da.from_array(picture, chunks=(2**15, 3)))
        changed = int(state.changed.sum().compute())
    names = " ".join("#" + "".join(f"{round(255 * part):02x}" for part in colour) for colour in state.palette)
    print(f"palette: {names}")
    print(f"{changed:,} changes of colour; sha256 {hashlib.sha256(state.palette.tobytes()).hexdigest()[:16]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
