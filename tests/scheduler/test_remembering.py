"""What the scheduler's queue remembers of devices: in the store or elsewhere, and never at the cost of the job."""

from __future__ import annotations

import asyncio
import errno
import logging
import threading

import pytest
from tornado.ioloop import IOLoop

from dask_resilient.core.actions import Cause, Decision, Phase
from dask_resilient.core.devices import CANARY, Device
from dask_resilient.core.remembered import QUARANTINED, state
from dask_resilient.scheduler import queue as queue_module
from dask_resilient.scheduler.memory import Memory
from dask_resilient.scheduler.queue import StoreQueue
from dask_resilient.store import Calls, open_store
from tests.support.remembered import GPU, MIG, entry, put, where
from tests.support.store_life import Impatient
from tests.support.waiting import until


@pytest.fixture
def store(tmp_path):
    """Give a store that was just made."""
    return open_store(tmp_path / "store", create=True, calls=Impatient())


@pytest.fixture
def on_queue():
    """Give a function that runs a test on the loop, with a queue."""

    def run(test, store=None):
        async def main():
            queue = StoreQueue(IOLoop.current())
            queue.store = store
            try:
                return await test(queue)
            finally:
                queue.close()

        return asyncio.run(main())

    return run


def test_a_queue_remembers(tmp_path, store, on_queue, caplog):
    """What was appended through one queue is read through another: in the store, or under a path of its own."""

    async def write(queue):
        queue.remember(None, GPU, entry())
        queue.remember(str(tmp_path / "own"), MIG, entry(device=MIG))
        queue.remember(None, "host:node7/0", entry(device="host:node7/0"))
        await until(lambda: where(tmp_path / "own", device=MIG).exists())
        return await read(queue)

    async def read(queue):
        return await queue.remembered(None), await queue.remembered(str(tmp_path / "own"))

    for test in (write, read):
        in_store, own = on_queue(test, store)
        assert in_store == ({GPU: [entry() | {"n": 0}]}, "")
        assert own == ({MIG: [entry(device=MIG) | {"n": 0}]}, "")
    assert not caplog.records


@pytest.mark.parametrize(
    ("before", "cause", "event"),
    [
        (Phase.ACTIVE, Cause("xid.79", ("seen",)), "quarantined"),
        (Phase.QUARANTINED, Cause("operator", ("never again",), by="alice"), "quarantined"),
        (Phase.QUARANTINED, Cause(CANARY, ("wrong",)), "tried"),
        (Phase.QUARANTINED, Cause("sign"), None),
        (Phase.QUARANTINED, Cause("xid.79", ("seen",)), None),
    ],
)
def test_what_is_written_down_of_a_device_out_of_service(on_queue, before, cause, event):
    """What took it out, an operator's word on top of that, canaries that computed wrong; not that workers joined."""
    written = []

    async def test(queue):
        queue.remember = lambda path, device, entry: written.append((path, device, entry["event"], entry["by"]))
        decision = Decision(1.7e9, GPU, "node7", "", before, Phase.QUARANTINED, cause)
        Memory("r" * 32, queue, None).decided(decision, Device(GPU, locked=True))

    on_queue(test)
    assert written == ([(None, GPU, event, cause.by)] if event else [])


def test_neither_store_nor_path(on_queue, caplog):
    """Then nothing is remembered, and nobody is told."""

    async def test(queue):
        queue.remember(None, GPU, entry())
        assert await queue.ask(lambda: 7) == 7
        return await queue.remembered(None)

    assert on_queue(test) == ({}, "")
    assert not caplog.records


def test_an_unusable_path_is_told_once(tmp_path, on_queue, caplog):
    """A path that is a file: nothing is known and entries are lost, with one warning; the report says so too."""
    path = tmp_path / "file"
    path.touch()

    async def test(queue):
        found = await queue.remembered(str(path))
        for _ in range(5):
            queue.remember(str(path), GPU, entry())
        await queue._beside.ask(lambda: None)
        return found, queue.forgets

    (found, reason), forgets = on_queue(test)
    assert found == {}
    assert str(path) in reason
    assert str(path) in forgets
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "no device is held back" in caplog.messages[0]


def test_ignored_entries_are_told_once(tmp_path, on_queue, caplog):
    """Damaged entries are one warning, with the first reason and their number; what is sound counts."""
    put(tmp_path, QUARANTINED)
    for n in (1, 2):
        where(tmp_path, n).write_text("torn")
    found, reason = on_queue(lambda queue: queue.remembered(str(tmp_path)))
    assert state(found[GPU]).out
    assert reason == ""
    assert len(caplog.messages) == 1
    assert "2 things are ignored" in caplog.messages[0]
    assert "2.json" in caplog.messages[0]


def test_a_disk_that_hangs(tmp_path, store, on_queue, caplog, monkeypatch):
    """A store that does not answer is one warning; what is remembered on another disk is read all the same."""
    monkeypatch.setattr(queue_module, "ANSWER_SECONDS", 0.2)
    put(tmp_path / "own", QUARANTINED)
    hung = threading.Event()

    class Hanging(Calls):
        def lstat(self, path):
            hung.wait(60)
            raise OSError(errno.EIO, "gone")

    store._calls = Hanging()

    async def test(queue):
        first = await queue.remembered(None)
        queue.remember(None, GPU, entry())
        return first, await queue.remembered(str(tmp_path / "own"))

    try:
        (found, reason), (own, none) = on_queue(test, store)
    finally:
        hung.set()
    assert found == {}
    assert "did not answer within 0.2 s" in reason
    assert state(own[GPU]).out
    assert none == ""
    assert len(caplog.messages) == 1
