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
    """What the driver wants done with the device, NVML field 230. Each number has a row of its own."""
    XID = "xid"
    """The number of a fault that the driver reports, by NVML or in the kernel log. Each has a row of its own."""
    EVENT = "event"
    """The number of another event that NVML reports. Each has a row of its own."""
    NVML_RETURN = "nvml-return"
    """The number that calls of NVML about the device return; 0 is success. Each error has a row of its own."""
    PRESENT = "present"
    """Whether NVML still lists the device."""
    CUDA_ERROR = "cuda-error"
    """The class of an error that a task or the canary met; the part behind the point is its code or name."""
    CANARY = "canary"
    """Whether the canary computed `right` or `wrong`."""
    INDICTED = "indicted"
    """Whether tasks that failed on the device and succeeded elsewhere are enough evidence against it."""
    EXHAUSTED = "exhausted"
    """Whether tasks in a row got no memory in a process, and enough of them, while others did elsewhere."""
    STATED = "stated"
    """The class that a probe of a third party states itself; the part behind the point is the probe."""
    ECC_UNCORRECTED = "ecc-uncorrected"
    """The number of memory errors that could not be corrected, since the driver was loaded last."""
    ECC_CORRECTED_DRAM = "ecc-corrected-dram"
    """The number of errors of the device's memory that were corrected, since then."""
    ECC_CORRECTED_SRAM = "ecc-corrected-sram"
    """The number of errors of its caches and registers that were corrected, since then."""
    SRAM_THRESHOLD = "sram-threshold"
    """Whether uncorrectable errors of SRAM have passed NVIDIA's own limit."""
    REMAP_PENDING = "remap-pending"
    """Whether a row of memory waits for a reset to be remapped."""
    REMAP_FAILED = "remap-failed"
    """Whether a row of memory could not be remapped."""
    REMAPPED_ROWS = "remapped-rows"
    """The number of rows of memory that were remapped for uncorrectable errors in the life of the device."""
    REMAP_EXHAUSTED = "remap-exhausted"
    """The number of banks of memory with few or no rows left to remap to."""
    RETIRED_PAGES = "retired-pages"
    """The number of pages of memory that are retired; devices before Ampere have it."""
    TEMPERATURE = "temperature"
    """The temperature of the device, in degrees Celsius."""
    TEMPERATURE_SHUTDOWN = "temperature-shutdown"
    """The temperature at which the device shuts down, in degrees Celsius."""
    TEMPERATURE_MAX = "temperature-max"
    """The temperature up to which the device should run, in degrees Celsius."""
    MARGIN = "margin"
    """The degrees that are left to NVIDIA's T.Limit: the less, the hotter."""
    MARGIN_SHUTDOWN = "margin-shutdown"
    """The margin at which the device shuts down; it may be less than zero."""
    MARGIN_MAX = "margin-max"
    """The margin below which the device is hotter than it should run."""
    MEMORY_TEMPERATURE = "memory-temperature"
    """The temperature of the device's memory, in degrees Celsius."""
    MEMORY_TEMPERATURE_MAX = "memory-temperature-max"
    """The temperature up to which the memory should run, in degrees Celsius."""
    CLOCKS_REASONS = "clocks-reasons"
    """Why the clocks are slower than they could be, one bit a reason (nvml.h)."""
    PCIE_REPLAYS = "pcie-replays"
    """The number of PCIe packets that were sent again."""
    PCIE_GENERATION = "pcie-generation"
    """The PCIe generation at which the device's bus runs now."""
    PCIE_WIDTH = "pcie-width"
    """The number of PCIe lanes with which the device's bus runs now."""
    PCIE_WIDTH_MAX = "pcie-width-max"
    """The number of PCIe lanes that it could have."""
    NVLINK_STATE = "nvlink-state"
    """Whether a link is up; the part behind the point is its number, here and below."""
    NVLINK_REPLAY = "nvlink-replay"
    """The number of packets that a link sent again."""
    NVLINK_RECOVERY = "nvlink-recovery"
    """The number of times that a link had to recover."""
    NVLINK_CRC = "nvlink-crc"
    """The number of packets that a link got with a wrong checksum."""
    NVLINK_BER = "nvlink-ber"
    """The share of a link's bits that arrive wrong."""
    FABRIC = "fabric"
    """The health of the device in NVIDIA's fabric: 0 not supported, 1 healthy, 2 unhealthy, 3 limited capacity."""
    INFOROM = "inforom"
    """Whether the InfoROM, the device's own store of facts, is valid."""
    HOST_MEMORY = "host-memory"
    """The share of the host's memory that is available."""
    HOST_DISK = "host-disk"
    """The share that is free of the disk with the worker's local directory."""
    HOST_FILES = "host-files"
    """The share of the files that a process may open that the worker has open."""
    KERNEL_LOG = "kernel-log"
    """Whether the kernel's log can be read; where not, an XID names no process."""
    SILENCE = "silence"
    """The seconds since a probe last answered."""
    TIMEOUTS = "timeouts"
    """The number of probes in a row that fell silent and were ended."""
    OVERLOADED = "overloaded"
    """Whether the host has no processor time to spare, so that silence says nothing."""
    SLOW_DOWN = "slow-down"
    """How many times slower the device is than others on the same work."""
    HANG = "hang"
    """How many times as long as usual a task without progress has run."""
    STALE_METRICS = "stale-metrics"
    """The seconds by which a worker's metrics are older than its heartbeat."""
    NOT_ANSWERING = "not-answering"
    """The seconds that a worker has not answered while it runs a task."""


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
