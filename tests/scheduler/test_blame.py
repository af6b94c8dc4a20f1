"""Errors of CUDA of tasks: what they cost the process, and when the device is to blame."""

from __future__ import annotations

import pytest

from dask_resilient.core.cuda_errors import classify
from tests.support.scheduler import WELL

ILLEGAL = "RuntimeError: CUDA error at: x.cu:1: cudaErrorIllegalAddress an illegal memory access was encountered"
MEMORY = "MemoryError: std::bad_alloc: out_of_memory: CUDA error at: x.hpp"
NCCL = "RuntimeError: NCCL error: remote process exited or there was a network error"


@pytest.fixture
def x(stage):
    x = stage()
    for worker in ("a", "b"):
        x.say(worker, readings=WELL)
    return x


def fail(x, worker, key, text=ILLEGAL, prefix="p"):
    fault = classify(text)
    assert fault is not None
    x.blame.fault(worker, {"key": key, "prefix": prefix, "fault": fault.to_dict()})


def succeed(x, worker, key):
    x.task(key, worker)
    x.blame.done(key)


def test_a_sticky_error_costs_the_process(x):
    """Whoever is to blame for it; the event says who, and why."""
    fail(x, "a", "k")
    assert x.health("a") == ("unhealthy", "cuda.700")
    assert x.row("a")["readable"] is False
    assert x.health("b")[0] == "healthy"
    event = next(e for e in x.events if e["action"] == "task-fault")
    assert (event["error"], event["code"], event["suspect"], event["key"]) == (
        "cudaErrorIllegalAddress",
        700,
        "task",
        "k",
    )


def test_a_device_is_indicted_by_different_tasks_that_succeed_elsewhere(x):
    """One is not enough."""
    fail(x, "a", "k1")
    succeed(x, "b", "k1")
    assert not [e for e in x.row("a")["evidence"] if "succeeded elsewhere" in e]
    x.blame.removed("a")  # its process was replaced
    fail(x, "a", "k2", prefix="q")
    succeed(x, "b", "k2")
    assert x.health("a") == ("unhealthy", "attribution.device") or "attribution" in str(x.row("a"))
    assert [e for e in x.row("a")["evidence"] if "2 tasks failed here and succeeded elsewhere: k1, k2" in e]


def test_what_fails_in_a_dead_process_is_no_second_failure(x):
    """The task that was begun before the error of the first was heard of says nothing new of the device."""
    for key in ("k1", "k2", "k3"):
        fail(x, "a", key, prefix=key)
    for key in ("k1", "k2", "k3"):
        succeed(x, "b", key)
    assert x.health("a") == ("unhealthy", "cuda.700")
    assert not [e for e in x.row("a")["evidence"] if "succeeded elsewhere" in e]


def test_a_task_that_fails_everywhere_blames_no_device(x):
    """The same code on both devices."""
    for key in ("k1", "k2"):
        for worker in ("a", "b"):
            x.blame.removed(worker)  # its process was replaced
            fail(x, worker, key)
    assert x.events[-1]["suspect"] == "task"
    assert not [e for w in "ab" for e in x.row(w)["evidence"] if "succeeded elsewhere" in e]


def test_out_of_memory_is_no_signal(x):
    """Once, or five times of one task, or where nobody gets memory."""
    for _ in range(6):
        fail(x, "a", "k", MEMORY)
    for i in range(6):
        fail(x, "b", f"k{i}", MEMORY)
    assert x.health("a")[0] == x.health("b")[0] == "healthy"


def test_a_process_that_alone_gets_no_memory_is_to_be_replaced(x):
    """Five different tasks in a row, while others get theirs elsewhere; a success of its own ends that."""
    for i in range(5):
        fail(x, "a", f"k{i}", MEMORY)
        succeed(x, "b", f"other-{i}")
    assert x.health("a") == ("unhealthy", "attribution.memory")
    succeed(x, "a", "k9")
    assert x.health("a")[0] == "healthy"


def test_errors_of_communication_indict_nobody(x):
    """The other end may be at fault."""
    for i in range(5):
        fail(x, "a", f"k{i}", NCCL)
        succeed(x, "b", f"k{i}")
    assert x.health("a")[0] == "healthy"
    assert x.events[-1]["suspect"] == "unknown"


def test_successes_cost_nothing_while_nothing_has_failed(x):
    """The hot path of the scheduler asks for one attribute."""
    assert not x.blame.listening
    fail(x, "a", "k")
    assert x.blame.listening
    x.task("k", "b")
    x.blame.done("k")
    x.blame.forget("k")
    for i in range(20):
        succeed(x, "a", f"n{i}")
    assert not x.blame.listening


def test_messages_of_a_worker_that_left_change_nothing(x):
    """They may be on their way."""
    x.leave("a")
    fail(x, "a", "k")
    assert not x.blame.listening
