"""Restarts and scaling of dask-cuda's workers: what was saved comes back on the device, and nothing is left over."""

from __future__ import annotations

import pytest
from distributed import wait

from tests.cuda.device_job import DeviceJob
from tests.support.fakegpu import uuid

N = 8


def saved(x):
    """Give a job whose milestone is held and durable."""
    job = DeviceJob(x, N)
    held = job.milestone.persist()
    wait(held)
    x.durable(N)
    return job, held


def test_client_restart_forgets_everything_and_the_next_run_computes_anew(x):
    """Also with saves under way: no entry, no incident that never closes, no device without its worker."""
    x.install()
    x.known()
    x.hold("save")
    job = DeviceJob(x, N)
    held = job.milestone.persist()
    x.until(x.watch.ledger.saving, what="saves are under way")
    x.client.restart(timeout=30)
    x.free()
    del held
    x.until(lambda: not x.scheduler.tasks, what="every task is forgotten")
    assert x.ask(lambda: (dict(x.watch.ledger.entries), dict(x.watch.detour.parked))) == ({}, {})
    x.whole()
    assert set(x.known().values()) == {uuid(0), uuid(1)}
    again = DeviceJob(x, N)
    held = again.milestone.persist()
    wait(held)
    x.durable(N)
    again.right(held, "ab")
    assert x.loads() == []


@pytest.mark.slow
def test_nanny_restarts_in_a_loop(x):
    """Five times the same GPU: each time what it held is loaded, on it or elsewhere, and no function runs again."""
    x.install()
    job, held = saved(x)
    for _ in range(5):
        x.kill(x.addresses()[0])
        wait(held)
        x.whole()
    job.right(held, "ab")
    assert all(n == 1 for n in x.calls.counts().values())
    assert x.known() == {"0": uuid(0), "1": uuid(1)}


@pytest.mark.slow
def test_scaling_down_and_up_keeps_every_partition(x):
    """From two GPUs to one and back: what the leaving worker held alone is moved or loaded, never computed again."""
    x.install()
    job, held = saved(x)
    for n in (1, 2, 1, 2):
        x.cluster.scale(n)
        x.until(lambda n=n: len(x.scheduler.workers) == n, what=f"{n} workers")
        wait(held)
    x.whole()
    job.right(held, "ab")
    assert all(n == 1 for n in x.calls.counts().values())
    assert set(x.known().values()) == {uuid(0), uuid(1)}
