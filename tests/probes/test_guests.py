"""Probes of third parties: in processes of their own, whatever they do."""

from __future__ import annotations

import os
import sys
import threading
import time

import psutil
import pytest

from dask_resilient.errors import SettingError
from dask_resilient.probes.guest import MOST, rows
from dask_resilient.probes.guests import Guest, load_entry_points, pack
from tests.support.waiting import wait_until


class Fans:
    """Runs in another process; pickled by name from a test module, by value from ``__main__``."""

    name = "fans"
    interval = 0.1

    def read(self, device):
        return [("fan.0", 1200), ("stated", "drain", f"fan 2 of {device} stands still"), ("fan.1", None, "no sensor")]


class Raises(Fans):
    name = "raises"

    def read(self, device):
        raise ZeroDivisionError(device)


class Hangs(Fans):
    name = "hangs"

    def read(self, device):
        time.sleep(60)


class Ends(Fans):
    name = "ends"

    def read(self, device):
        os._exit(3)


class Loud(Fans):
    name = "loud"

    def read(self, device):
        print("not JSON")  # noqa: T201 - as users do
        os.write(1, b"not JSON either\n")
        return super().read(device)


class Wrong(Fans):
    name = "wrong"

    def read(self, device):
        yield "recovery-action", 0


@pytest.fixture
def run():
    """Start probes; nothing is left of them at the end."""
    started = []
    before = {p.pid for p in psutil.Process().children()}

    def run(probe, **options):
        ((name, packed),) = pack([probe]) if not isinstance(probe, tuple) else (probe,)
        told = []
        options = {"silence": 1.0, "patience": 15.0, "first_delay": 0.05, **options}
        started.append(Guest(name, packed, lambda: "GPU-0", told.extend, **options))
        started[-1].start()
        return told

    yield run
    for guest in started:
        guest.stop()
    wait_until(lambda: not [t for t in threading.enumerate() if t.name.startswith("dask-resilient-probe-")])
    wait_until(lambda: not {p.pid for p in psutil.Process().children()} - before)


@pytest.mark.parametrize("probe", [Fans, Fans()], ids=["a class", "an object"])
def test_what_it_reads_is_told(probe, run):
    """Under its own name, about the worker's device."""
    told = run(probe)
    wait_until(lambda: len(told) >= 6)
    assert {(r.probe, r.device, r.name, r.value, r.text) for r in told} == {
        ("fans", "GPU-0", "fan.0", 1200, ""),
        ("fans", "GPU-0", "stated", "drain", "fan 2 of GPU-0 stands still"),
        ("fans", "GPU-0", "fan.1", None, "no sensor"),
    }


BAD = {
    "raises": (Raises, "raised ZeroDivisionError('GPU-0')"),
    "hangs": (Hangs, "has not answered for"),
    "ends": (Ends, "its probe process ended"),
    "cannot be unpickled": (("fans", b"no pickle"), "cannot be loaded"),
    "no entry point": (("nobody", None), "cannot be loaded"),
    "fakes a built-in reading": (Wrong, "'recovery-action', which is a reading of the built-in probes"),
}


@pytest.mark.parametrize(("probe", "words"), BAD.values(), ids=BAD)
def test_whatever_it_does_is_unknown_with_the_reason(probe, words, run, caplog):
    """About the probe, not about the device; with one warning."""
    told = run(probe, patience=1.0 if probe is Hangs else 15.0)
    wait_until(lambda: any(words in r.text for r in told))
    reading = next(r for r in told if words in r.text)
    assert (reading.name, reading.value) == (f"probe.{reading.probe}", None)
    assert {r.value for r in told} == {None}
    wait_until(lambda: len(told) > 1)
    warnings = [r for r in caplog.records if r.levelname == "WARNING" and f"probe {reading.probe!r}" in r.getMessage()]
    assert len(warnings) == 1


def test_what_it_prints_goes_nowhere(run):
    """The pipe to the worker is not its standard output."""
    told = run(Loud)
    wait_until(lambda: len(told) >= 6)
    assert {r.name for r in told} == {"fan.0", "stated", "fan.1"}


def test_odd_readings_are_unknown_with_the_reason():
    """The others of the same call are taken."""
    found = list(rows(iter(["no tuple", ("a",), (1, 2), ("a", [1]), ("b", True), ("c", 1.5, "text")])))
    assert [row[0] for row in found] == ["probe", "probe", "probe", "a", "b", "c"]
    assert found[3] == ("a", None, "its value is of type list, not a number, a text or None")
    assert found[4:] == [("b", True, ""), ("c", 1.5, "text")]


class Endless(Fans):
    name = "endless"

    def read(self, device):
        while True:
            yield "n", 1


def test_a_probe_without_end_is_cut(run):
    """After as many as anybody could want."""
    told = run(Endless)
    wait_until(lambda: len(told) >= 2 * MOST)


@pytest.mark.parametrize(
    ("probes", "words"),
    [
        ([3], "3 is no probe: it needs a name"),
        ([type("P", (), {"name": "p"})], "no probe"),
        ([type("P", (), {"name": 3, "read": print})], "no probe"),
        ([Fans, Fans], "two are named 'fans'"),
        ([type("P", (Fans,), {"interval": "1s"})], "the interval of 'fans' is '1s'"),
        ([type("P", (Fans,), {"interval": 0})], "the interval of 'fans' is 0"),
    ],
)
def test_what_is_no_probe_is_refused_on_the_client(probes, words):
    """In one sentence with the value."""
    with pytest.raises(SettingError, match=words.replace("(", r"\(")):
        pack(probes)


def test_what_cannot_be_sent_is_refused_on_the_client():
    """With its name."""
    probe = Fans()
    probe.lock = threading.Lock()
    with pytest.raises(SettingError, match="'fans' cannot be sent to workers"):
        pack([probe])


def test_entry_points_are_found_and_loaded(run, tmp_path, monkeypatch):
    """As an installed package brings them."""
    (tmp_path / "fans_package.py").write_text(
        "class Fans:\n    name, interval = 'fans', 0.1\n    def read(self, device):\n        return [('fan.0', 7)]\n"
    )
    info = tmp_path / "fans-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fans\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[dask_resilient.probes]\nfans = fans_package:Fans\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    assert load_entry_points() == ["fans"]
    told = run(("fans", None))
    wait_until(lambda: told)
    assert (told[0].name, told[0].value) == ("fan.0", 7)
