"""Which GPU a worker computes on: known by UUID, whatever happens to its process, its port and its name."""

from __future__ import annotations

import dask.array as da
import numpy as np
import pytest
from distributed import wait

import dask_resilient as dr
from tests.support.fakegpu import uuid

NAMES = {"0": uuid(0), "1": uuid(1)}


def test_client_registered_workers_are_known_within_a_heartbeat(x):
    """Each by the UUID of its own GPU; a loss names it, and so do receipts."""
    x.install()
    assert x.known() == NAMES
    rows = x.handle.workers()
    assert {row["gpu"] for row in rows} == {"NVIDIA Fake A100"}
    marked = dr.checkpoint(da.ones(6, chunks=1).map_blocks(np.add, 1), "ones").persist()
    wait(marked)
    x.durable(6)
    x.kill(x.addresses()[1])
    wait(marked)
    (row,) = x.incidents()
    assert row["device"] == uuid(1)


def test_identity_survives_the_nannys_restart(x):
    """The next process of the nanny has another address and the same GPU."""
    x.install()
    assert x.known() == NAMES
    for _ in range(2):
        before = x.addresses()
        x.kill(before[0])
        x.whole()
        assert x.addresses()[0] != before[0]
        assert x.known() == NAMES


@pytest.mark.slow
def test_identity_survives_another_worker_name(x):
    """A worker that scaling brings has a new name, and the device that was free."""
    x.install()
    x.cluster.scale(1)
    x.until(lambda: len(x.scheduler.workers) == 1, what="one is left")
    (left,) = x.known().values()
    x.cluster.scale(2)
    x.whole()
    assert left in x.known().values()
    assert len(set(x.known().values())) == 2
    assert set(x.known().values()) == {uuid(0), uuid(1)}


def test_preloaded_workers_are_known_when_they_join(own):
    """Before the scheduler gives them anything to do: the entry is in what they register with."""
    x = own(preload=["tests.processes.preload", "dask_resilient.preload"])
    extra = x.ask(lambda: {str(ws.name): ws.extra["resilience"]["uuid"] for ws in x.scheduler.workers.values()})
    assert extra == NAMES
    x.install()
    assert x.devices() == NAMES
    x.kill(x.addresses()[1])
    x.whole()
    x.until(lambda: all("resilience" in ws.extra for ws in x.scheduler.workers.values()))
    assert x.devices() == NAMES
    assert x.handle.uninstall()


def test_a_worker_whose_gpu_hangs_joins_and_computes(x, cuda):
    """The probe process waits for NVML, nobody else does; the device is known later."""
    cuda.set(hang__nvmlDeviceGetName=60)
    x.install()
    assert x.client.submit(sum, [1, 2]).result(10) == 3
    assert not any(row["gpu"] for row in x.handle.workers())
    cuda.set(hang__nvmlDeviceGetName=None)
    assert x.known() == NAMES
