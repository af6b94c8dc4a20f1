"""The contract of probes, on one that keeps to it and on ones that do not."""

from __future__ import annotations

import pytest

from dask_resilient.testing.probes import ProbeContract


class Fans:
    name = "fans"

    def read(self, device):
        yield "fan.0", 1200
        yield "fan.1", None, f"no sensor of {device}"
        yield "stated.fan", "degrade", "fan 2 stands still"


class TestFans(ProbeContract):
    """One that keeps to it."""

    @pytest.fixture
    def probe(self):
        return Fans()


def bad(*readings):
    return type("Bad", (), {"name": "bad", "read": lambda self, device: iter(readings)})()


BROKEN = {
    "no tuple": (bad("x"), "test_gives_what_can_be_taken"),
    "no plain value": (bad(("a", [1])), "test_gives_what_can_be_taken"),
    "too large": (bad(("a", 2**70)), "test_gives_what_can_be_taken"),
    "a built-in name": (bad(("xid", 79)), "test_gives_what_can_be_taken"),
    "no reason": (bad(("a", None)), "test_says_why_something_is_unknown"),
    "no such class": (bad(("stated", "bad", "why")), "test_states_classes_that_exist"),
    "no words": (bad(("stated", "drain")), "test_states_classes_that_exist"),
    "no end": (bad(*[("a", 1)] * 2000), "test_ends"),
    "no name": (object(), "test_can_be_sent_to_workers"),
}


@pytest.mark.parametrize(("probe", "test"), BROKEN.values(), ids=BROKEN)
def test_one_that_does_not_keep_to_it_fails(probe, test):
    """In the test that says what it broke."""
    with pytest.raises((AssertionError, ValueError)):
        getattr(ProbeContract(), test)(probe)
