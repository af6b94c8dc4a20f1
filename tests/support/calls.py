"""Counting how often user functions ran, so that it survives the SIGKILL of the process that ran them."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path


class Calls:
    """Counts calls by name in a directory that all processes see.

    Picklable: it holds a path only. Each process appends to a file of its own.
    """

    def __init__(self, directory: str | Path) -> None:
        self.directory = str(directory)

    def add(self, name: object) -> None:
        """Count one call, before it does anything."""
        fd = os.open(f"{self.directory}/{os.getpid()}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            os.write(fd, f"{name}\n".encode())
        finally:
            os.close(fd)

    def counts(self) -> Counter[str]:
        """Give the calls so far, by name."""
        counter: Counter[str] = Counter()
        for file in Path(self.directory).iterdir():
            counter.update(file.read_text().splitlines())
        return counter

    def total(self) -> int:
        """Give the number of all calls so far."""
        return sum(self.counts().values())

    def repeated(self) -> dict[str, int]:
        """Give the names that were called more than once."""
        return {name: n for name, n in self.counts().items() if n > 1}
