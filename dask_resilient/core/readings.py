"""Readings: measured facts about a device, or why one is not known; and the baseline that counters rise from."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from functools import lru_cache
from typing import Any, Self

from dask_resilient.core.cuda_errors import Kind, TaskFault
from dask_resilient.core.messages import sendable
from dask_resilient.core.nvml import reason as nvml_reason

Value = int | float | bool | str

TEXT = 1_000
"""Characters of a text that are told."""

NOTHING = ""
"""Value of a reading that is not given any more: nothing follows from it, and it is no longer unknown either."""


class Name(StrEnum):
    """What the built-in rules read. A probe may add names of its own; it is judged by `STATED` only.

    Of several of a kind, the name is followed by a point and which one: ``nvlink-state.3``, ``cuda-error.700``.
    """

    RECOVERY_ACTION = "recovery-action"
    """What the driver wants done, NVML field 230: a row of its own below."""
    XID = "xid"
    """A number that the driver reports: a row of its own below."""
    EVENT = "event"
    """A type of NVML event."""
    NVML_RETURN = "nvml-return"
    """What calls of NVML answer: 15 = the GPU is lost, 16 = it requires a reset, 999 = unknown."""
    PRESENT = "present"
    """Whether NVML still lists the device."""
    CUDA_ERROR = "cuda-error"
    """The class of an error that a task or the canary met; the part behind the point is its code or name."""
    CANARY = "canary"
    """``right`` or ``wrong``."""
    INDICTED = "indicted"
    """Tasks that failed on the device and succeeded elsewhere, once they are enough evidence against it."""
    EXHAUSTED = "exhausted"
    """Tasks in a row that got no memory in a process while others did elsewhere, once they are enough."""
    STATED = "stated"
    """A class that a probe of a third party states itself."""
    ECC_UNCORRECTED = "ecc-uncorrected"
    """Volatile, as all counters of ECC here."""
    ECC_CORRECTED_DRAM = "ecc-corrected-dram"
    """Errors of the device's memory that were put right."""
    ECC_CORRECTED_SRAM = "ecc-corrected-sram"
    """Errors of its caches and registers that were put right."""
    SRAM_THRESHOLD = "sram-threshold"
    """Whether NVIDIA's own limit of uncorrectable errors of SRAM is exceeded."""
    REMAP_PENDING = "remap-pending"
    """Whether a row of memory waits for a reset to be remapped."""
    REMAP_FAILED = "remap-failed"
    """Whether a row of memory could not be remapped."""
    REMAPPED_ROWS = "remapped-rows"
    """For uncorrectable errors."""
    REMAP_EXHAUSTED = "remap-exhausted"
    """Banks with no or few rows left to remap to."""
    RETIRED_PAGES = "retired-pages"
    """Pages of memory that are retired."""
    TEMPERATURE = "temperature"
    """Degrees Celsius of the device."""
    TEMPERATURE_SHUTDOWN = "temperature-shutdown"
    """Degrees Celsius at which the device shuts down."""
    TEMPERATURE_MAX = "temperature-max"
    """Degrees Celsius up to which it should run."""
    MARGIN = "margin"
    """Degrees to NVIDIA's T.Limit; the two below are where, counted from it, something happens (signed)."""
    MARGIN_SHUTDOWN = "margin-shutdown"
    """Where it shuts down."""
    MARGIN_MAX = "margin-max"
    """Below it, the device is hotter than it should run."""
    MEMORY_TEMPERATURE = "memory-temperature"
    """Degrees Celsius of the device's memory."""
    MEMORY_TEMPERATURE_MAX = "memory-temperature-max"
    """Degrees Celsius up to which the memory should run."""
    CLOCKS_REASONS = "clocks-reasons"
    """Bits of why the clocks are slower than they could be."""
    PCIE_REPLAYS = "pcie-replays"
    """Packets that were sent again."""
    PCIE_GENERATION = "pcie-generation"
    """Of the link as it runs."""
    PCIE_WIDTH = "pcie-width"
    """Lanes of the link as it runs."""
    PCIE_WIDTH_MAX = "pcie-width-max"
    """Lanes that the link could have."""
    NVLINK_STATE = "nvlink-state"
    """Whether a link is up."""
    NVLINK_REPLAY = "nvlink-replay"
    """Packets that a link sent again."""
    NVLINK_RECOVERY = "nvlink-recovery"
    """Times that a link had to recover."""
    NVLINK_CRC = "nvlink-crc"
    """Packets that arrived wrong."""
    NVLINK_BER = "nvlink-ber"
    """Bit error rate of a link."""
    FABRIC = "fabric"
    """State of the device in NVIDIA's fabric."""
    INFOROM = "inforom"
    """Whether it is valid."""
    HOST_MEMORY = "host-memory"
    """Share of the host's memory that is available."""
    HOST_DISK = "host-disk"
    """Share that is free of the disk with the worker's local directory."""
    HOST_FILES = "host-files"
    """Share of the files that a process may open that the worker has open."""
    KERNEL_LOG = "kernel-log"
    """Whether the kernel's log can be read."""
    SILENCE = "silence"
    """Seconds since a probe last answered."""
    TIMEOUTS = "timeouts"
    """Probes in a row that fell silent."""
    OVERLOADED = "overloaded"
    """Whether the host has no processor time to spare, so that silence says nothing."""
    SLOW_DOWN = "slow-down"
    """Times by which the device is slower than others on the same work."""
    HANG = "hang"
    """Times the usual duration that a task without progress has run."""
    STALE_METRICS = "stale-metrics"
    """Seconds by which a worker's metrics are older than its heartbeat."""
    NOT_ANSWERING = "not-answering"
    """Seconds that a worker has not answered while it runs a task."""


