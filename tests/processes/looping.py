"""A loop in a process of its own: k-means, with a state of an array, a collection, a number and a generator.

Run as ``python looping.py STORE``; ``DIE_AT`` in the environment names the step at whose end everything is killed. Says
which steps it has run, and the bytes of the last state.
"""

from __future__ import annotations

import hashlib
import os
import signal
import sys

import dask
import dask.array as da
import numpy as np

import dask_resilient as dr

K = 3


def assign(block, centroids):
    """Give the sum and the number of the points next to each centroid, shape (1, K, 3)."""
    nearest = ((block[:, None, :] - centroids[None]) ** 2).sum(-1).argmin(1)
    chosen = [block[nearest == k] for k in range(K)]
    return np.array([[[*points.sum(0), len(points)] for points in chosen]])


def update(x, centroids, rng):
    """Give the next centroids, with a little noise."""
    chunks = ((1,) * x.numblocks[0], (K,), (3,))
    sums = x.map_blocks(assign, centroids, dtype=float, chunks=chunks, new_axis=2).sum(0).compute()
    return sums[:, :2] / np.maximum(sums[:, 2:], 1) + rng.normal(0, 1e-3, (K, 2))


def say(*words):
    """Say something at once."""
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def main():
    """Run the loop."""
    x = da.random.default_rng(3).normal(size=(400, 2), chunks=(100, 2))
    x = dr.checkpoint(x, "points").persist()
    loop = dr.loop("kmeans", steps=9, every=2, last=2)
    begin = {"centroids": np.eye(K, 2), "rng": np.random.default_rng(1), "sums": da.zeros(8, chunks=2)}
    for step, state in loop(**begin):
        state.centroids = update(x, state.centroids, state.rng)
        state.sums = state.sums + step
        state.seen = step
        say("step", step)
        if os.environ.get("DIE_AT") == str(step):
            os.killpg(os.getpgid(0), signal.SIGKILL)
    last = loop.state
    bits = last.centroids.tobytes() + last.sums.compute().tobytes() + str(last.rng.bit_generator.state).encode()
    say("state", last.seen, hashlib.sha256(bits).hexdigest())


if __name__ == "__main__":
    from distributed import Client, LocalCluster

    dask.config.set({"resilience.probe.enabled": False, "distributed.scheduler.validate": True})
    cluster = LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0")
    with cluster, Client(cluster) as client, dr.install(client, store=sys.argv[1]):
        main()
