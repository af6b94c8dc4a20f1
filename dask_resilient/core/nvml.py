"""Numbers of NVML and what they mean: the recovery action, event types, returns of calls.

The values are those of nvml.h (NVML 13); where their meaning is taken from the name alone, it is said. What is left to
a human is what "GPU Memory Error Management" or nvml.h says, or NVIDIA's catalogue of the XID that tells the same.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from dask_resilient.core.faults import Class
from dask_resilient.core.fixes import Fix


class NvmlRow(NamedTuple):
    """One number of NVML."""

    words: str
    cls: Class
    fix: Fix
    """What a human has to do."""


RECOVERY: Mapping[int, NvmlRow] = {
    0: NvmlRow("none", Class.OBSERVE, Fix.NOTHING),
    1: NvmlRow("GPU reset", Class.EVICT, Fix.RESET),
    2: NvmlRow("node reboot", Class.EVICT, Fix.REBOOT),
    3: NvmlRow("drain peer-to-peer traffic", Class.DRAIN, Fix.PEERS),
    4: NvmlRow("drain and reset", Class.DRAIN, Fix.RESET),
    5: NvmlRow("recover the IMEX domain", Class.DRAIN, Fix.UNKNOWN),
    6: NvmlRow("bus reset", Class.EVICT, Fix.UNKNOWN),
    7: NvmlRow("system reboot", Class.EVICT, Fix.REBOOT),
}
"""NVIDIA's own verdict, the GPU recovery action (NVML field 230). Source: nvml.h, and "GPU Memory Error Management"."""

DRAIN_P2P = 3

_CHANGED = re.compile(r"recovery action changed from .* to (0x[0-9a-f]+)", re.IGNORECASE)

SLOW_REASONS = 0x8 | 0x40 | 0x80
"""Clocks event reasons: hardware slowdown, hardware thermal slowdown, power brake. Source: nvml.h."""

EVENTS = {
    0x200: NvmlRow("single-bit ECC error storm", Class.DEGRADE, Fix.NOTHING),
    0x400: NvmlRow("memory retirement event", Class.OBSERVE, Fix.NOTHING),
    0x800: NvmlRow("memory retirement failure", Class.DRAIN, Fix.RESET),
    0x1000: NvmlRow("non-fatal poison", Class.OBSERVE, Fix.UNKNOWN),
    0x2000: NvmlRow("fatal poison", Class.EVICT, Fix.UNKNOWN),
    0x4000: NvmlRow("GPU unavailable", Class.EVICT, Fix.UNKNOWN),
}
"""NVML event types with their class. Source: nvml.h; what they mean is assumed from their names, and the first three
are taken for what XIDs 92, 63 and 64 say. The process in which non-fatal poison was consumed gets an error of CUDA."""

FABRIC = {
    2: NvmlRow("unhealthy", Class.DRAIN, Fix.UNKNOWN),
    3: NvmlRow("limited capacity", Class.DEGRADE, Fix.UNKNOWN),
}
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

LOST: Mapping[int, NvmlRow] = {
    GPU_IS_LOST: NvmlRow("the GPU is lost", Class.EVICT, Fix.REBOOT),
    RESET_REQUIRED: NvmlRow("the GPU requires a reset", Class.EVICT, Fix.RESET),
}
"""Those two as rows. A GPU that is lost has fallen off the bus, or cannot be reached for another reason (nvml.h)."""

FIXES: Mapping[int, Fix] = {
    **dict.fromkeys((2, 3), Fix.NOTHING),
    **dict.fromkeys((4, 6, 9, 12, 28), Fix.HOST),
    **dict.fromkeys((13, 18), Fix.UPDATE),
    14: Fix.RESET,
}
"""What a human has to do about reasons why a reading is unknown. Judgement, but for 14, which is NVSentinel's."""

SW_THERMAL = 0x20
"""Clocks event reason: software thermal slowdown."""


def recovery_action(value: int) -> tuple[str, Class]:
    """Give the words and the class of a recovery action; one that is not known yet drains."""
    row = RECOVERY.get(value)
    return (f"recovery action {value}, unknown to this version", Class.DRAIN) if row is None else (row.words, row.cls)


def recovery_in(text: str) -> int | None:
    """Give the recovery action that the line of an XID 154 names."""
    found = _CHANGED.search(text)
    return None if found is None else int(found[1], 16)
