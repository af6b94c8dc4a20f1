"""Fixtures of tests of probes."""

from __future__ import annotations

import threading

import pytest

from tests.support.listening import Listening
from tests.support.waiting import wait_until


@pytest.fixture
def nvml(gpus):
    """Give a gauge on GPU 0, listened to."""
    made = []

    def make(**options):
        made.append(Listening(**options))
        return made[-1]

    yield make
    for each in made:
        each.gauge.stop()
    wait_until(lambda: not [t for t in threading.enumerate() if t.name == "dask-resilient-gauge"])
