"""What a place can do as a store: tried out, with nothing left behind."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter

from dask_resilient.errors import StoreError
from dask_resilient.store.calls import Calls
from dask_resilient.store.files import create_if_absent, write_files
from dask_resilient.store.opening import open_store, resolve

SIZE = 4 * 2**20
"""Bytes that are written to see how fast that is."""

Step = tuple[str, bool, str, str]
"""What was tried, whether it worked, a sentence about it, and what to do if it did not."""

ADVICE = "choose another directory, which every machine sees and this process may write"


def trial(store: str) -> Iterator[Step]:
    """Try a place out, step by step; whatever fails ends it.

    Parameters
    ----------
    store
        What `resolve` takes; where there is no store yet, the nearest directory above it is tried.
    """
    root = resolve(store)
    if os.path.lexists(f"{root}/store.json"):
        try:
            opened = open_store(root, create=False)
        except StoreError as e:
            yield "open", False, str(e), ADVICE
            return
        yield "open", True, f"{root}: {opened.describe()}", ""
        yield from _write(root)
        return
    directory = next(p for p in (Path(root), *Path(root).parents) if p.exists())
    if not directory.is_dir():
        yield "open", False, f"{str(directory)!r} is no directory", ADVICE
        return
    steps = list(_write(str(directory)))
    if all(good for _, good, _, _ in steps):
        # Only now: that nothing is there yet says nothing about whether a store could be.
        missing = [str(p) for p in Path(root).parents if not p.exists()]
        made = f"; installing makes {missing[-1]!r} too" if missing else ""
        typo = f"if {missing[-1]!r} should be there already, look for a typo in the path" if missing else ""
        yield "open", True, f"no store yet; {str(directory)!r} is tried, installing makes the store{made}", typo
    yield from steps


def _write(directory: str) -> Iterator[Step]:
    calls, name = Calls(), f"trial-{uuid.uuid4().hex}"
    path = f"{directory}/{name}"
    try:
        begin = perf_counter()
        write_files(calls, [(path, [memoryview(bytes(SIZE))])])
        seconds = perf_counter() - begin
        yield "durable write", True, f"{SIZE / seconds / 2**20:.0f} MiB/s for {SIZE // 2**20} MiB", ""
        with contextlib.suppress(FileExistsError):
            create_if_absent(calls, directory, name, b"second")
            yield "create if absent", False, "a name can be created twice", "choose another file system"
            return
        yield "create if absent", True, "a name that is there is refused", ""
        usage = os.statvfs(directory)
        free = usage.f_bavail * usage.f_frsize
        yield "room", free > SIZE, f"{free / 2**30:.1f} GiB free", "" if free > SIZE else "make room"
    except OSError as e:
        yield "durable write", False, f"{path!r}: {e.strerror or e}", ADVICE
    finally:
        with contextlib.suppress(OSError):
            calls.unlink(path)
