"""Lines of the kernel log in which the NVIDIA driver reports an XID.

NVML tells the number only; the log also says which process was using the device. The shapes are those of the driver's
format strings: with and without pid, of a MIG slice, old ones without ``PCI:``, and two messages of a loss that carry
no number and mean 79 (Lepton's gpud treats them so too).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

LOST = 79

_XID = re.compile(
    r"NVRM: Xid \((?:PCI:)?(?P<bus>[0-9a-fA-F:.]+)[^)]*\): (?P<xid>\d+)(?:,|$)"
    r"(?: pid='?(?P<pid>\d+|<unknown>)'?)?"
)
_FALLEN = re.compile(
    r"NVRM: (?:The NVIDIA )?GPU (?P<bus>[0-9a-fA-F]+:[0-9a-fA-F:.]+)\b.*fallen off the bus", re.IGNORECASE | re.DOTALL
)
_PREFIX = re.compile(r"^(?:<\d+>)?\d+,\d+,\d+,[^;]*;")
"""What ``/dev/kmsg`` puts before a message: priority, number, time, flags (Documentation/ABI/testing/dev-kmsg)."""


@dataclass(frozen=True, slots=True)
class Line:
    """One report of the driver."""

    bus: str
    """Of the device, see `bus_id`."""
    xid: int
    pid: int | None
    """Of the process that used the device, in the host's own count; None if the driver does not say."""
    text: str


def parse(line: str) -> Line | None:
    """Read a line of the kernel log; None if it reports no XID."""
    text = _PREFIX.sub("", line).strip()
    if found := _XID.search(text):
        pid = found["pid"]
        return Line(bus_id(found["bus"]), int(found["xid"]), int(pid) if pid and pid.isdigit() else None, text)
    if found := _FALLEN.search(text):
        return Line(bus_id(found["bus"]), LOST, None, text)
    return None


def bus_id(text: str) -> str:
    """Give a bus address in one form: NVML writes ``00000000:01:00.0``, the log ``0000:01:00``."""
    domain, _, rest = text.lower().partition(":")
    bus, _, device = rest.partition(":")
    device = device.partition(".")[0]
    try:
        return f"{int(domain, 16):04x}:{int(bus, 16):02x}:{int(device or '0', 16):02x}"
    except ValueError:
        return text.lower()
