"""The kernel log: new lines of our device, and whom they name."""

from __future__ import annotations

import os

import pytest

from dask_resilient.core.kernel_log import bus_id
from dask_resilient.core.readings import Name
from dask_resilient.probes.kernel_log import FIRST_NAMESPACE, NAME, KernelLog

BUS = bus_id("00000000:01:00.0")
XID = "4,1,1,-;NVRM: Xid (PCI:0000:01:00): 31, pid={}, name=python3, x\n"


@pytest.fixture
def log(tmp_path):
    """Give a file, and what opens it."""
    path = tmp_path / "kmsg"
    path.write_text(XID.format(1))
    opened = []

    def make(namespace=FIRST_NAMESPACE, file=path):
        opened.append(KernelLog(str(file), BUS, 77, namespace))
        return opened[-1]

    make.path = path
    yield make
    for each in opened:
        each.close()


def write(log, text):
    with log.path.open("a") as file:
        file.write(text)


def test_only_new_lines_of_our_device_are_told(log):
    """What was there before is history; other devices are others' concern."""
    x = log()
    assert list(x.read()) == []
    write(log, "4,2,2,-;something else\n" + XID.format(5).replace("01:00", "02:00") + XID.format(77))
    ((name, value, text, own),) = x.read()
    assert (name, value, own) == (Name.XID, 31, True)
    assert text.startswith("NVRM: Xid (PCI:0000:01:00): 31, pid=77")
    assert list(x.read()) == []


def test_a_line_is_told_when_it_is_whole(log):
    """The writer may be in the middle of it."""
    x = log()
    whole = XID.format(77)
    write(log, whole[:30])
    assert list(x.read()) == []
    write(log, whole[30:])
    assert [row[1] for row in x.read()] == [31]


@pytest.mark.parametrize(
    ("namespace", "pid", "own"),
    [
        (FIRST_NAMESPACE, "77", True),
        (FIRST_NAMESPACE, "78", False),
        (FIRST_NAMESPACE, "'<unknown>'", None),
        (4026532000, "77", None),
        (4026532000, "78", None),
    ],
)
def test_whom_a_line_names(log, namespace, pid, own):
    """In a pid namespace the log's pid is the host's, so nobody knows."""
    x = log(namespace)
    write(log, XID.format(pid))
    assert [row[3] for row in x.read()] == [own]
    assert ("namespace" in x.state()[2]) is (namespace != FIRST_NAMESPACE)


def test_a_log_that_cannot_be_read_is_unknown_with_the_reason(log, tmp_path):
    """Missing, or a directory, or taken away: one reading, no error."""
    x = log(file=tmp_path / "missing")
    assert list(x.read()) == []
    assert x.state() == (NAME, None, f"{tmp_path}/missing: No such file or directory", None)
    x = log(file=tmp_path)
    assert list(x.read()) == []
    assert x.state()[:2] == (NAME, None)


def test_lines_that_were_overwritten_are_left_out(log, monkeypatch):
    """The ring buffer says so once, and goes on."""
    x = log()
    write(log, XID.format(77))
    read, errors = os.read, [BrokenPipeError()]

    def overrun(fd, size):
        if errors:
            raise errors.pop()
        return read(fd, size)

    monkeypatch.setattr(os, "read", overrun)
    assert [row[1] for row in x.read()] == [31]


def test_a_flood_is_read_in_parts(log):
    """Nothing is kept waiting by a log that is written faster than it is read."""
    x = log()
    write(log, ("4,2,2,-;" + "x" * 1000 + "\n") * 1500 + XID.format(77))
    assert list(x.read()) == []
    assert [row[1] for row in x.read()] == [31]
