"""Lines of the kernel log, in the shapes that drivers write."""

from __future__ import annotations

import pytest

from dask_resilient.core.kernel_log import bus_id, parse

ZERO = "0000:01:00"

LINES = {
    "with pid": ("NVRM: Xid (PCI:0000:01:00): 31, pid=1234, name=python3, Ch 00000008", 31, 1234),
    "unknown pid": ("NVRM: Xid (PCI:0000:01:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off", 79, None),
    "quoted pid": ("NVRM: Xid (PCI:0000:01:00): 13, pid='77', name=python3, Graphics Exception", 13, 77),
    "no pid": ("NVRM: Xid (PCI:0000:01:00): 48, An uncorrectable double bit error (DBE)", 48, None),
    "old": ("NVRM: Xid (0000:01:00): 14, 00000000", 14, None),
    "MIG slice": ("NVRM: Xid (PCI:0000:01:00 GPU-I:05): 94, pid=7194, name=python3, Contained: SM", 94, 7194),
    "MIG compute": ("NVRM: Xid (PCI:0000:01:00 GPU-I:01 GPU-CI:02): 13, pid=5, name=a, x", 13, 5),
    "NVLink 5": ("NVRM: Xid (PCI:0000:01:00): 144, SAW_MVB Fatal XC0 i0 Link 00 (0x1 0x2)", 144, None),
    "recovery": ("NVRM: Xid (PCI:0000:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x1", 154, None),
    "loss": ("NVRM: GPU 0000:01:00.0: GPU has fallen off the bus.", 79, None),
    "loss at start": (
        "NVRM: The NVIDIA GPU 0000:01:00.0 (PCI ID: 10de:20b2) NVRM: fallen off the bus and is not responding.",
        79,
        None,
    ),
    "as kmsg writes it": ("4,1520,7834982,-;NVRM: Xid (PCI:0000:01:00): 31, pid=9, name=p, x", 31, 9),
    "with a time": ("[ 12.5] NVRM: Xid (PCI:0000:01:00): 31, pid=9, name=p, x", 31, 9),
}


@pytest.mark.parametrize(("line", "xid", "pid"), LINES.values(), ids=LINES)
def test_every_shape_is_read(line: str, xid: int, pid: int | None) -> None:
    """Number, process and device."""
    found = parse(line)
    assert found is not None
    assert (found.xid, found.pid, found.bus) == (xid, pid, "0000:01:00")
    assert found.text.startswith(("NVRM", "["))


@pytest.mark.parametrize(
    "line",
    ["", "usb 1-1: new device", "NVRM: loading NVIDIA UNIX x86_64 Kernel Module", "NVRM: Xid (PCI:0000:01:00): x, y"],
)
def test_other_lines_are_none(line: str) -> None:
    """Also of the same driver."""
    assert parse(line) is None


@pytest.mark.parametrize(
    "text", ["00000000:01:00.0", "0000:01:00", "0000:01:00.0", "0:1:0", "0000:01:00.0".upper(), "00000000:01:00"]
)
def test_addresses_have_one_form(text: str) -> None:
    """NVML's, the log's, upper case."""
    assert bus_id(text) == ZERO


def test_addresses_that_are_none_stay_as_they_are() -> None:
    """They equal nothing else."""
    assert bus_id("what") == "what"
    assert bus_id("0000:41:00.0") == "0000:41:00" != ZERO
