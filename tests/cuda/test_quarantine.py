"""Quarantine on the real dask-cuda: each fault takes a device out of service in its own way; no result is wrong."""

from __future__ import annotations

import pytest
from distributed import wait

from tests.cuda.quarantined import (
    SICK,
    SOUND,
    UnderWay,
    closed,
    decided,
    install,
    only_on,
    phase,
    rejoin,
    row_of,
    until_phase,
)
from tests.support.waiting import wait_until

UNREADABLE = {
    "XID 79": (lambda cuda: cuda.xid(0, 79), "xid.79"),
    "XID 95": (lambda cuda: cuda.xid(0, 95), "xid.95"),
    "XID 48": (lambda cuda: cuda.xid(0, 48), "xid.48"),
    "XID 119": (lambda cuda: cuda.xid(0, 119), "xid.119"),
    "lost": (lambda cuda: cuda.gpu(0, **{"return": 15}), "nvml.15"),
    "reset required": (lambda cuda: cuda.gpu(0, **{"return": 16}), "nvml.16"),
    "recovery action: reset": (lambda cuda: cuda.gpu(0, fi__230=1), "recovery-action.1"),
}
READABLE = {
    "XID 64": (lambda cuda: cuda.xid(0, 64), "xid.64"),
    "recovery action: drain and reset": (lambda cuda: cuda.gpu(0, fi__230=4), "recovery-action.4"),
    "a new uncorrectable error": (lambda cuda: cuda.gpu(0, ecc_u_vol=1), "ecc-uncorrected"),
    "hot": (lambda cuda: cuda.gpu(0, temp=91), "temperature"),
}
HARMLESS = {
    "XID 63": (lambda cuda: cuda.xid(0, 63), "healthy", "xid.63"),
    "XID 94 of another process": (lambda cuda: cuda.xid(0, 94), "degraded", "xid.94"),
    "XID 74 without links": (lambda cuda: cuda.xid(0, 74), "degraded", "xid.74"),
    "warm": (lambda cuda: cuda.gpu(0, temp=86), "degraded", "temperature"),
}


def table(faults):
    """Make parameters of a table; all but the first are slow tests."""
    return [
        pytest.param(*fault, id=name, marks=() if n == 0 else pytest.mark.slow)
        for n, (name, fault) in enumerate(faults.items())
    ]


@pytest.fixture
def two(x, cuda):
    """Two healthy devices with the plugin; workers that were closed are started again in the end."""
    install(x)
    yield x
    cuda.clear()
    rejoin(x)


@pytest.mark.parametrize(("inject", "rule"), table(UNREADABLE))
def test_an_unreadable_device_is_left_at_once(inject, rule, two, cuda):
    """Its worker goes with its nanny; what it held is loaded or computed again, and no task runs there any more."""
    x = two
    job = UnderWay(x)
    cuda.gpu(0, cuda=719)  # what asked for its data would get an error
    inject(cuda)
    until_phase(x, "quarantined")
    job.goes_on(without="0")
    job.right()
    assert job.again("ab") == 0
    (row,) = decided(x)
    assert (row["rule"], row["before"], row["after"]) == (rule, "active", "quarantined")
    assert row["evidence"]
    assert row["lost"] > 0
    x.until(lambda: closed(x), what="its nanny is closed")
    (row,) = decided(x)
    assert "nanny closed" in row["outcome"]
    assert [(r["device"], r["phase"]) for r in x.handle.workers()] == [(SOUND, "active")]


@pytest.mark.parametrize(("inject", "rule"), table(READABLE))
def test_a_readable_device_is_drained_first(inject, rule, two, cuda):
    """What it executes ends, what only it holds is moved unless it is durable, and no function runs again."""
    x = two
    job = UnderWay(x)
    inject(cuda)
    until_phase(x, "draining")
    job.goes_on(without="0")
    until_phase(x, "quarantined")
    job.right()
    assert job.again("abcd") == 0
    assert all(key.startswith("('checkpoint-") for key in x.loads())
    first, second = decided(x)
    assert (first["rule"], first["before"], first["after"]) == (rule, "active", "draining")
    assert (second["rule"], second["before"], second["after"]) == (rule, "draining", "quarantined")
    assert first["moved"] > 0
    assert second["lost"] == len(x.loads())
    x.until(lambda: closed(x), what="its nanny is closed")


@pytest.mark.parametrize(("inject", "how", "rule"), HARMLESS.values(), ids=HARMLESS)
def test_what_asks_for_nothing_changes_nothing(inject, how, rule, two, cuda):
    """It is told, and the device goes on."""
    x = two
    inject(cuda)
    x.until(lambda: (row_of(x)["health"], row_of(x)["rule"]) == (how, rule))
    only_on(x, {"0", "1"})
    assert {r["phase"] for r in x.handle.workers()} == {"active"}
    assert x.handle.incidents() == []


@pytest.mark.slow
def test_two_hot_devices(two, cuda):
    """One is drained; the last in service stays, with one alarm."""
    x = two
    job = UnderWay(x)
    cuda.gpu(0, temp=91)
    cuda.gpu(1, temp=91)
    x.until(lambda: "draining" in {phase(x, SICK), phase(x, SOUND)})
    x.open_gate("c")
    x.until(lambda: "quarantined" in {phase(x, SICK), phase(x, SOUND)})
    job.right()
    assert job.again("abcd") == 0
    assert sorted([phase(x, SICK), phase(x, SOUND)]) == ["active", "quarantined"]
    stays = SICK if phase(x, SICK) == "active" else SOUND
    only_on(x, {"0" if stays == SICK else "1"})
    looked = x.ask(lambda: x.watch.care._last)
    x.until(lambda: x.watch.care._last > looked + 4, what="more looks")
    (alarm,) = decided(x, stays, "declined")
    assert "last device in service" in alarm["cause"]
    assert len(decided(x, stays)) == 0


