"""What can be wrong with a copy in the store, and how a test makes it so."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.processes.jobs import Job
from tests.support.processes import Processes


def remove(store: Path, place: Any, other: Any) -> None:
    """Take the data away."""
    shutil.rmtree(store / place.data)


def truncate(store: Path, place: Any, other: Any) -> None:
    """Cut a chunk in half."""
    chunk = store / place.data / "0"
    content = chunk.read_bytes()
    chunk.write_bytes(content[: len(content) // 2])


def flip(store: Path, place: Any, other: Any) -> None:
    """Flip one bit."""
    chunk = store / place.data / "0"
    content = bytearray(chunk.read_bytes())
    content[17] ^= 4
    chunk.write_bytes(content)


def swap(store: Path, place: Any, other: Any) -> None:
    """Put another partition in its place, receipt and data: consistent in itself, and not what was saved here."""
    shutil.rmtree(store / place.data)
    shutil.copytree(store / other.data, store / place.data)
    shutil.copyfile(store / other.receipt, store / place.receipt)


def bad(damage: Callable[[Path, Any, Any], None]) -> Callable[[Processes, Job], None]:
    """Damage the first partition that will be lost, then kill its worker."""

    def cause(x: Processes, job: Job) -> None:
        victim = job.holders()[0]
        job.look([victim])
        first = min(job.lost)
        job.bad.add(first)
        other = min(set(range(job.n)) - {first})
        keys = job.milestone_keys()
        damage(x.store, x.place(keys[first]), x.place(keys[other]))
        x.kill(victim)

    return cause


def unreachable(x: Processes, job: Job) -> None:
    """Take the whole store out of sight, and kill a worker."""
    victim = job.holders()[0]
    job.look([victim])
    x.store.rename(x.store.with_name("away"))
    x.kill(victim)
