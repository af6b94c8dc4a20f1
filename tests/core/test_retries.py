"""Free retries: a fault of a device costs a task none of its own, within bounds."""

from __future__ import annotations

from dask_resilient.core.retries import OF_LABEL, OF_TASK, FreeRetries


def test_a_task_is_retried_for_the_faults_of_two_devices():
    """A third one fails it for good; on one and the same it may fail again."""
    retries = FreeRetries()
    for device in ("A", "A", "B", "B"):
        assert retries.give("k", device, "f: 700")
    assert not retries.give("k", "C", "f: 700")
    assert OF_TASK == 2


def test_all_tasks_of_a_kind_share_a_bound():
    """It is given anew once a device is out of service for it."""
    retries = FreeRetries()
    assert [retries.give(i, "A", "f: 700") for i in range(OF_LABEL + 1)] == [True] * OF_LABEL + [False]
    assert retries.give("other", "A", "g: 700")
    retries.cleared("f: 700")
    assert retries.give("again", "A", "f: 700")


def test_a_task_that_is_gone_is_forgotten():
    """The same key may come again."""
    retries = FreeRetries()
    assert retries.give("k", "A", "f: 700")
    assert retries.give("k", "B", "f: 700")
    retries.forget("k")
    assert retries.give("k", "C", "f: 700")