COUNTERS = frozenset(
    {
        *(Name.ECC_UNCORRECTED, Name.ECC_CORRECTED_DRAM, Name.ECC_CORRECTED_SRAM, Name.PCIE_REPLAYS),
        *(Name.NVLINK_REPLAY, Name.NVLINK_RECOVERY, Name.NVLINK_CRC),
    }
)
"""Judged by how much they rise."""

BUILT_IN = frozenset({"nvml", "kernel-log", "host", "canary", "tasks", "work"})
"""The probes of ours; no other may have one of these names."""

ONCE_TRUE = frozenset({Name.PRESENT, Name.NVLINK_STATE})
"""Judged by whether they ever were true."""

_NOT_AVAILABLE = frozenset({2**64 - 1, 2**32 - 1})
"""What NVML puts into counters that it cannot read: -1, without a sign (nvml.h, NVML_VALUE_NOT_AVAILABLE)."""


@lru_cache(maxsize=4096)
def _kind(name: str) -> str:
    return name.partition(".")[0]


@dataclass(frozen=True, slots=True)
class Reading:
    """One measured fact about one device, or why it is not known."""

    probe: str
    device: str
    name: str
    value: Value | None
    """None is unknown: neither healthy nor unhealthy."""
    time: float
    text: str = ""
    """Why the value is unknown; else what the source said, such as the line of the kernel log."""
    own: bool | None = None
    """Of an XID: whether it names this process; None where that cannot be told."""

    @classmethod
    def unknown(cls, probe: str, device: str, name: str, time: float, reason: str) -> Self:
        """Give a reading that could not be taken."""
        return cls(probe, device, name, None, time, reason)

    @classmethod
    def from_nvml(cls, probe: str, device: str, name: str, time: float, code: int) -> Self:
        """Give a reading that NVML refused, by the code that it returned."""
        return cls.unknown(probe, device, name, time, nvml_reason(code))

    @property
    def kind(self) -> str:
        """Give the name without which one of several it is."""
        return _kind(self.name)

    @property
    def number(self) -> float | None:
        """Give the value as a number; None if it is unknown, or no number after all ("N/A")."""
        if self.value is None or isinstance(self.value, str) or self.value in _NOT_AVAILABLE:
            return None
        return self.value if math.isfinite(self.value) else None

    def at(self, device: str, time: float) -> Reading:
        """Give the same of a device at a time; `dataclasses.replace` takes several times as long."""
        return Reading(self.probe, device, self.name, self.value, time, self.text, self.own)

    def to_dict(self) -> dict[str, Any]:
        """Give plain types for the wire, texts in a form that can be sent."""
        fields = asdict(self)
        return {name: sendable(value, TEXT) if isinstance(value, str) else value for name, value in fields.items()}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self:
        """Read what `to_dict` gave."""
        return cls(**fields)


def task_error(device: str, fault: TaskFault, time: float) -> Reading:
    """Give the reading of an error that a task, or the canary, met on a device."""
    which = fault.name if fault.code is None else fault.code
    text = f"{fault.name} ({fault.source}): {fault.text}"
    return Reading("tasks", device, f"{Name.CUDA_ERROR}.{which}", str(fault.cls), time, text)


_NO_CANARY = {
    46: "the device is busy or unavailable to this process",
    100: "CUDA sees no device",
    101: "CUDA does not see this device",
}


def canary(device: str, time: float, right: bool | None, fault: TaskFault | None = None, reason: str = "") -> Reading:
    """Give the reading of a canary; only a wrong product speaks against the device.

    Parameters
    ----------
    right
        Whether the product was right; None if there is none.
    fault
        What the error that it ended with says. One that is sticky is also a reading of its own, see `task_error`.
    reason
        Why there is no product, where no error says it: no CuPy, or a time-out while tasks are running.
    """
    if right is not None:
        return Reading("canary", device, Name.CANARY, "right" if right else "wrong", time)
    if fault is not None:
        memory = "out of memory" if fault.kind is Kind.ALLOCATION else fault.name
        reason = _NO_CANARY.get(fault.code or 0, memory)
    return Reading.unknown("canary", device, Name.CANARY, time, reason or "no canary was run")


@dataclass(frozen=True, slots=True)
class Baseline:
    """What the counters of one device stood at when they were first read, or were last reset."""

    device: str
    """By UUID: indices and bus addresses move."""
    values: Mapping[str, float] = field(default_factory=dict)

    def rise(self, reading: Reading) -> float:
        """Give by how much a counter has risen: 0 if that is not known, also if it fell, since it was reset then."""
        before, now = self.values.get(reading.name), reading.number
        return 0.0 if before is None or now is None else max(0.0, now - before)

    def was_true(self, reading: Reading) -> bool:
        """Say whether a state has been true since the start."""
        return bool(self.values.get(reading.name))

    def advance(self, readings: Iterable[Reading]) -> Baseline:
        """Take in readings: counters seen for the first time, counters that were reset, and states that became true.

        A counter that fell was reset with the device; what it counted since then cannot be told from its value.
        """
        values = dict(self.values)
        for reading in sorted(readings, key=lambda reading: reading.time):
            value = reading.number
            if reading.device != self.device or value is None:
                continue
            before = values.get(reading.name)
            if reading.kind in COUNTERS and (before is None or value < before):
                values[reading.name] = value
            elif reading.kind in ONCE_TRUE:
                values[reading.name] = max(before or 0.0, float(bool(value)))
        return replace(self, values=values)
