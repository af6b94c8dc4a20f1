"""What may happen to a file: ways of losing, changing and replacing it."""

from __future__ import annotations

import os
from pathlib import Path


def flip(n):
    """Flip one bit of byte n."""

    def change(path):
        raw = bytearray(path.read_bytes())
        raw[n % len(raw)] ^= 1
        path.write_bytes(raw)

    return change


def replace_by(make):
    """Put something else in the file's place."""

    def change(path):
        moved = path.with_name("moved")
        path.rename(moved)
        make(path, moved)

    return change


CHANGES = {
    "lost": Path.unlink,
    "first bit flipped": flip(0),
    "bit flipped": flip(100),
    "last bit flipped": flip(-1),
    "truncated": lambda path: os.truncate(path, path.stat().st_size - 1),
    "emptied": lambda path: os.truncate(path, 0),
    "extended": lambda path: path.write_bytes(path.read_bytes() + b"\0"),
    "zeroed": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "a directory": replace_by(lambda path, _: path.mkdir()),
    "a link": replace_by(lambda path, moved: path.symlink_to(moved)),
    "a link to itself": replace_by(lambda path, _: path.symlink_to(path)),
    "a link out of the store": replace_by(lambda path, _: path.symlink_to("/etc/hostname")),
    "a pipe": replace_by(lambda path, _: os.mkfifo(path)),
}
