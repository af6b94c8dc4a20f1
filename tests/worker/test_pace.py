"""How long tasks take, as a worker tells it: the last few of each prefix, and only news."""

from __future__ import annotations

from types import SimpleNamespace

from dask_resilient.worker import pace
from dask_resilient.worker.pace import Pace


def did(x, key, seconds, start="executing", finish="memory"):
    task = SimpleNamespace(startstops=[{"action": "compute", "start": 1.0, "stop": 1.0 + seconds}])
    worker = SimpleNamespace(state=SimpleNamespace(tasks={key: task}))
    x.transition(worker, key, start, finish)


def test_only_news_is_reported():
    """By prefix, with all that is remembered of it."""
    x = Pace()
    assert x.report() is None
    did(x, "a-1", 0.5)
    did(x, ("b-1", 2), 1.0, start="long-running")
    assert x.report() == {"a": [0.5], "b": [1.0]}
    assert x.report() is None
    did(x, "a-2", 0.25)
    assert x.report() == {"a": [0.5, 0.25]}


def test_what_was_not_computed_here_does_not_count():
    """Copies of other workers, errors, releases."""
    x = Pace()
    did(x, "a-1", 1.0, start="fetch")
    did(x, "a-1", 1.0, finish="error")
    x.transition(SimpleNamespace(state=SimpleNamespace(tasks={})), "a-1", "executing", "memory")
    assert x.report() is None


def test_it_is_bounded():
    """In tasks of a prefix and in prefixes; those that were used last stay."""
    x = Pace()
    for i in range(3 * pace.LAST):
        did(x, f"a-{i}", float(i))
    assert x.report() == {"a": [float(i) for i in range(2 * pace.LAST, 3 * pace.LAST)]}
    for i in range(2 * pace.PREFIXES):
        did(x, ("p" * (i + 1), 0), 1.0)
    assert len(x.report()) == pace.PREFIXES
