"""A worker that is alive but broken: no more tasks there, every result right, and the others left in peace."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

import dask
import pytest
from distributed import wait

from dask_resilient.core.actions import Cause, Judged
from dask_resilient.core.faults import Class
from tests.support.waiting import wait_until

ILLEGAL = "cudaErrorIllegalAddress: an illegal memory access was encountered"
BAD_ALLOC = (
    "std::bad_alloc: CUDA error (failed to allocate 8 bytes) at: x: cudaErrorIllegalAddress an illegal memory access"
)
FAST = {"probe__interval": 0.5}


def here():
    """Give the name of the worker that this runs on."""
    from distributed import get_worker

    return str(get_worker().name)


def black_hole(i, calls, *_):
    """Fail with an error of CUDA on worker 0, whatever its process, and at once."""
    if here() == "0":
        calls.add("sick")
        raise RuntimeError(ILLEGAL)
    time.sleep(0.05)
    return i


def sticky(i, calls):
    """Fail with an error of CUDA in the first process of worker 0, from its tenth task on."""
    if here() == "0" and os.getpid() == first_pid(calls):
        calls.add("mine")
        if calls.counts()["mine"] > 10:
            calls.add("sick")
            raise MemoryError(BAD_ALLOC)
    time.sleep(0.01)
    return i


def first_pid(calls):
    """Give the process that worker 0 had first."""
    file = Path(calls.directory) / ".." / "first"
    try:
        with file.open("x") as f:
            f.write(str(os.getpid()))
    except FileExistsError:
        pass
    return int(file.read_text() or 0)


def illegal_everywhere(i):
    raise RuntimeError(ILLEGAL)


def value_error(i):
    raise ValueError("no such column")


class Says:
    """A probe that says of one worker's device what stands in a file."""

    name = "says"
    interval = 0.2

    def __init__(self, file):
        self.file = file

    def read(self, device):
        try:
            said = Path(self.file).read_text().split()
        except FileNotFoundError:
            said = []
        return [("stated", said[0], "so it says")] if said and device.endswith(said[1]) else []


def phases(x):
    """Give the phase of each worker by name."""
    return {row["name"]: row["phase"] for row in x.watch.members.rows()}


def sick(x):
    """Give what is known of the device of worker 0."""
    return x.watch.keeper.book.devices[f"host:{socket.gethostname()}/0"]


def decisions(x):
    return [row for row in x.handle.incidents() if row["kind"] != "loss"]


@pytest.fixture
def four(pool, tmp_path):
    """Four workers of one thread with the plugin; the cluster is not used again."""
    from tests.support.pool import one_test

    pool.close()
    with one_test(pool.get(4, 1, {}), tmp_path) as x:
        x.worn = True
        x.install(**FAST)
        x.whole()
        x.until(lambda: {row["health"] for row in x.watch.members.rows()} == {"healthy"}, what="all are healthy")
        yield x


@pytest.mark.parametrize(
    "inputs",
    [pytest.param(False, id="without inputs"), pytest.param(True, id="with inputs", marks=pytest.mark.slow)],
)
def test_a_black_hole(inputs, four):
    """T06: one of four workers fails every task at once; no task is lost, and it sees but a few."""
    x = four
    args = [x.client.map(int, range(400), pure=False)] if inputs else []
    if inputs:
        wait(args[0])
    futures = x.client.map(black_hole, range(400), [x.calls] * 400, *args, retries=0, pure=False)
    assert x.client.gather(futures) == list(range(400))
    assert x.calls.counts()["sick"] <= 3 + 1
    if not inputs:  # else what is left may wait elsewhere, so that its next process is given nothing
        x.until(lambda: sick(x).phase == "quarantined", what="it is out of service")
    x.until(lambda: len(phases(x)) == (3 if sick(x).phase == "quarantined" else 4), what="it is gone, or serves again")
    x.n = len(phases(x))


def test_a_process_that_turns_sticky(four):
    """T07: the process is replaced once, no task is lost, and the worker serves again."""
    x = four
    futures = x.client.map(sticky, range(400), [x.calls] * 400, retries=2, pure=False)
    assert x.client.gather(futures) == list(range(400))
    assert 1 <= x.calls.counts()["sick"] <= 3
    x.until(lambda: set(phases(x).values()) == {"active"} and len(phases(x)) == 4, what="all serve again")


def test_an_error_of_the_task_itself(four):
    """The same `ValueError` everywhere quarantines nobody, and is the user's to see."""
    x = four
    futures = x.client.map(value_error, range(40), pure=False)
    wait(futures)
    assert {future.status for future in futures} == {"error"}
    assert set(phases(x).values()) == {"active"}
    assert not decisions(x)


