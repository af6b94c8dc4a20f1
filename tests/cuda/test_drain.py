"""What a worker with a GPU holds when it leaves: what dask-cuda has spilled is saved from where it is."""

from __future__ import annotations

import numpy as np
import pytest
from distributed import wait

from tests.cuda.device_job import expected, step

pytestmark = pytest.mark.slow

N = 6
LIMIT = 200_000
"""Two of the results stay on the device."""
ILLEGAL = "cudaErrorIllegalAddress: an illegal memory access was encountered"


def make(i, where):
    return step(None, where, "a", (i,))


def boom():
    raise RuntimeError(ILLEGAL)


def places(dask_worker):
    """Give which results are on the device of this worker, and which are not."""
    data = dask_worker.data
    mine = {"device": data.device, "host": data.host}
    return {name: sorted(key for key in level if key.startswith("made")) for name, level in mine.items()}


@pytest.fixture
def x(own):
    """Two workers with little device memory."""
    x = own(device_memory_limit=LIMIT)
    x.install()
    x.known()
    return x


def filled(x):
    """Compute results on one worker; gives it, and the futures."""
    address = x.addresses()[0]
    made = {"workers": [address], "allow_other_workers": True, "pure": False}
    futures = [x.client.submit(make, i, str(x.where), key=f"made-{i}", **made) for i in range(N)]
    wait(futures)
    assert x.ask(lambda: {ws.address for f in futures for ws in x.scheduler.tasks[f.key].who_has}) == {address}
    return address, futures


def status(x, address, name):
    ws = x.scheduler.workers[address]
    x.ask(lambda: x.scheduler.handle_worker_status_change(name, ws, "test"))


def right(x, futures):
    for i, value in enumerate(x.client.gather(futures)):
        np.testing.assert_array_equal(value.copy_to_host(), expected("a", i))


def test_spilled_results_are_saved_where_they_are(x):
    """With nobody to take them all are saved and loaded; none is moved back to the device to be saved."""
    address, futures = filled(x)
    before = x.client.run(places, workers=[address])[address]
    assert len(before["host"]) == N - 2
    status(x, x.addresses()[1], "paused")

    async def drain():
        from time import time

        enact = x.watch.keeper.enact
        enact.gate.shut(address)
        return await enact.drains.drain(address, time() + 20)

    done = x.cluster.sync(drain)
    assert (done.text, done.saved, done.moved) == ("drained", N, 0)
    assert x.client.run(places, workers=[address])[address] == before
    status(x, x.addresses()[1], "running")
    x.kill(address)
    right(x, futures)
    assert set(x.calls.counts().values()) == {1}
    assert len(x.loads()) == N


def test_after_a_sticky_error_only_what_was_off_the_device_is_saved(x):
    """The process is replaced; what it had spilled is loaded, what it had on the device is computed again."""
    address, futures = filled(x)
    before = x.client.run(places, workers=[address])[address]
    assert len(before["device"]) == 2
    failing = x.client.submit(boom, workers=[address], retries=0, pure=False)
    x.until(lambda: address not in x.scheduler.workers, what="the process is replaced")
    rows = [row for row in x.handle.incidents() if any(a.startswith("restart") for a in row.get("actions", ()))]
    assert rows[0]["saved"] == N - 2
    failing.cancel()
    right(x, futures)
    assert x.calls.counts() == {f"a-{i}": 2 if f"made-{i}" in before["device"] else 1 for i in range(N)}
