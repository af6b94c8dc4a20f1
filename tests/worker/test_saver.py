"""The background writer, without a cluster: what it holds, how long it keeps a task waiting, and when it gives up."""

from __future__ import annotations

import errno
import threading
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest

from dask_resilient import partitions
from dask_resilient.core.manifest import Place, Receipt
from dask_resilient.errors import ChangedWhileWriting, StoreError
from dask_resilient.protocols import Staged
from dask_resilient.worker.saver import Item, Saver
from tests.support.waiting import wait_until

PLACE = Place("m", "0", 0, "a")


class Store:
    """A store whose writes wait at a gate and then end as told."""

    url = "here"
    token = "token"

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.ends: list[BaseException] = []
        self.begun = 0
        self.written: list[Place] = []
        self.first: Receipt | None = None

    def write(self, place: Place, staged: Staged, facts: Mapping[str, Any]) -> Receipt:
        self.begun += 1
        self.gate.wait(30)
        if self.ends:
            raise self.ends.pop(0)
        self.written.append(place)
        return Receipt(place, "k", "run", staged.codec, staged.schema, staged.nbytes, ((staged.nbytes + 4, 0),), "")

    def winner(self, place: Place) -> Receipt | None:
        return self.first

    def read(self, place: Place, key: str | None) -> Any:
        raise NotImplementedError

    def revoke(self, place: Place, reason: str) -> None:
        raise NotImplementedError


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class World:
    """A saver with a store, a clock, and what it said."""

    def __init__(self, **settings: Any) -> None:
        self.store = Store()
        self.clock = Clock()
        self.said: list[dict[str, Any]] = []
        chosen = {"limit": 1_000, "threads": 2, "task_wait": 30.0, "run_wait": 0.05, "stuck": 60.0} | settings
        self.saver = Saver(self.store, send=lambda msg: self.said.append(dict(msg)), clock=self.clock, **chosen)

    def kinds(self) -> list[str]:
        return [msg["kind"] for msg in self.said]

    def reasons(self) -> list[str]:
        return [msg["reason"] for msg in self.said if msg["kind"] == "not-saved"]


@pytest.fixture
def world() -> Iterator[World]:
    """One saver; when the test ends its thread ends and nothing stays staged."""
    world = World()
    yield world
    world.store.gate.set()
    world.saver.close()
    wait_until(lambda: not world.saver._thread.is_alive(), what="the saver's thread ends")
    assert world.saver.staged == 0


def item(attempt: str, nbytes: int = 400) -> Item:
    staged = partitions.stage(np.zeros(nbytes, "u1"))
    assert isinstance(staged, Staged)
    return Item(attempt, "key", staged, {"key": "k"})


def test_what_is_granted_is_written_and_reported(world: World) -> None:
    """Nothing is written before the scheduler has given it a place."""
    assert world.saver.queue(item("a")) is None
    assert world.store.begun == 0
    world.saver.grant("key", "a", PLACE)
    wait_until(lambda: world.kinds() == ["committed"])
    assert (world.said[0]["attempt"], world.said[0]["nbytes"], world.said[0]["stored_nbytes"]) == ("a", 400, 404)
    wait_until(lambda: world.saver.staged == 0)


def test_a_task_waits_for_room_no_longer_than_it_may(world: World) -> None:
    """Right after the start the share of the run is nothing, so it does not wait at all."""
    assert world.saver.queue(item("a", 900)) is None
    reason = world.saver.queue(item("b", 200))
    assert reason is not None
    assert reason.startswith("backlog: 900 bytes")
    assert world.saver.staged == 900


def test_a_task_that_may_wait_goes_on_as_soon_as_there_is_room(world: World) -> None:
    """The wait ends with the write, not with the time."""
    world.clock.now = 1e6
    assert world.saver.queue(item("a", 900)) is None
    answers: list[str | None] = []
    thread = threading.Thread(target=lambda: answers.append(world.saver.queue(item("b", 200))))
    thread.start()
    world.saver.grant("key", "a", PLACE)
    thread.join(10)
    assert answers == [None]


def test_one_partition_larger_than_the_limit_is_saved_when_alone(world: World) -> None:
    """Else it could never be."""
    assert world.saver.queue(item("a", 5_000)) is None
    assert world.saver.queue(item("b", 1)) is not None


def test_staged_bytes_go_first_when_memory_is_short(world: World) -> None:
    """All but the one that is being written."""
    world.store.gate.clear()
    world.saver.queue(item("a"))
    world.saver.queue(item("b"))
    world.saver.grant("key", "a", PLACE)
    wait_until(lambda: world.store.begun == 1)
    world.saver.shed("the worker passed its memory target")
    assert world.saver.staged == 400
    assert [(m["attempt"], m["reason"]) for m in world.said] == [("b", "the worker passed its memory target")]