def quotes(i):
    """Fail with the words of an error of CUDA, as a program does that reads logs."""
    if i % 5 == 0:
        raise ValueError(f"line {i}: {ILLEGAL}")
    return i


def test_a_program_that_reads_logs(four):
    """Its errors come as in plain Dask; a process is lost at most where one worker met two before any other met one."""
    x = four
    futures = x.client.map(quotes, range(100), pure=False)
    wait(futures, 30)
    assert [future.status for future in futures] == ["finished" if i % 5 else "error" for i in range(100)]
    x.until(lambda: set(phases(x).values()) == {"active"} and len(phases(x)) == 4, what="all serve")
    assert len([row for row in decisions(x) if any(action.startswith("restart") for action in row["actions"])]) <= 1


@pytest.mark.slow
def test_processes_that_are_replaced_one_after_the_other(four):
    """The cluster, which looks for a worker some seconds after it left, never takes it for lost."""
    x, looked = four, []
    cause = Cause("cuda.700", ("seen",), fact=True, label="f: x", culprit=True)
    with dask.config.set({"distributed.deploy.lost-worker-timeout": "3 s"}):
        x.handle.uninstall()
        x.install(**FAST)
        gone = set()
        for _ in range(6):
            new = x.until(
                lambda: [m for m in x.watch.members.all() if m.name == "0" and m.side and m.worker not in gone],
                what="a new process",
            )
            gone.add(new[0].worker)
            x.ask(lambda: x.watch.keeper.hear(Judged(new[0].worker, Class.KILL, cause)))  # noqa: B023
        x.until(lambda: not gone & set(x.scheduler.workers) and len(x.scheduler.workers) == 4, what="all are there")
        x.ask(lambda: x.scheduler.loop.call_later(4, looked.append, True))
        x.until(lambda: looked, what="the cluster has looked")
    assert sorted(x.cluster.workers) == [0, 1, 2, 3]
    assert {nanny.status.name for nanny in x.cluster.workers.values()} == {"running"}
    x.until(lambda: set(phases(x).values()) == {"active"} and len(phases(x)) == 4, what="all serve again", seconds=90)


def test_a_kernel_that_is_illegal_on_every_device(four):
    """The error comes as in plain Dask, after at most three processes, and no device is out of service for it."""
    x = four
    future = x.client.submit(illegal_everywhere, 1)
    with pytest.raises(RuntimeError, match="cudaErrorIllegalAddress"):
        future.result(30)
    replaced = [row for row in decisions(x) if any(action.startswith("restart") for action in row["actions"])]
    assert len(replaced) <= 3
    x.until(lambda: set(phases(x).values()) == {"active"} and len(phases(x)) == 4, what="all serve again")


def hangs_once(i, calls):
    """Never end on worker 0, in its first process; `time.sleep` keeps the processor free."""
    if i == 7 and here() == "0" and os.getpid() == first_pid(calls):
        calls.add("hung")
        time.sleep(3600)
    time.sleep(0.02)
    return i


@pytest.mark.slow
@pytest.mark.parametrize("limit", [20, None], ids=["with a limit", "without"])
def test_a_task_that_never_ends(limit, pool, tmp_path):
    """T11: beyond the limit it is run elsewhere once and the process replaced; without a limit nothing is done."""
    from tests.support.pool import one_test

    pool.close()
    with one_test(pool.get(2, 1, {}), tmp_path) as x:
        x.worn = True
        x.install(**FAST, probe__hang=limit)
        x.whole()
        first = x.client.submit(first_pid_of_0, x.calls, workers=x.addresses()[:1])
        first.result(20)
        zero = x.addresses()[:1]
        futures = [
            x.client.submit(hangs_once, i, x.calls, workers=zero if i == 7 else None, allow_other_workers=i == 7)
            for i in range(40)
        ]
        if limit:
            assert x.client.gather(futures) == list(range(40))
            x.until(lambda: set(phases(x).values()) == {"active"} and len(phases(x)) == 2, what="both serve again")
            assert x.calls.counts()["hung"] == 1
            assert decisions(x)[0]["rule"] == "work.hang"
        else:
            x.until(lambda: x.calls.counts()["hung"] == 1, what="it hangs")
            time_of_two_ticks(x)
            assert not futures[7].done()
            assert not decisions(x)
        futures[7].cancel()


def first_pid_of_0(calls):
    return first_pid(calls)


def time_of_two_ticks(x):
    """Wait until the scheduler has looked at all workers twice."""
    seen = x.ask(lambda: x.watch.care._last)
    x.until(lambda: x.watch.care._last > seen + 2.5, what="two more looks")


