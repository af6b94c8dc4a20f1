"""A program for the tests: processes that are killed at each system call in turn or at any time, or race for one place.

It has one thread, so that it may fork; each verdict is a line of JSON on standard output.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
import time
from dataclasses import replace
from random import Random

import crc32c

from dask_resilient.core.manifest import Place
from dask_resilient.core.milestones import Description, Milestone
from dask_resilient.protocols import Staged
from dask_resilient.store import open_store
from dask_resilient.testing.faults import FaultyCalls, kill

FACTS = {"key": "k", "run": "r"}


def staged(fill: int, size: int = 500) -> Staged:
    """Stage equal bytes in two chunks."""
    chunk = (memoryview(bytes([fill]) * size),)
    digest = crc32c.crc32c(chunk[0])
    return Staged("test", {}, "uint8", (2 * size,), (size,), (chunk, chunk), (digest, digest), 2 * size)


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


def killed(root: str, operation: str) -> None:
    """Kill a process at its first, second, ... system call of an operation until one gets through."""
    code, n = -signal.SIGKILL, 0
    while code == -signal.SIGKILL:
        place = Place(f"m{n}", "0", 0, "a")
        code = ended(fork(lambda place=place, n=n: OPERATIONS[operation](root, place, n)))
        say(n=n, code=code, place=place.to_dict())
        n += 1


def say(**verdict: object) -> None:
    """Give one line, at once, or each child would write it again."""
    sys.stdout.write(json.dumps(verdict) + "\n")
    sys.stdout.flush()


def dying(root: str, at: int):
    """Open a store whose process dies at one of the system calls from here on."""
    calls = FaultyCalls()
    store = open_store(root, create=False, calls=calls.as_calls())
    calls.arm(at, kill)
    return store


def write(root: str, place: Place, at: int) -> None:
    """Write one partition, and die at one of the write's system calls."""
    dying(root, at).write(place, staged(7), FACTS)


def revoke(root: str, place: Place, at: int) -> None:
    """Revoke what was written, and die under way."""
    open_store(root, create=False).write(place, staged(7), FACTS)
    dying(root, at).revoke(place, "differs")


def write_after(root: str, place: Place, at: int) -> None:
    """Write the generation after a revoked one, and die under way."""
    store = open_store(root, create=False)
    store.write(place, staged(7), FACTS)
    store.revoke(place, "differs")
    dying(root, at).write(replace(place, generation=1, attempt="b"), staged(8), FACTS)


def declare(root: str, place: Place, at: int) -> None:
    """Describe a milestone, and die under way."""
    dying(root, at).declare(Milestone(place.milestone, "r", 1.0, Description("clean", "frame", 2)))


OPERATIONS = {"write": write, "revoke": revoke, "write_after": write_after, "declare": declare}


def loop(root: str, rounds: str, seed: str) -> None:
    """Kill a writer that saves one partition after the other, at a random time, again and again."""
    random = Random(int(seed))
    for n in range(int(rounds)):
        told, tell = os.pipe()
        pid = fork(lambda n=n, tell=tell: save_for_ever(root, n, tell))
        os.close(tell)
        first = os.read(told, 4)  # it is saving now
        time.sleep(random.random() * 0.02)
        os.kill(pid, signal.SIGKILL)
        code = ended(pid)
        saved = [first]
        while each := os.read(told, 4):
            saved.append(each)
        os.close(told)
        say(n=n, code=code, saved=[int.from_bytes(each, "little") for each in saved])


def save_for_ever(root: str, n: int, tell: int) -> None:
    """Save partitions of many sizes, and tell of each when the store promised it."""
    store = open_store(root, create=False)
    for index in itertools.count():
        store.write(Place(f"n{n}", f"{index}", 0, "a"), staged(index % 251, 1 + 977 * (index % 40)), FACTS)
        os.write(tell, index.to_bytes(4, "little"))


def race(root: str, writers: str, rounds: str, deaths: str) -> None:
    """Let some writers start on one place at the same moment; `deaths` seeds which are killed, 0 = none."""
    random = Random(f"{writers}-{deaths}")
    for n in range(int(rounds)):
        ready, go = os.pipe()
        ats = [random.randrange(60) if int(deaths) and random.random() < 0.5 else None for _ in range(int(writers))]

        def work(who: int, at: int | None, n: int = n, ready: int = ready) -> None:
            store = open_store(root, create=False) if at is None else dying(root, at + 10)
            os.read(ready, 1)
            store.write(Place("race", f"{n}", 0, f"w{who}"), staged(who), FACTS)

        children = [fork(lambda who=who, at=at, work=work: work(who, at)) for who, at in enumerate(ats)]
        os.write(go, bytes(len(children)))
        say(n=n, codes=[ended(pid) for pid in children])
        os.close(ready)
        os.close(go)


if __name__ == "__main__":
    {"killed": killed, "race": race, "loop": loop}[sys.argv[1]](*sys.argv[2:])
