"""A program for the tests: collectors of garbage that are killed at any time, or work beside others and beside writers.

It has one thread, so that it may fork; each verdict is a line of JSON on standard output.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from random import Random

from dask_resilient.core.garbage import EXPIRY, GRACE
from dask_resilient.core.manifest import Place
from dask_resilient.core.milestones import Description, Milestone
from dask_resilient.store import open_archive, open_store
from dask_resilient.store.garbage import Collector
from tests.store.stopped import ended, fork, say, staged
from tests.support.store_life import Impatient


def collect(root: str, grace: float = GRACE) -> list[str]:
    """Collect all garbage of a store once, as fast as can be, and give the paths."""
    collector = Collector(open_archive(root, Impatient()), delete=True, idle=0.0)
    gone = [each.path for m in collector.milestones() for each in collector.collect(m, grace)]
    return gone + [each.path for each in collector.sweep_root(grace)]


def make(root: str, m: str, run: str, partitions: int = 20, *, temporary: bool = False) -> None:
    """Save a milestone with one revoked copy, one abandoned attempt and one draft."""
    store = open_store(root, create=False, calls=Impatient())
    if not temporary:
        store.declare(Milestone(m, run, 1.0, Description("clean", "frame", partitions)))
    facts = {"key": "k", "run": run, "temporary": temporary}
    for index in range(partitions):
        store.write(Place(m, f"{index}", 0, "a"), staged(index % 251), facts)
    store.revoke(Place(m, "0", 0, "a"), "differs")
    store.write(Place(m, "0", 1, "b"), staged(0), facts)
    (Path(root) / f"data/{m}/1-lost").mkdir()
    (Path(root) / f"data/{m}/1-lost/zarr.json").touch()
    (Path(root) / f"commit/{m}/.1.0.json.{'0' * 32}").touch()


def age(root: str, seconds: float = GRACE + 100) -> None:
    """Let everything in a store look older."""
    for path in sorted(Path(root).rglob("*")):
        found = path.lstat()
        os.utime(path, (found.st_mtime - seconds, found.st_mtime - seconds), follow_symlinks=False)


def finish(root: str, run: str, *, complete: bool = True) -> None:
    """End a run, with or without the mark that it is complete."""
    store = open_store(root, create=False, calls=Impatient())
    store.journal(run, "run", {})
    if complete:
        store.journal(run, "complete", {})
    store.renew(run, [], ended=True)


def killed(root: str, rounds: str, seed: str) -> None:
    """Kill a collector at a random time, again and again, and each time let garbage grow anew."""
    random = Random(int(seed))
    for n in range(int(rounds)):
        finish(root, f"run{n}")
        make(root, f"m{n}", f"run{n}")
        age(root)
        told, tell = os.pipe()

        def work(tell: int = tell) -> None:
            os.write(tell, b"x")
            collect(root)

        pid = fork(work)
        os.read(told, 1)
        time.sleep(random.random() * 0.03)
        os.kill(pid, signal.SIGKILL)
        say(n=n, code=ended(pid))
        os.close(told)
        os.close(tell)


def together(root: str, collectors: str) -> None:
    """Let some collectors begin at the same moment on the same garbage."""
    ready, go = os.pipe()

    def work() -> None:
        os.read(ready, 1)
        collect(root)

    children = [fork(work) for _ in range(int(collectors))]
    os.write(go, bytes(len(children)))
    say(codes=[ended(pid) for pid in children])


def beside(root: str, collectors: str, writers: str, partitions: str) -> None:
    """Let collectors without any grace go round beside writers of a run that lives, and of one for itself only."""
    store = open_store(root, create=False, calls=Impatient())
    store.journal("live", "run", {})
    store.renew("live", [], ended=False)  # it has not named what it is going to use

    def write(who: int) -> None:
        mine = open_store(root, create=False, calls=Impatient())
        for index in range(int(partitions)):
            m = f"w{who}-{index % 5}"
            temporary = bool(index % 2)
            mine.write(
                Place(m, f"{index}", 0, "a"), staged(index % 251), {"key": "k", "run": "live", "temporary": temporary}
            )
            say(saved=[m, f"{index}"])

    def go_round() -> None:
        while not Path(root, "runs/live/complete.json").exists():
            collect(root, 0.0)

    rounds = [fork(go_round) for _ in range(int(collectors))]
    wrote = [ended(pid) for pid in [fork(lambda who=who: write(who)) for who in range(int(writers))]]
    store.journal("live", "complete", {})
    say(wrote=wrote, collected=[ended(pid) for pid in rounds])


if __name__ == "__main__":
    assert EXPIRY < GRACE
    {"killed": killed, "together": together, "beside": beside}[sys.argv[1]](*sys.argv[2:])
