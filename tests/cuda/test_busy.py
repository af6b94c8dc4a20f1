"""A cluster that is busy and healthy: whatever it does, nobody is called sick."""

from __future__ import annotations

import ctypes
import time

import numpy as np
import pytest

SECONDS = 60
"""With readings ten times as often as by default, as many as in ten minutes."""


def hold(seconds):
    """Hold Python's lock."""
    ctypes.PyDLL(None).sleep(seconds)


def fill(megabytes):
    """Fill the worker's memory, so that it spills and pauses."""
    return np.ones(megabytes << 17)


def tiny(i):
    return i


def fail(i):
    raise ValueError(f"no such column {i}")


@pytest.mark.slow
def test_nobody_is_called_sick(x):
    """Tasks that hold the lock for seconds, tiny ones by the thousand, errors of users, memory that spills."""
    x.install(probe__interval=0.5, probe__canary=1)
    x.known()
    deadline = time.monotonic() + SECONDS
    rounds = 0
    while time.monotonic() < deadline:
        rounds += 1
        kept = x.client.map(fill, [300] * 8, pure=False)
        futures = [
            *x.client.map(hold, [4, 6], pure=False),
            *x.client.map(tiny, range(2000), pure=False),
            *x.client.map(fail, range(4), pure=False),
        ]
        x.until(lambda futures=futures: all(future.done() for future in futures), 60)
        del kept, futures
    events = [event for _, event in x.client.get_events("resilience") if event["action"] == "health"]
    assert rounds >= 2
    assert not [event for event in events if event["health"] == "unhealthy"], events
    assert not [row for row in x.handle.incidents() if row["kind"] != "loss"]
    x.until(lambda: {row["health"] for row in x.watch.members.rows()} == {"healthy"})
    tried = {r.name for record in x.watch.care.verdicts.records.values() for r in record.told}
    assert "canary" in tried
