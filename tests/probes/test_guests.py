"""Probes of third parties: in processes of their own, whatever they do."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from dask_resilient.probes.guest import MOST
from dask_resilient.probes.guests import Guest, load_entry_points, pack
from dask_resilient.probes.process import ProbeProcess
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


class Killed(Fans):
    name = "killed"

    def read(self, device):
        os.kill(os.getpid(), signal.SIGSEGV)


class Mute(Fans):
    name = "mute"

    def read(self, device):
        class Dumb(Exception):
            def __repr__(self):
                raise self

        raise Dumb


class Exits(Fans):
    name = "exits"

    def read(self, device):
        raise SystemExit(device)


class Loud(Fans):
    name = "loud"

    def read(self, device):
        print("not JSON")  # noqa: T201 - as users do
        os.write(1, b"not JSON either\n")
        subprocess.run(["echo", "nor", "this"], check=True)
        sys.stdin.read()
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
        options = {"silence": 1.0, "patience": 15.0, "first_delay": 0.05, "device": lambda: "GPU-0", **options}
        started.append(Guest(name, packed, listen=told.extend, **options))
        started[-1].start()
        return told

    run.started = started
    yield run
    for guest in started:
        guest.stop()
    wait_until(lambda: not [t for t in threading.enumerate() if t.name.startswith("dask-resilient-probe-")])
    wait_until(lambda: not {p.pid for p in psutil.Process().children()} - before)


def running(pid):
    """Say whether a process runs; one that nobody has waited for yet does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize("probe", [Fans, Fans()], ids=["a class", "an object"])
def test_what_it_reads_is_told(probe, run):
    """Under its own name and the probe's, which tells it from another probe's, about the worker's device."""
    told = run(probe)
    wait_until(lambda: len(told) >= 6)
    assert {(r.probe, r.device, r.name, r.value, r.text) for r in told} == {
        ("fans", "GPU-0", "probe.fans.fan.0", 1200, ""),
        ("fans", "GPU-0", "stated.fans", "drain", "fan 2 of GPU-0 stands still"),
        ("fans", "GPU-0", "probe.fans.fan.1", None, "no sensor"),
    }


