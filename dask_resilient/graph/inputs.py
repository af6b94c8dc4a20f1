"""Files that a milestone is made from: by size, time of change and inode, not by their bytes."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from dask_resilient.core.fingerprints import Fact, combine

MOST_FILES = 20_000
"""Files of one directory that are looked at: each costs a call to a file system that may be remote."""

_LONGEST = 4096


def input_of(text: str) -> Fact | None:
    """Give the fact of a file or a directory, None where a text names neither.

    A directory counts by all files in it, by their names. The path itself is no part: the same file by another way is
    the same file. A fact without a digest is of a directory that has too many files.
    """
    if not _may_be_path(text):
        return None
    try:
        found = Path(text).stat()
    except (OSError, ValueError):
        return None
    if stat.S_ISREG(found.st_mode):
        return Fact("input", combine(_one(found)), f"{found.st_size} bytes")
    # A bare word is more likely a column than a directory, and nobody reads all of a file system.
    if os.sep in text and stat.S_ISDIR(found.st_mode) and os.path.realpath(text) != os.sep:
        return _directory(Path(text))
    return None


def _may_be_path(text: str) -> bool:
    """Say whether it is worth a look: words without a separator and a suffix are more likely columns."""
    return 0 < len(text) <= _LONGEST and (os.sep in text or "." in text) and "\0" not in text and "\n" not in text


def _directory(path: Path) -> Fact:
    parts: list[str] = []
    count = 0
    for directory, names, files in os.walk(path):
        names.sort()
        for name in sorted(files):
            count += 1
            if count > MOST_FILES:
                return Fact("input", "", f"more than {MOST_FILES:,} files")
            file = Path(directory, name)
            parts.append(str(file.relative_to(path)))
            try:
                parts += _one(file.stat())
            except OSError:
                parts.append("cannot be read")
    return Fact("input", combine(parts), f"{count} files")


def _one(found: os.stat_result) -> list[str]:
    return [str(found.st_size), str(found.st_mtime_ns), str(found.st_ino)]
