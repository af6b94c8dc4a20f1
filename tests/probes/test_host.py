"""The host as the probe process sees it: memory, disk and files, or why not."""

from __future__ import annotations

import os
import threading
import time
from collections import namedtuple

import pytest

from dask_resilient.core.readings import Name
from dask_resilient.probes import host

MEMINFO = "MemTotal:       1000 kB\nMemFree:  1 kB\nMemAvailable:    250 kB\n"
LIMITS = "Limit    Soft Limit    Hard Limit    Units\nMax open files    {}    1048576    files\n"


@pytest.fixture
def root(tmp_path):
    """Give a host of files: process 7 has four files open."""
    (tmp_path / "proc/7/fd").mkdir(parents=True)
    for name in "0123":
        (tmp_path / "proc/7/fd" / name).touch()
    (tmp_path / "proc/7/limits").write_text(LIMITS.format(16))
    (tmp_path / "proc/meminfo").write_text(MEMINFO)
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    return tmp_path


def read(root, disk=None):
    return {name: (value, text) for name, value, text in host.rows(7, disk, root)}


def test_shares_are_told(root):
    """Of memory what is available, of files what is used, of a disk what is free."""
    found = read(root, str(root))
    assert found[Name.HOST_MEMORY] == (0.25, "")
    assert found[Name.HOST_FILES] == (0.25, "")
    assert 0 < found[Name.HOST_DISK][0] <= 1


def test_of_this_process_they_are_real():
    """The real files of Linux have the shape that is read."""
    found = {name: value for name, value, _ in host.rows(os.getpid(), "/")}
    assert all(0 <= value <= 1 for value in found.values()), found
    assert set(found) == {Name.HOST_MEMORY, Name.HOST_FILES, Name.HOST_DISK}


@pytest.mark.parametrize(("most", "share"), [("100000", 0.1), ("max", 0.25), ("10000000", 0.25)])
def test_a_control_group_may_have_less(root, most, share):
    """What it may still take; pages of files do not count, since the kernel takes them back."""
    group = root / "sys/fs/cgroup"
    (group / "memory.max").write_text(most + "\n")
    (group / "memory.current").write_text("95000\n")
    (group / "memory.stat").write_text("anon 5\ninactive_file 5000\n")
    assert read(root)[Name.HOST_MEMORY] == (share, "")


def test_no_limit_is_no_share(root):
    """Of files without a limit nothing is used up."""
    (root / "proc/7/limits").write_text(LIMITS.format("unlimited"))
    assert read(root)[Name.HOST_FILES] == (0.0, "")


def test_what_cannot_be_read_is_unknown_and_hides_nothing(root):
    """With the reason."""
    (root / "proc/meminfo").unlink()
    found = read(root, "/no/such/directory")
    assert found[Name.HOST_MEMORY][0] is None
    assert "No such file" in found[Name.HOST_MEMORY][1]
    assert found[Name.HOST_DISK][0] is None
    assert found[Name.HOST_FILES] == (0.25, "")


def test_a_disk_that_hangs_is_unknown(root, monkeypatch):
    """And waits in one thread, however often it is asked; whoever asks waits once."""
    go = threading.Event()
    usage = namedtuple("usage", "f_bavail f_blocks")
    monkeypatch.setattr(host, "DISK_SECONDS", 0.05)
    monkeypatch.setattr(os, "statvfs", lambda path: go.wait(20) and usage(1, 2))
    before = threading.active_count()
    for _ in range(3):
        assert read(root, "/slow")[Name.HOST_DISK] == (None, "/slow: its file system did not answer within 0.05 s")
    assert threading.active_count() == before + 1
    monkeypatch.setattr(host, "DISK_SECONDS", 60.0)
    begin = time.monotonic()
    assert read(root, "/slow")[Name.HOST_DISK][0] is None
    assert time.monotonic() - begin < 30
    go.set()
