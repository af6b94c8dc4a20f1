"""The contract of probes, on one that keeps to it and on ones that do not."""

from __future__ import annotations

import threading

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


class TestClass(ProbeContract):
    """The class itself, as `install` takes it."""

    @pytest.fixture
    def probe(self):
        return Fans


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
    "nothing": (type("Bad", (), {"name": "bad", "read": lambda self, device: None})(), "test_ends"),
    "no name": (object(), "test_can_be_sent_to_workers"),
}


TESTS = sorted(name for name in vars(ProbeContract) if name.startswith("test_"))


@pytest.mark.parametrize("test", TESTS)
def test_a_fixture_that_gives_no_probe_is_told(test):
    """By each test in the same words."""
    with pytest.raises(AssertionError, match="the fixture `probe`: 3 is no probe: it needs a name"):
        getattr(ProbeContract(), test)(3)


class Stuck(Fans):
    """Waits in its call, until the test is over."""

    over = threading.Event()

    def read(self, device):
        self.over.wait()
        yield "fan.0", 1


@pytest.mark.parametrize("test", [test for test in TESTS if test != "test_can_be_sent_to_workers"])
def test_a_call_without_end_is_told(test, monkeypatch):
    """And does not hang the tests of the package that brings it."""
    monkeypatch.setattr(ProbeContract, "seconds", 0.05)
    monkeypatch.setattr(Stuck, "over", threading.Event())
    try:
        with pytest.raises(AssertionError, match=r"read\('GPU-0.*'\) has not ended within 0.05 s"):
            getattr(ProbeContract(), test)(Stuck)
    finally:
        Stuck.over.set()


def test_too_many_readings_are_told_in_one_line():
    """Not by a list of all of them."""
    with pytest.raises(AssertionError) as error:
        ProbeContract().test_ends(bad(*[("a", 1)] * 2000))
    assert "gave more than 100 readings" in str(error.value)
    assert len(str(error.value)) < 200


@pytest.mark.parametrize(("probe", "test"), BROKEN.values(), ids=BROKEN)
def test_one_that_does_not_keep_to_it_fails(probe, test):
    """In the test that says what it broke."""
    with pytest.raises((AssertionError, ValueError)):
        getattr(ProbeContract(), test)(probe)
