"""What runs in every worker process of these tests: faults that files in a control directory switch on and off.

Files, and nothing else, reach every worker, also one that a nanny is just starting. A file ``hold:NAME`` keeps whoever
does NAME from going on while it is there; ``fail:NAME`` lets it fail with the errno that the file holds. NAME is
``setup``, ``load``, ``save``, or the name of a system call of the store; ``NAME@1`` is meant for the worker 1 only.
"""

from __future__ import annotations

import errno
import functools
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask

from tests.support.calls import Calls

CONTROL = "tests.control"
"""Key of Dask's configuration that holds the control directory."""

SYSTEM_CALLS = ("create", "open", "write", "fdatasync", "fsync_directory", "link", "mkdir", "names", "lstat", "read")

HELD = 60.0
"""Seconds after which whoever is held goes on, so that a failed test ends."""


def pass_gate(path: Path) -> None:
    """Wait while a file exists."""
    deadline = time.monotonic() + HELD
    while path.exists() and time.monotonic() < deadline:
        time.sleep(0.005)


class Faults:
    """Meets the faults that the control directory holds for one worker."""

    def __init__(self, control: str, worker: str) -> None:
        self.control = Path(control)
        self.worker = worker

    def present(self, kind: str, name: str) -> Path | None:
        """Give the file that orders this fault, if there is one."""
        for target in (name, f"{name}@{self.worker}"):
            path = self.control / f"{kind}:{target}"
            if path.exists():
                return path
        return None

    def meet(self, name: str) -> None:
        """Be held up, then fail, if that is ordered."""
        while (path := self.present("hold", name)) is not None:
            pass_gate(path)
        if (path := self.present("fail", name)) is not None:
            code = int(path.read_text())
            raise OSError(code, f"{os.strerror(code)} (injected into {name})")

    def wrap(self, owner: Any, attribute: str, name: str, before: Callable[..., Any] | None = None) -> None:
        """Let a method meet its faults before it does anything."""
        original = getattr(owner, attribute)

        @functools.wraps(original)
        def method(*args: Any, **kwargs: Any) -> Any:
            if before is not None:
                before(*args)
            self.meet(name)
            return original(*args, **kwargs)

        setattr(owner, attribute, method)


def dask_setup(worker: Any) -> None:
    """Put the faults in place, before any plugin is set up."""
    faults = Faults(dask.config.get(CONTROL), str(worker.name))
    if faults.present("fail", "codec"):
        # As where NumPy's own parts are broken: the module of the codec cannot be imported.
        sys.modules["dask_resilient.partitions.arrays"] = None  # type: ignore[assignment]
    from dask_resilient.store.calls import Calls as SystemCalls
    from dask_resilient.store.posix import PosixStore
    from dask_resilient.worker.loader import Loader
    from dask_resilient.worker.side import Side

    loads = Calls(faults.control.parent / "loads")
    for call in SYSTEM_CALLS:
        faults.wrap(SystemCalls, call, call)
    faults.wrap(PosixStore, "write", "save")
    faults.wrap(Side, "start", "setup")
    faults.wrap(Loader, "_read", "load", before=lambda loader, ticket: loads.add(ticket["dask_key"]))


def order(control: Path, kind: str, name: str, code: int = errno.EIO) -> None:
    """Switch a fault on."""
    draft = control / f".{kind}:{name}"
    draft.write_text(str(code))
    draft.rename(control / f"{kind}:{name}")
