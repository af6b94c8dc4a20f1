"""A job whose pieces are edited between runs: says what is reused of its milestone.

Run as ``python edited.py STORE``; the modules that it imports stand beside a copy of it.
"""

from __future__ import annotations

import sys

import dask
from etl import clean  # type: ignore[import-not-found]
from library import released  # type: ignore[import-not-found]

import dask_resilient as dr

if __name__ == "__main__":
    from distributed import Client

    dask.config.set({"resilience.probe.enabled": False, "distributed.scheduler.validate": True})
    store, path, limit = sys.argv[1], sys.argv[2], int(sys.argv[3])
    client = Client(processes=False, n_workers=1, threads_per_worker=1, dashboard_address=None)
    with client, dr.install(client, store=store) as res:
        pieces = [dask.delayed(clean, pure=True)(path, i, limit, key="a planted secret") for i in range(3)]
        total = dr.checkpoint(dask.delayed(released, pure=True)(pieces), "clean")
        total.compute()
        sys.stdout.write(f"{res.explain('clean')}\n")
