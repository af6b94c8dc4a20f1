"""What happens to the files of a stored partition."""

from __future__ import annotations

import os
from pathlib import Path


def flip(file: Path) -> None:
    """Change one bit."""
    raw = bytearray(file.read_bytes())
    raw[3] ^= 1
    file.write_bytes(raw)


def cut(file: Path) -> None:
    """Cut off the last byte."""
    os.truncate(file, file.stat().st_size - 1)
