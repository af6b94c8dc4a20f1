"""Errors whose text alone speaks against a process."""

from dask_resilient.core.passing import Passing


def test_a_first_error_may_tell_something():
    """So does a second one of another task."""
    passing = Passing()
    assert not passing.listening
    assert passing.failed("w", "f-1", "f", False) == ""
    assert passing.failed("w", "f-2", "f", False) == ""
    assert passing.listening


def test_one_that_follows_a_success_of_its_kind_tells_nothing():
    """The next one, without a success between them, does."""
    passing = Passing()
    passing.failed("w", "f-1", "f", False)
    passing.succeeded("w", "f")
    assert passing.failed("w", "f-2", "f", False) == "tasks 'f' have succeeded there since one failed"
    assert passing.failed("w", "f-3", "f", False) == ""


def test_what_else_works_there_and_what_works_elsewhere_say_nothing():
    passing = Passing()
    passing.failed("w", "f-1", "f", False)
    passing.succeeded("w", "g")
    passing.succeeded("v", "f")
    assert passing.failed("w", "f-2", "f", False) == ""
    assert passing.failed("w", "g-1", "g", False) == ""


def test_a_task_that_fails_there_again_tells_nothing_until_it_is_forgotten():
    """Where it may run nowhere else; else it may have come back there by chance."""
    passing = Passing()
    passing.failed("w", "f-1", "f", True)
    assert passing.failed("v", "f-1", "f", True) == ""
    assert passing.failed("w", "f-1", "f", False) == ""
    assert passing.failed("w", "f-1", "f", True) == "task 'f-1' failed there before"
    passing.forget("f-1")
    assert passing.failed("w", "f-1", "f", True) == ""


def test_a_new_process_begins_anew():
    passing = Passing()
    passing.failed("w", "f-1", "f", False)
    passing.succeeded("w", "f")
    passing.gone("w")
    passing.gone("w")
    assert not passing.listening
    assert passing.failed("w", "f-1", "f", False) == ""
