"""The book of incidents: counts without a cluster."""

from __future__ import annotations

import pytest

from dask_resilient.core.incidents import KEPT, KEYS_SHOWN, Book, cause


def _loss(book: Book, *keys: str, now: float = 0.0, interrupted: tuple[str, ...] = ()) -> None:
    book.lost(now, "tcp://w", "host:h/0", "killed", dict.fromkeys(keys, 8), interrupted)


def test_a_lost_key_that_is_loaded_counts_as_reloaded_and_closes_the_incident() -> None:
    """The seconds run from the loss to the last key."""
    book = Book()
    _loss(book, "a", "b", now=100)
    book.wanted("a", [])
    book.wanted("b", [])
    assert book.settle(100) == []
    assert book.back("a", True, 101) == []
    (closed,) = book.back("b", False, 103.5)
    assert (closed.lost, closed.reloaded, closed.recomputed, closed.seconds) == (2, 1, 1, 3.5)
    assert not book.counting


def test_released_ancestors_that_run_again_count_as_recomputed() -> None:
    """Only those that a lost key needs: a new task beside them does not."""
    book = Book()
    _loss(book, "c")
    book.wanted("c", [])
    book.wanted("b", ["c"])
    book.wanted("a", ["b"])
    book.wanted("new", ["other"])
    book.settle(0)
    for key in ("a", "new", "b"):
        assert book.back(key, False, 1) == []
    (closed,) = book.back("c", False, 2)
    assert closed.recomputed == 3


def test_tasks_that_were_running_on_the_worker_are_not_recomputed() -> None:
    """They had no result yet."""
    book = Book()
    _loss(book, "dep", interrupted=("running",))
    book.wanted("dep", ["running"])
    book.wanted("running", ["dep"])
    book.settle(0)
    (closed,) = book.back("dep", True, 1)
    assert (closed.reloaded, closed.recomputed) == (1, 0)


def test_a_loss_that_nobody_asks_for_closes_when_it_is_worked_off() -> None:
    """Not before: the cascade asks for the keys one by one."""
    book = Book()
    _loss(book, "a")
    assert book.dropped("x", 0) == []
    (closed,) = book.settle(2)
    assert closed.seconds == 2


def test_a_key_that_errs_or_is_forgotten_is_not_waited_for() -> None:
    """The incident closes without it."""
    book = Book()
    _loss(book, "a", "b")
    book.wanted("a", [])
    book.wanted("b", [])
    book.settle(0)
    book.back("a", True, 1)
    (closed,) = book.dropped("b", 4)
    assert (closed.reloaded, closed.recomputed, closed.seconds) == (1, 0, 4)


def test_a_restart_closes_everything() -> None:
    """The tasks are gone, so nothing comes back."""
    book = Book()
    _loss(book, "a")
    book.wanted("a", [])
    (closed,) = book.forget(3)
    assert closed.seconds == 3


def test_the_book_is_bounded() -> None:
    """A row names the first thousand keys, the book keeps the newest thousand rows."""
    book = Book()
    _loss(book, *map(str, range(KEYS_SHOWN + 50)))
    assert len(book.incidents[0].to_dict()["keys"]) == KEYS_SHOWN
    assert book.incidents[0].lost == KEYS_SHOWN + 50
    for _ in range(KEPT + 5):
        _loss(book, "a")
        book.settle(0)
    assert len(book.incidents) == KEPT
    assert [i.id for i in book.incidents] == list(range(7, KEPT + 7))


@pytest.mark.parametrize(
    ("stimulus_id", "expected", "words"),
    [
        ("handle-worker-cleanup-123", False, "connection lost"),
        ("retire-workers-1", True, "retired"),
        ("x", True, "removed on request"),
        ("x-1", False, "x-1"),
    ],
)
def test_the_cause_is_in_words(stimulus_id: str, expected: bool, words: str) -> None:
    """What is not known is shown as it is."""
    assert words in cause(stimulus_id, expected)
