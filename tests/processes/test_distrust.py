"""A worker whose device computes wrong from some moment on: found by its own canary, in a process of its own."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client, LocalCluster

import dask_resilient as dr
from tests.support.waiting import wait_until


@pytest.fixture
def client() -> Iterator[Client]:
    """A client of two workers that try their devices twice a second."""
    settings = {"resilience.probe.interval": 0.5, "resilience.probe.canary": 0.5}
    with (
        dask.config.set(settings),
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        yield client


def spoil() -> None:
    """Let the device of this worker compute wrong from now on, as far as its canary can tell."""
    from dask_resilient.core.readings import canary
    from dask_resilient.probes import canary as module

    module.readings = lambda device, own_gpu: [canary(device, module.time(), False)]


def tombstones(store: Path) -> set[str]:
    return {f"{path.parent.name}/{path.name}" for path in store.glob("revoked/*/*.json")}


def commits(store: Path) -> set[str]:
    return {f"{path.parent.name}/{path.name}" for path in store.glob("commit/*/*.json")}


class Spoiler(logging.Logger):
    """Does what is asked for after a step; a logger takes no part in what a loop is known by."""

    def __init__(self, call: Callable[[], None] | None = None) -> None:
        super().__init__("spoiler")
        self.call = call
        self.steps: list[int] = []

    def after(self, step: int) -> None:
        self.steps.append(step)
        if step == 1 and self.call is not None:
            self.call()


def walk(spoiler: Spoiler) -> Any:
    """Add up the steps."""
    for step, state in dr.loop("walk", 4, every=1)(x=da.zeros(40, chunks=10)):
        state.x = (state.x + step).persist()
        spoiler.after(step)
    return state.x.compute()


def test_a_loop_goes_on_without_snapshots(client: Client, tmp_path: Path) -> None:
    """It ends as ever and says once that it is not protected; the next run takes nothing of what may be wrong."""
    store = tmp_path / "store"

    def run(spoil_one: bool) -> list[int]:
        with dr.install(client, store=store) as res:

            def call() -> None:
                wait_until(lambda: len(commits(store)) == 5, 30, "a snapshot is durable")
                client.run(spoil, workers=[next(iter(client.ncores()))])
                wait_until(lambda: "MAY BE WRONG" in str(res.report()), 30, "the canary is heard of")

            spoiler = Spoiler(call if spoil_one else None)
            np.testing.assert_array_equal(walk(spoiler), np.full(40, 6.0))
            return spoiler.steps

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert run(spoil_one=True) == [0, 1, 2, 3]
    assert len([w for w in told if "computed wrong" in str(w.message)]) == 1
    wait_until(lambda: commits(store) == tombstones(store), 10, "all that was stored is revoked")
    assert run(spoil_one=False) == [0, 1, 2, 3]
    assert commits(store) - tombstones(store)
