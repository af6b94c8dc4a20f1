"""Faults of the file system, on demand: record the system calls of a store, make one fail, or stop the process there.

::

    calls = FaultyCalls()
    store = open_store(path, create=True, calls=calls.as_calls())
    calls.arm(7, fail(errno.ENOSPC))
    store.write(...)  # its eighth system call finds the disk full
"""

from __future__ import annotations

import errno
import itertools
import os
import signal
from collections.abc import Callable
from typing import Any, cast

from dask_resilient.store import Calls

Effect = Callable[[str], None]
"""Gets the name of the call in whose place it acts; it raises, or never returns."""


def fail(code: int = errno.EIO) -> Effect:
    """Give an effect that raises the `OSError` of an error number."""

    def effect(name: str) -> None:
        raise OSError(code, f"{os.strerror(code)} (injected into {name})")

    return effect


def kill(name: str) -> None:
    """Stop this process as a power switch would: nothing is cleaned up."""
    del name
    os.kill(os.getpid(), signal.SIGKILL)


class FaultyCalls:
    """The system calls of a store, recorded; one of them, or all from there on, can be armed with another effect.

    Parameters
    ----------
    inner
        What does the work.
    """

    def __init__(self, inner: Calls | None = None) -> None:
        self.log: list[tuple[str, tuple[Any, ...]]] = []
        """Name and arguments of every call so far."""
        self.hit: str | None = None
        """Name of the first call that had the effect."""
        self._inner = inner or Calls()
        self._count = itertools.count()  # next() is atomic, so threads may share it
        self._due: Callable[[int], bool] = lambda _: False
        self._effect: Effect = kill

    def arm(self, at: int, effect: Effect, *, lasting: bool = False) -> None:
        """Count anew, and let call number `at`, counted from 0, have the effect.

        Parameters
        ----------
        at
            Which call.
        effect
            What happens in its place.
        lasting
            Whether all later calls have it too, as on a disk that is gone.
        """
        self._count = itertools.count()
        self._due = (lambda n: n >= at) if lasting else (lambda n: n == at)
        self._effect = effect

    def __getattr__(self, name: str) -> Callable[..., Any]:
        call = getattr(self._inner, name)

        def counted(*args: Any) -> Any:
            self.log.append((name, args))
            if self._due(next(self._count)):
                self.hit = self.hit or name
                self._effect(name)
            return call(*args)

        return counted

    def as_calls(self) -> Calls:
        """Give this object under the type that a store takes."""
        return cast("Calls", self)