@pytest.mark.slow
def test_a_device_that_hangs_is_suspect_until_it_answers(two, cuda):
    """It gets no tasks and keeps what it holds; when it answers again it gets tasks within two seconds."""
    x = two
    job = UnderWay(x)
    cuda.gpu(0, hang=60)
    until_phase(x, "suspect", 40)
    job.goes_on(without="0")
    cuda.clear()
    until_phase(x, "active")
    only_on(x, {"0", "1"}, 200)
    job.right()
    assert job.again("abcd") == 0
    assert [(r["before"], r["after"]) for r in decided(x)] == [("active", "suspect"), ("suspect", "active")]


@pytest.mark.slow
def test_a_device_that_hangs_for_good_is_left(two, cuda):
    """As one that cannot be read; before that it is suspect."""
    x = two
    job = UnderWay(x)
    cuda.gpu(0, hang=120)
    until_phase(x, "suspect", 40)
    x.open_gate("c")
    until_phase(x, "quarantined", 80)
    job.right()
    x.until(lambda: closed(x), what="its nanny is closed")
    assert [(r["after"], r["rule"]) for r in decided(x)] == [("suspect", "silence"), ("quarantined", "silence")]


@pytest.mark.slow
def test_a_suspect_whose_worker_hangs_too_is_left(two, cuda):
    """It hangs in a copy, so nothing more is heard of it, and who waits for what it holds would wait for ever."""
    x = two
    job = UnderWay(x)
    cuda.gpu(0, hang=100, cuda_hang=100)
    until_phase(x, "suspect", 40)
    x.open_gate("c")
    states = x.ask(lambda: {str(ws.name): ws.status.name for ws in x.scheduler.workers.values()})
    assert states == {"0": "paused", "1": "running"}
    until_phase(x, "quarantined", 90)
    job.right()
    cuda.clear()


@pytest.mark.slow
def test_a_library_that_crashes_costs_no_device(two, cuda):
    """Probes end again and again, so nothing is known; nothing is done about it either."""
    x = two
    cuda.set(exit__nvmlDeviceGetTemperature=9, exit__nvmlDeviceGetTemperatureV=9)
    x.until(lambda: row_of(x)["health"] == "unknown", 90)
    looked = x.ask(lambda: x.watch.care._last)
    x.until(lambda: x.watch.care._last > looked + 15, what="more looks")
    only_on(x, {"0", "1"})
    assert x.handle.incidents() == []


def touch(i):
    """Take an array to the device and back, with real calls of numba."""
    import numpy as np
    from numba import cuda

    return int(cuda.to_device(np.full(100, i)).copy_to_host().sum()) // 100


def pid(x, name="0"):
    return x.ask(lambda: next(ws.pid for ws in x.scheduler.workers.values() if str(ws.name) == name))


@pytest.mark.slow
@pytest.mark.parametrize("code", [700, 719])
def test_a_sticky_error_costs_the_process(code, two, cuda):
    """It is replaced under its nanny; the task that met it runs again for nothing, and the device serves again."""
    x = two
    job = UnderWay(x)
    before = pid(x)
    x.open_gate("c")
    job.right()
    cuda.gpu(0, cuda__cuMemcpyHtoD_v2=code, cuda__cuMemcpyHtoDAsync_v2=code)
    futures = x.client.map(touch, range(40), retries=0, pure=False)
    until_phase(x, "probation")
    cuda.clear()
    wait(futures, timeout=60)
    assert x.client.gather(futures) == list(range(40))
    until_phase(x, "active", 40)
    assert pid(x) != before
    only_on(x, {"0", "1"}, 200)
    job.right()
    assert job.again("ab") == 0
    first, *_, last = decided(x)
    assert (first["rule"], first["after"]) == (f"cuda.{code}", "probation")
    assert first["lost"] > 0
    assert "was ended" in first["outcome"]
    assert last["after"] == "active"


@pytest.mark.slow
def test_an_error_of_the_device_itself_costs_the_device(two, cuda):
    """Memory that cannot be corrected: no process is to use it again."""
    x = two
    job = UnderWay(x)
    x.open_gate("c")
    job.right()
    cuda.gpu(0, cuda=214)
    futures = x.client.map(touch, range(40), retries=0, pure=False)
    until_phase(x, "quarantined")
    wait(futures, timeout=60)
    assert x.client.gather(futures) == list(range(40))
    job.right()
    wait_until(lambda: closed(x), what="its nanny is closed")
    assert [(r["rule"], r["after"]) for r in decided(x)] == [("cuda.214", "quarantined")]


@pytest.mark.slow
def test_a_process_that_is_replaced_in_vain(two, cuda):
    """Each new one meets the error too: the third costs the device its service, and no task is lost."""
    x = two
    cuda.gpu(0, cuda=719)
    futures = x.client.map(touch, range(40), retries=0, pure=False)
    until_phase(x, "probation")
    for _ in range(3):
        x.until(lambda: phase(x) in ("active", "quarantined"), 60, "a new process serves, or none")
        more = x.client.map(touch, range(20), retries=0, pure=False)
        wait(more, timeout=60)
        assert x.client.gather(more) == list(range(20))
    until_phase(x, "quarantined", 60)
    assert x.client.gather(futures) == list(range(40))
    assert len([r for r in decided(x) if any(a.startswith("restart") for a in r["actions"])]) <= 3
