"""A program for the tests: writers that are killed at each system call in turn, or that race for one place.

It has one thread, so that it may fork; each verdict is a line of JSON on standard output.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from functools import reduce

import crc32c

from dask_resilient.core.manifest import Place
from dask_resilient.protocols import Staged
from dask_resilient.store import open_store
from dask_resilient.testing.faults import FaultyCalls, kill

FACTS = {"key": "k", "run": "r"}


def staged(fill: int) -> Staged:
    """Stage 1000 equal bytes in two chunks."""
    chunk = (memoryview(bytes([fill]) * 500),)
    digest = reduce(lambda crc, buffer: crc32c.crc32c(buffer, crc), chunk, 0)
    return Staged("test", {}, "uint8", (1000,), (500,), (chunk, chunk), (digest, digest), 1000)


def fork(work) -> int:
    """Run `work` in a child and give its process id."""
    pid = os.fork()
    if pid:
        return pid
    try:
        work()
    except FileExistsError:
        os._exit(17)
    os._exit(0)


def ended(pid: int) -> int:
    """Wait for a child, and give its exit code, negative for a signal."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def killed(root: str) -> None:
    """Kill a writer at its first, second, ... system call until one gets through."""
    code, n = -signal.SIGKILL, 0
    while code == -signal.SIGKILL:
        place = Place("m", f"{n}", 0, "a")
        code = ended(fork(lambda place=place, n=n: write(root, place, n)))
        sys.stdout.write(json.dumps({"n": n, "code": code, "place": place.to_dict()}) + "\n")
        sys.stdout.flush()  # or each child would write it again
        n += 1


def write(root: str, place: Place, at: int) -> None:
    """Write one partition, and die at one of the write's system calls."""
    calls = FaultyCalls()
    store = open_store(root, create=False, calls=calls.as_calls())
    calls.arm(at, kill)
    store.write(place, staged(7), FACTS)


def race(root: str, writers: int, rounds: int) -> None:
    """Let some writers start on one place at the same moment."""
    store = open_store(root, create=False)
    for n in range(rounds):
        ready, go = os.pipe()

        def work(who: int, n: int = n, ready: int = ready) -> None:
            os.read(ready, 1)
            store.write(Place("race", f"{n}", 0, f"w{who}"), staged(who), FACTS)

        children = [fork(lambda who=who, work=work: work(who)) for who in range(writers)]
        os.write(go, bytes(writers))
        sys.stdout.write(json.dumps({"n": n, "codes": [ended(pid) for pid in children]}) + "\n")
        sys.stdout.flush()
        os.close(ready)
        os.close(go)


if __name__ == "__main__":
    {"killed": killed, "race": lambda root: race(root, 4, 10)}[sys.argv[1]](sys.argv[2])
