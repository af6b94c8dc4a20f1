"""The main job on the cluster that it is made for: device partitions are saved, and come back as device partitions."""

from __future__ import annotations

import json
from collections import Counter

from distributed import wait

from tests.cuda.device_job import SIZE, DeviceJob
from tests.support.fakegpu import uuid
from tests.support.waiting import wait_until

N = 8


def places(dask_worker):
    """Say where the values of a worker are."""
    data = dask_worker.data
    return {
        "device": sorted(map(str, data.device)),
        "host": sorted(map(str, data.host)),
        "device bytes": getattr(data.device_buffer, "fast", None) and data.device_buffer.fast.total_weight,
    }


def kinds(dask_worker):
    """Say of what types the values of a worker are, where they lie."""
    return sorted({type(value).__name__ for value in dask_worker.data.device.values()})


def test_killed_gpu_workers_partitions_come_back_as_device_arrays(x):
    """Only what was lost is reloaded; no function below the milestone runs again; the receipt names library and GPU."""
    x.install()
    x.known()
    job = DeviceJob(x, N)
    held = job.milestone.persist()
    wait(held)
    x.durable(N)
    x.kill(x.addresses()[0])
    wait(held)
    job.right(held, "ab")
    assert x.calls.counts() == Counter({f"{name}-{i}": 1 for name in "ab" for i in range(N)})
    (row,) = x.incidents()
    assert row["lost"] == row["reloaded"] > 0
    assert row["recomputed"] == 0
    assert row["device"] == uuid(0)
    assert all(kind == ["DeviceNDArray"] for kind in x.client.run(kinds).values())
    receipts = [json.loads(path.read_text()) for path in x.store.glob("commit/*/*.json")]
    assert {receipt["codec"] for receipt in receipts} == {"numba.cuda"}
    assert {receipt["producer"]["device"] for receipt in receipts} == {uuid(0), uuid(1)}


def test_kill_in_the_middle_of_the_graph(x):
    """With the step above under way, what was saved is loaded as often as it is lost, and the result is right."""
    x.install()
    job = DeviceJob(x, N)
    milestone = job.milestone.persist()
    wait(milestone)
    x.durable(N)
    x.gate("c")
    held = job.then(milestone, "c").persist()
    wait_until(lambda: sum(name.startswith("c-") for name in x.calls.counts()) == 2, 30, "both workers are at it")
    for worker in (0, 1):
        x.kill(x.addresses()[worker])
        x.whole()
    x.free()
    wait(held)
    job.right(held, "abc")
    counts = x.calls.counts()
    assert all(counts[f"{name}-{i}"] == 1 for name in "ab" for i in range(N))


def test_device_that_refuses_is_no_fault_of_the_job(x, cuda):
    """What cannot be copied is "not saved", with CUDA's own code, and goes on as in plain Dask."""
    x.install()
    cuda.gpu(0, cuda__cuCtxSynchronize=719)
    cuda.gpu(1, cuda__cuCtxSynchronize=719)
    job = DeviceJob(x, N)
    held = job.milestone.persist()
    wait(held)
    rows = x.handle.checkpoints()
    assert {row["state"] for row in rows} == {"not saved"}
    assert {row["reason"] for row in rows} == {
        "the array could not be copied from its device: cuCtxSynchronize returned 719 (CUDA_ERROR_719)"
    }
    cuda.clear()
    x.kill(x.addresses()[0])
    wait(held)
    job.right(held, "ab")
    (row,) = x.incidents()
    assert row["reloaded"] == 0


def test_device_memory_limit_holds_while_saving_and_loading(own):
    """What dask-cuda has spilled stays spilled, and what comes back pushes others out before it is allocated."""
    limit = 3 * SIZE * 8
    x = own(device_memory_limit=limit)
    x.install()
    job = DeviceJob(x, 2 * N)
    held = job.milestone.persist()
    wait(held)
    x.durable(2 * N)
    before = x.client.run(places)
    assert all(place["device bytes"] <= limit for place in before.values())
    assert any(place["host"] for place in before.values())
    assert x.client.run(places) == before
    x.kill(x.addresses()[0])
    wait(held)
    after = x.client.run(places)
    assert all(place["device bytes"] <= limit for place in after.values())
    assert sum(len(place["device"]) + len(place["host"]) for place in after.values()) == 2 * N
    job.right(held, "ab")
    assert all(n == 1 for n in x.calls.counts().values())