def test_a_dropped_attempt_is_let_go_of(world: World) -> None:
    """Its memory with it."""
    queued = item("a")
    alive = weakref.ref(queued.staged.chunks[0][0])
    world.saver.queue(queued)
    del queued
    world.saver.drop("a")
    assert world.saver.staged == 0
    assert alive() is None


def test_what_was_written_is_let_go_of(world: World) -> None:
    """An idle writer holds no partition."""
    queued = item("a")
    alive = weakref.ref(queued.staged.chunks[0][0])
    world.saver.queue(queued)
    del queued
    world.saver.grant("key", "a", PLACE)
    wait_until(lambda: alive() is None, what="the memory is free")


@pytest.mark.parametrize(
    ("error", "reason", "failed"),
    [
        (ChangedWhileWriting("x"), "changed while it was being written", False),
        (StoreError(errno.EIO, "no answer"), "the store failed", True),
        (RuntimeError("odd"), "the store failed", True),
    ],
)
def test_a_write_that_fails_is_reported_with_its_reason(
    world: World, error: Exception, reason: str, failed: bool
) -> None:
    """And the next one is written."""
    world.store.ends = [error]
    for attempt in "ab":
        world.saver.queue(item(attempt))
        world.saver.grant("key", attempt, PLACE)
    wait_until(lambda: len(world.said) == 2)
    assert world.said[0]["reason"].startswith(reason)
    assert world.said[0]["failed"] is failed
    assert world.said[1]["kind"] == "committed"


def first_receipt(key: str) -> Receipt:
    return Receipt(Place("m", "0", 0, "first"), key, "run", "numpy", {}, 400, ((404, 0),), "")


def test_the_winner_of_a_race_is_used(world: World) -> None:
    """Its worker may have died between the commit and the message."""
    world.store.ends = [FileExistsError()]
    world.store.first = first_receipt("k")
    world.saver.queue(item("second"))
    world.saver.grant("key", "second", PLACE)
    wait_until(lambda: world.kinds() == ["committed"])
    assert (world.said[0]["attempt"], world.said[0]["stored_attempt"]) == ("second", "first")


@pytest.mark.parametrize("first", [None, first_receipt("another key")], ids=["revoked", "foreign"])
def test_a_receipt_that_is_not_ours_is_not_used(world: World, first: Receipt | None) -> None:
    """Nor is it taken for a copy."""
    world.store.ends = [FileExistsError()]
    world.store.first = first
    world.saver.queue(item("second"))
    world.saver.grant("key", "second", PLACE)
    wait_until(lambda: world.kinds() == ["not-saved"])
    assert "no receipt of this partition" in world.reasons()[0]


@pytest.mark.parametrize(("code", "writes"), [(errno.ENOSPC, 1), (errno.EIO, 3)])
def test_saving_switches_itself_off_with_one_warning(
    world: World, log: pytest.LogCaptureFixture, code: int, writes: int
) -> None:
    """At once where waiting cannot help, else after three failures in a row."""
    world.store.ends = [StoreError(code, "bad luck") for _ in range(3)]
    for n in range(writes):
        assert world.saver.off is None
        world.saver.queue(item(str(n)))
        world.saver.grant("key", str(n), PLACE)
        wait_until(lambda n=n: len(world.reasons()) == n + 1)
    wait_until(lambda: "saving-off" in world.kinds())
    reason = world.saver.queue(item("later"))
    assert reason is not None
    assert "switched off" in reason
    assert sum("switched off" in record.getMessage() for record in log.records) == 1


def test_a_write_that_hangs_switches_saving_off_and_frees_what_waits(world: World) -> None:
    """Memory must not be held for a store that does not answer."""
    world.store.gate.clear()
    for attempt in "ab":
        world.saver.queue(item(attempt))
        world.saver.grant("key", attempt, PLACE)
    wait_until(lambda: world.store.begun == 1)
    world.clock.now = 59
    world.saver.check()
    assert world.saver.off is None
    world.clock.now = 61
    world.saver.check()
    assert world.saver.off is not None
    assert world.saver.staged == 400
    assert len(world.reasons()) == 1


def test_closing_takes_nothing_more(world: World) -> None:
    """What waits is reported, not lost in silence."""
    world.saver.queue(item("a"))
    world.saver.close()
    assert world.reasons() == ["the plugin has left"]
    assert world.saver.queue(item("b")) == "the plugin is leaving"


def test_a_grant_for_what_was_let_go_of_is_answered(world: World) -> None:
    """Else the scheduler would wait for that save for ever."""
    world.saver.grant("key", "gone", PLACE)
    assert world.reasons() == ["let go of before its turn: memory was short"]
