"""Entries about devices under fire: calls that fail, power cuts, writers that are killed, writers that race."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys

import pytest

from dask_resilient.core.remembered import TRIED
from dask_resilient.store.devices import append, read_all
from dask_resilient.testing.crashes import crashes
from dask_resilient.testing.faults import FaultyCalls, fail, kill
from dask_resilient.testing.recording import Recorder
from tests.store import stopped
from tests.support.remembered import CALLS, GPU, MIG, entry, numbers, put
from tests.support.store_life import Dying, Impatient, Stopped


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EROFS])
@pytest.mark.parametrize("lasting", [True, False])
def test_whichever_call_fails(room, code, lasting):
    """The entry is there, or there is an error and nothing of it; the next one can be appended either way."""
    calls = FaultyCalls(Impatient())
    at = 0
    while True:
        root = room / f"{at}"
        put(root, TRIED)
        calls.hit = None
        calls.arm(at, fail(code), lasting=lasting)
        try:
            done = put(root, TRIED, calls=calls.as_calls())
        except OSError as e:
            done, found = [], e.errno
            assert found == code
        # Where a disk is gone for good behind the link, nothing can be taken back either: then the whole entry stays.
        assert numbers(root) in ([0, *done], [0, 1])
        assert put(root, TRIED)[0] in (1, 2)
        if calls.hit is None:
            break
        at += 1
    assert at > 10


def test_whichever_call_fails_while_reading(room):
    """A disk that answers with errors hides some entries, each with a reason, or is an error as a whole."""
    put(room, TRIED, TRIED)
    put(room, TRIED, device=MIG)
    calls = FaultyCalls(Impatient())
    whole, at = 0, 0
    while True:
        calls.hit = None
        calls.arm(at, fail(errno.EIO))
        try:
            found, reasons = read_all(calls.as_calls(), str(room))
        except OSError:
            whole += 1
        else:
            lost = 3 - sum(map(len, found.values()))
            assert bool(lost) == bool(reasons) or calls.hit == "close"
        if calls.hit is None:
            break
        at += 1
    assert whole == 2
    assert at > 15


def judge(crash, room):
    """Say that what a power cut left holds everything that was promised, nothing torn, and can be appended to."""
    after = room / "after"
    shutil.rmtree(after, ignore_errors=True)
    after.mkdir()
    crash.materialise(after)
    found = numbers(after / "disk")
    context = (crash.steps, crash.kind, found, crash.acknowledged)
    assert crash.acknowledged <= set(found), context
    assert put(after / "disk", TRIED)[0] not in found, context
    assert len(numbers(after / "disk")) == len(found) + 1, context


def test_power_cut_at_any_step(room):
    """Of three entries those that were promised are there, and none is torn, whatever a power cut leaves."""
    (room / "life").mkdir()
    recorder = Recorder(room / "life")
    for _ in range(3):
        recorder.acknowledge(*put(room / "life" / "disk", TRIED, calls=recorder))
    count = 0
    for count, crash in enumerate(crashes(recorder.log, subsets=5), 1):  # noqa: B007 - counts them
        judge(crash, room)
    assert count > 20


def test_power_cut_after_a_dead_writer(room):
    """What a writer left that was killed anywhere is never built upon: the next one waits for the disk."""
    for at in range(100):
        life = room / f"{at}"
        life.mkdir()
        recorder = Recorder(life)
        try:
            put(life / "disk", TRIED, calls=Dying(recorder, at))
        except Stopped:
            pass
        else:
            break
        recorder.acknowledge(*put(life / "disk", TRIED, calls=recorder))
        for crash in crashes(recorder.log, subsets=1, start=at):
            judge(crash, room)
        shutil.rmtree(life)
    assert 10 < at < 99


def killed(root):
    """Kill a process at its first, second, ... system call of an append until one gets through."""
    code, n = -signal.SIGKILL, 0
    while code == -signal.SIGKILL:
        calls = FaultyCalls()
        calls.arm(n, kill)
        code = stopped.ended(stopped.fork(lambda c=calls, n=n: put(f"{root}/{n}", TRIED, calls=c.as_calls())))
        stopped.say(n=n, code=code)
        n += 1


def race(root, writers, count):
    """Let processes append to the same device at once."""
    ready, go = os.pipe()

    def work(who):
        os.read(ready, 1)
        for n in range(int(count)):
            append(CALLS, root, GPU, entry(TRIED, evidence=[f"{who} {n}"]), make=True)

    children = [stopped.fork(lambda who=who: work(who)) for who in range(int(writers))]
    os.write(go, bytes(int(writers)))
    stopped.say(codes=[stopped.ended(pid) for pid in children])


def run(command, *words):
    """Run one of the two above in a process with one thread, which may fork, and give its lines."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    code = f"import sys; from tests.store import test_devices_stopped as program; program.{command}(*sys.argv[1:])"
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, words)], env=environment, capture_output=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_process_is_killed_at_any_call(room):
    """Killed at any system call: the entry is whole or not there, and the next process appends."""
    lines = run("killed", room)
    assert [line["code"] for line in lines] == [-signal.SIGKILL] * (len(lines) - 1) + [0]
    found = [numbers(room / f"{line['n']}") for line in lines]
    assert (found[0], found[-1]) == ([], [0])
    assert len([n for n in range(1, len(found)) if found[n] != found[n - 1]]) == 1
    for line, before in zip(lines, found, strict=True):
        assert put(room / f"{line['n']}", TRIED) == [len(before)]


def test_schedulers_append_at_once(room):
    """Of entries that are created at the same moment each gets a number of its own, and none is lost."""
    assert run("race", room / "root", 4, 25) == [{"codes": [0] * 4}]
    found, reasons = read_all(CALLS, str(room / "root"))
    assert reasons == []
    assert [each["n"] for each in found[GPU]] == list(range(100))
    assert {each["evidence"][0] for each in found[GPU]} == {f"{who} {n}" for who in range(4) for n in range(25)}


def test_a_listing_that_lags_behind(tmp_path):
    """A number that another host has taken meanwhile is passed over."""

    class Lagging(Impatient):
        def names(self, path):
            return []

    put(tmp_path, TRIED, TRIED, TRIED)
    assert put(tmp_path, TRIED, calls=Lagging()) == [3]