BAD = {
    "raises": (Raises, "raised ZeroDivisionError('GPU-0')"),
    "raises what cannot be shown": (Mute, "raised Dumb"),
    "exits": (Exits, "raised SystemExit('GPU-0')"),
    "hangs": (Hangs, "has not answered for"),
    "ends": (Ends, "'ends' ended with exit status 3"),
    "is killed": (Killed, "'killed' ended by signal 11 (Segmentation fault)"),
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


class Starts(Fans):
    name = "starts"

    def read(self, device):
        started = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        return [("stated", "observe", str(started.pid))]


def test_what_it_starts_ends_with_it(run):
    """However it ends: it is told to, or killed."""
    told = run(Starts)
    (guest,) = run.started
    wait_until(lambda: len(told) >= 2)
    guest._process._process.kill()
    wait_until(lambda: len({r.text for r in told if r.value == "observe"}) >= 4)
    guest.stop()
    started = [int(r.text) for r in told if r.value == "observe"]
    wait_until(lambda: not any(running(pid) for pid in started))


HOLDS = """
import ctypes, sys, time
sys.path[:] = {path!r}
from dask_resilient.probes.guests import Guest, pack
class Holds:
    name = "holds"
    def read(self, device):
        open({flag!r}, "w").close()
        ctypes.PyDLL(None).sleep(600)
guest = Guest(*pack([Holds()])[0], lambda: "GPU-0", print)
guest.start()
while guest._process._process is None:
    time.sleep(0.01)
print(guest._process._process.pid, flush=True)
time.sleep(600)
"""


def test_one_that_holds_the_lock_ends_with_a_worker_that_is_killed(tmp_path):
    """It cannot see that the pipe is closed."""
    flag = tmp_path / "reading"
    code = HOLDS.format(path=sys.path, flag=str(flag))
    worker = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    pid = int(worker.stdout.readline())
    wait_until(flag.exists)
    worker.kill()
    worker.communicate()
    wait_until(lambda: not running(pid))


def test_what_it_prints_goes_nowhere(run):
    """The pipes to the worker are not its standard input and output, nor those of what it starts."""
    told = run(Loud)
    wait_until(lambda: len(told) >= 6)
    assert {r.name for r in told} == {"probe.loud.fan.0", "stated.loud", "probe.loud.fan.1"}


class Seldom(Fans):
    """Called more seldom than a probe may be silent."""

    name = "seldom"
    interval = 60

    def __init__(self):
        self.calls = 0

    def read(self, device):
        self.calls += 1
        return [("stated", "drain", f"call {self.calls}")]


def test_one_that_is_called_seldom_is_not_silent(run):
    """What it gave is told again until its next call, so that it does not get too old to count."""
    told = run(Seldom(), silence=0.3)
    wait_until(lambda: len(told) >= 10)
    assert {(r.name, r.value, r.text) for r in told} == {("stated.seldom", "drain", "call 1")}
    assert told[-1].time > told[0].time + 0.3


def test_a_device_that_becomes_known_later_is_told(run):
    """And read at once, however seldom the probe is called."""
    device = ["host:x/0"]
    told = run(Which(), silence=0.3, device=lambda: device[0])
    wait_until(lambda: told)
    device[0] = "GPU-1"
    wait_until(lambda: told[-1].text == "of GPU-1, call 2")
    assert {r.text for r in told} == {"of host:x/0, call 1", "of GPU-1, call 2"}


class Which(Seldom):
    name = "which"

    def read(self, device):
        self.calls += 1
        return [("stated", "observe", f"of {device}, call {self.calls}")]


class Recovers(Fans):
    """Fails until somebody makes a file."""

    name = "recovers"

    def __init__(self, file):
        self.file = file

    def read(self, device):
        Path(self.file).read_bytes()
        return [("fan.0", 1)]


def test_one_that_works_again_says_so(run, tmp_path, caplog):
    """What was unknown of it is known again; the next trouble gets a warning of its own."""
    file = tmp_path / "there"
    told = run(Recovers(str(file)))
    for n in (1, 2):
        wait_until(lambda: told and (told[-1].name, told[-1].value) == ("probe.recovers", None))
        file.touch()
        wait_until(lambda: ("probe.recovers", True) in {(r.name, r.value) for r in told})
        file.unlink()
        told.clear()
        wait_until(lambda: told and told[-1].value is None)
        assert sum("FileNotFoundError" in r.getMessage() for r in caplog.records) == n + 1


class Changes(Fans):
    """States, and does not know, what a file says."""

    name = "changes"

    def __init__(self, file):
        self.file = file

    def read(self, device):
        for line in Path(self.file).read_text().splitlines():
            one = json.loads(line)
            yield tuple(one) if isinstance(one, list) else one


@pytest.mark.parametrize("then", [[], None, [3], [["fan.0", 1200]]], ids=["nothing", "an error", "odd", "known again"])
def test_what_it_does_not_say_again_is_taken_back(then, run, tmp_path):
    """At once, with its next call, also where that fails: it counts as long as the probe goes on saying so."""
    file = tmp_path / "said"
    file.write_text('["stated.a", "drain", "why"]\n["stated.b", "kill", "why"]\n["fan.0", null, "no sensor"]')
    told = run(Changes(str(file)))
    wait_until(lambda: len(told) >= 3)
    rest = ["stated.b", "kill", "why"]
    if then is None:
        file.unlink()
    else:
        (tmp_path / "next").write_text("\n".join(json.dumps(one) for one in [rest, *then]))
        (tmp_path / "next").rename(file)
    names = {"stated.changes.a", "probe.changes.fan.0"} | ({"stated.changes.b"} if then is None else set())
    last = {}
    wait_until(
        lambda: last.update((r.name, r.value) for r in told) or names <= {n for n, v in last.items() if v in ("", 1200)}
    )
    assert last["stated.changes.b"] == ("" if then is None else "kill")
    taken_back, count = len([r for r in told if r.value == ""]), len(told)
    wait_until(lambda: len(told) > count + 2)
    assert len([r for r in told if r.value == ""]) == taken_back, "once"


class Unmade(Fans):
    """Cannot be made where it is to run."""

    name = "unmade"

    def __init__(self):
        raise OSError("no such driver")


def test_one_that_cannot_be_loaded_is_tried_ever_more_seldom(run, monkeypatch):
    """A process costs a second to start, and it would be one a second on every worker."""
    delays = []
    monkeypatch.setattr(ProbeProcess, "_wait", lambda self, seconds: delays.append(seconds))
    told = run(Unmade)
    wait_until(lambda: len(delays) >= 3)
    assert delays[:3] == [0.05, 0.1, 0.2]
    assert {r.text for r in told} == {"probe 'unmade' cannot be loaded: OSError('no such driver')"}


MODULE = """
class Fans:
    name = "fans"
    interval = 0.1

    def read(self, device):
        return [("fan.0", 7)]
"""


def test_it_finds_what_the_worker_finds(run, tmp_path, monkeypatch):
    """Such as a file that a client uploaded; not what happens to lie in the working directory."""
    (tmp_path / "uploaded_fans.py").write_text(MODULE)
    trap = tmp_path / "here"
    trap.mkdir()
    (trap / "base64.py").write_text("raise SystemExit('not the one')")
    monkeypatch.chdir(trap)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *(str(Path(p).resolve()) for p in sys.path if p)])
    import uploaded_fans

    told = run(uploaded_fans.Fans)
    wait_until(lambda: told)
    assert told[0].value == 7, told


class Endless(Fans):
    name = "endless"

    def read(self, device):
        while True:
            yield "n", 1


def test_a_probe_without_end_is_cut(run):
    """After as many as anybody could want, and that is said."""
    told = run(Endless)
    wait_until(lambda: sum(r.value == 1 for r in told) >= 2 * MOST)
    assert {r.text for r in told if r.value is None} == {
        f"probe 'endless' gave more than {MOST} readings in one call; the others are not taken"
    }


def test_entry_points_are_found_and_loaded(run, tmp_path, monkeypatch):
    """As an installed package brings them, with the checks of others."""
    more = "\nclass Nameless:\n    read = Fans.read\nclass Often(Fans):\n    interval = -1\n"
    (tmp_path / "fans_package.py").write_text(MODULE + more)
    info = tmp_path / "fans-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fans\nVersion: 1.0\n")
    lines = "fans = fans_package:Fans\nanon = fans_package:Nameless\noften = fans_package:Often\n"
    (info / "entry_points.txt").write_text(f"[dask_resilient.probes]\n{lines}nvml = fans_package:Fans\n")
    monkeypatch.syspath_prepend(tmp_path)
    good, ((bad, reason),) = load_entry_points()
    assert (good, bad) == (["anon", "fans", "often"], "nvml")
    assert "are built-in probes" in reason
    told, anon, often = (run((name, None)) for name in ("fans", "anon", "often"))
    wait_until(lambda: told and anon and often)
    assert (told[0].name, told[0].value) == ("probe.fans.fan.0", 7)
    assert "it needs a name (text)" in anon[0].text
    assert "the interval of 'fans' is -1; it must be a positive number of seconds" in often[0].text
