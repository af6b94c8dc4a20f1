"""Numbers of NVML and what they mean: the recovery action, event types, returns of calls.

The values are those of nvml.h (NVML 13); where their meaning is taken from the name alone, it is said.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from dask_resilient.core.faults import Class

RECOVERY: Mapping[int, tuple[str, Class]] = {
    0: ("none", Class.OBSERVE),
    1: ("GPU reset", Class.EVICT),
    2: ("node reboot", Class.EVICT),
    3: ("drain peer-to-peer traffic", Class.DRAIN),
    4: ("drain and reset", Class.DRAIN),
    5: ("recover the IMEX domain", Class.DRAIN),
    6: ("bus reset", Class.EVICT),
    7: ("system reboot", Class.EVICT),
}
"""NVIDIA's own verdict, the GPU recovery action (NVML field 230). Source: nvml.h, and "GPU Memory Error Management"."""

DRAIN_P2P = 3

_CHANGED = re.compile(r"recovery action changed from .* to (0x[0-9a-f]+)", re.IGNORECASE)

SLOW_REASONS = 0x8 | 0x40 | 0x80
"""Clocks event reasons: hardware slowdown, hardware thermal slowdown, power brake. Source: nvml.h."""

EVENTS = {
    0x200: ("single-bit ECC error storm", Class.DEGRADE),
    0x400: ("memory retirement event", Class.OBSERVE),
    0x800: ("memory retirement failure", Class.DRAIN),
    0x1000: ("non-fatal poison", Class.OBSERVE),
    0x2000: ("fatal poison", Class.EVICT),
    0x4000: ("GPU unavailable", Class.EVICT),
}
"""NVML event types with their class. Source: nvml.h; what they mean is assumed from their names. The process in which
non-fatal poison was consumed gets an error of CUDA."""

FABRIC = {2: ("unhealthy", Class.DRAIN), 3: ("limited capacity", Class.DEGRADE)}
"""Summaries of the fabric's health with their class. Source: nvml.h; 0 is not supported, 1 healthy."""

NVML_REASONS = {
    1: "NVML is not initialized",
    2: "NVML does not take the question",
    3: "not supported by this device, or not in its present mode (MIG, WSL)",
    4: "no permission",
    6: "the device is not found",
    9: "the NVIDIA driver is not loaded",
    10: "NVML timed out",
    12: "NVML is not installed",
    13: "the driver is older than the question",
    14: "the InfoROM is corrupted",
    18: "NVML and the driver differ in version: the driver was upgraded under the processes",
    28: "the device is not found",
    999: "NVML failed for a reason that it does not know",
}
"""Why a reading is unknown, by what an NVML call returned (nvml.h). Not among them: 15 and 16, which are verdicts."""


def reason(code: int) -> str:
    """Give the words of what an NVML call returned."""
    return NVML_REASONS.get(code, f"NVML returned {code}")


GPU_IS_LOST, RESET_REQUIRED = 15, 16
"""What NVML returns for a device that is lost, or wants a reset (nvml.h)."""

SW_THERMAL = 0x20
"""Clocks event reason: software thermal slowdown."""


def recovery_action(value: int) -> tuple[str, Class]:
    """Give the words and the class of a recovery action; one that is not known yet drains."""
    return RECOVERY.get(value, (f"recovery action {value}, unknown to this version", Class.DRAIN))


def recovery_in(text: str) -> int | None:
    """Give the recovery action that the line of an XID 154 names."""
    found = _CHANGED.search(text)
    return None if found is None else int(found[1], 16)