@pytest.mark.parametrize("cls", ["evict", pytest.param("kill", marks=pytest.mark.slow)])
def test_a_restart_onto_a_bad_device(cls, pool, tmp_path):
    """T08: whatever process uses the device is told to be bad; a few are tried, and the job ends on the others."""
    from tests.support.pool import one_test

    pool.close()
    with one_test(pool.get(3, 1, {}), tmp_path) as x:
        x.worn = True
        x.install(probes=[Says(str(tmp_path / "said"))], **FAST)
        x.whole()
        futures = x.client.map(noted, range(300), [x.calls] * 300, pure=False)
        x.until(lambda: x.calls.total() > 20, what="some have begun")
        (tmp_path / "said").write_text(f"{cls} /0")
        x.kill(x.addresses()[0])
        assert x.client.gather(futures) == list(range(300))
        x.until(lambda: sick(x).phase == "quarantined", 60, "it is out of service")
        x.until(lambda: sorted(phases(x)) == ["1", "2"], what="it is gone, and its nanny closed on purpose")
        replaced = [row for row in decisions(x) if any(action.startswith("restart") for action in row["actions"])]
        assert len(replaced) == (2 if cls == "kill" else 0)
        wait_until(lambda: decisions(x)[-1]["outcome"].endswith("its nanny closed"), 20)
        x.n = 2


def noted(i, calls):
    calls.add(here())
    time.sleep(0.02)
    return i


def hold(seconds):
    import ctypes

    ctypes.PyDLL(None).sleep(seconds)
    return seconds


@pytest.mark.slow
def test_busy_is_not_hung(four):
    """T10: a task that holds Python's lock is shown as busy, and neither killed nor kept from more."""
    x = four
    future = x.client.submit(hold, 12)
    x.until(lambda: "work.not-answering" in {row["rule"] for row in x.watch.members.rows()}, what="it is shown")
    assert future.result(30) == 12
    assert set(phases(x).values()) == {"active"}
    assert not decisions(x)


def until_there(file):
    """Wait for a file."""
    return wait_until(Path(file).exists, 60)


def executes(x, key):
    return any(ts.key == key for ws in x.scheduler.workers.values() for ts in ws.executing)


def test_an_operator_takes_a_device_out_and_puts_it_back(four):
    """By name, address or device; with tasks running, and with one clear word where nothing is called so."""
    x = four
    futures = x.client.map(noted, range(200), [x.calls] * 200, pure=False)
    x.until(lambda: x.calls.total() > 10, what="some have begun")
    go_on = x.where / "go on"
    busy = x.client.submit(until_there, str(go_on), workers=x.addresses()[:1])
    x.until(lambda: executes(x, busy.key), what="it is in the middle of a task, which a drain lets end")
    with pytest.raises(ValueError, match="no worker and no device 'nobody'; known devices are 'host:"):
        x.handle.quarantine("nobody", "why not")
    (row,) = x.handle.quarantine("0", "fan is loud")
    assert (row["before"], row["after"], row["rule"], row["evidence"]) == (
        "active",
        "draining",
        "operator",
        ("fan is loud",),
    )
    (row,) = x.handle.release(x.addresses()[0], "fan is fine")
    assert row["after"] == "active"
    go_on.touch()
    assert busy.result(20)
    (row,) = x.handle.release("0")
    assert row["declined"] == "it is active already"
    assert x.client.gather(futures) == list(range(200))
    x.until(lambda: set(phases(x).values()) == {"active"} and len(phases(x)) == 4, what="all serve")
    before = x.calls.counts()["0"]
    again = x.client.map(noted, range(200, 400), [x.calls] * 200, pure=False)
    assert x.client.gather(again) == list(range(200, 400))
    assert x.calls.counts()["0"] > before
    device = x.handle.workers()[0]["device"]
    x.handle.quarantine(device, "for good")
    x.until(lambda: len(phases(x)) == 3, what="it has left")
    assert x.client.gather(again) == list(range(200, 400))
    assert decisions(x)[-1]["recomputed"] == 0
    x.n = 3


def test_an_operator_is_told_that_quarantine_is_off(pool, tmp_path):
    """Nothing is decided then, so nothing is done for them either."""
    from tests.support.pool import one_test

    with one_test(pool.get(2, 1, {}), tmp_path) as x:
        x.install(quarantine__enabled=False)
        with pytest.raises(ValueError, match=r"cannot release '0': resilience\.quarantine\.enabled is false"):
            x.handle.release("0")
