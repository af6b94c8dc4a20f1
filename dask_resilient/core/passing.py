"""Errors that pass: where only their text says that a process is broken, what works there says that it is not."""

from __future__ import annotations

from collections.abc import Hashable


class Passing:
    """Knows what failed in each process, and which kinds of tasks have succeeded there since.

    A context of CUDA that is broken lets nothing of the kind succeed. So where no GPU is known whose context that could
    be, an error tells nothing of the process if a task of its kind has succeeded there since the last, nor does a task
    that fails there once more since it may run nowhere else.
    """

    def __init__(self) -> None:
        self._failed: dict[str, set[Hashable]] = {}
        """By worker, tasks."""
        self._works: dict[str, dict[str, bool]] = {}
        """By worker and prefix, whether a task of it has succeeded since one failed."""

    @property
    def listening(self) -> bool:
        """Say whether it matters what tasks do; else `succeeded` and `forget` change nothing."""
        return bool(self._failed)

    def failed(self, worker: str, key: Hashable, prefix: str, only_there: bool) -> str:
        """Take in that a task failed; give why that tells nothing of its process, empty if it may.

        With `only_there` the task may run nowhere else.
        """
        keys, works = self._failed.setdefault(worker, set()), self._works.setdefault(worker, {})
        again, alive = only_there and key in keys, works.get(prefix, False)
        keys.add(key)
        works[prefix] = False
        if again:
            return f"task {key!r} failed there before"
        return f"tasks {prefix!r} have succeeded there since one failed" if alive else ""

    def succeeded(self, worker: str, prefix: str) -> None:
        """Take in that a task succeeded."""
        works = self._works.get(worker)
        if works is not None and prefix in works:
            works[prefix] = True

    def forget(self, key: Hashable) -> None:
        """Take in that a task is gone for good."""
        for keys in self._failed.values():
            keys.discard(key)

    def gone(self, worker: str) -> None:
        """Take in that a process is gone."""
        self._failed.pop(worker, None)
        self._works.pop(worker, None)
