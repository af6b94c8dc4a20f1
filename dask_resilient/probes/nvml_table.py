"""The questions to NVML: one row a reading, each asked for alone. Used in the probe process only.

Numbers are those of nvml.h (NVML 13).
"""

from __future__ import annotations

from collections.abc import Callable
from ctypes import byref
from typing import Any

from dask_resilient.core.readings import Name

CORRUPTED_INFOROM = 14
CORRECTED, UNCORRECTED, VOLATILE, DRAM, SRAM = 0, 1, 0, 2, 7
LINKS = 18
"""NVLinks that a device can have (nvml.h, NVML_NVLINK_MAX_LINKS)."""


def _sram_threshold(nvml: Any, handle: Any) -> bool:
    status = nvml.c_nvmlEccSramErrorStatus_v1_t()
    status.version = nvml.nvmlEccSramErrorStatus_v1
    nvml.nvmlDeviceGetSramEccErrorStatus(handle, byref(status))
    return bool(status.bThresholdExceeded)


def _rows(nvml: Any, handle: Any) -> tuple[int, bool, bool]:
    _, uncorrectable, pending, failed = nvml.nvmlDeviceGetRemappedRows(handle)[:4]
    return int(uncorrectable), bool(pending), bool(failed)


def _exhausted(nvml: Any, handle: Any) -> int:
    histogram = nvml.nvmlDeviceGetRowRemapperHistogram(handle)
    return int(histogram.low + histogram.none)


def _retired(nvml: Any, handle: Any) -> int:
    # By cause: several single-bit errors, one double-bit error.
    return sum(len(nvml.nvmlDeviceGetRetiredPages(handle, cause)) for cause in (0, 1))


def _clocks(nvml: Any, handle: Any) -> int:
    # The same numbers under the name that drivers and libraries before 2023 know.
    try:
        return int(nvml.nvmlDeviceGetCurrentClocksEventReasons(handle))
    except (AttributeError, nvml.NVMLError_FunctionNotFound):
        return int(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))


def _fabric(nvml: Any, handle: Any) -> int:
    info = nvml.c_nvmlGpuFabricInfo_v3_t()
    nvml.nvmlDeviceGetGpuFabricInfoV(handle, byref(info))
    return int(info.healthSummary)


def _inforom(nvml: Any, handle: Any) -> bool:
    try:
        nvml.nvmlDeviceValidateInforom(handle)
    except nvml.NVMLError as e:
        if e.value == CORRUPTED_INFOROM:
            return False
        raise
    return True


def call(function: str, *args: Any) -> Callable[[Any, Any], Any]:
    """Give a question that one function answers."""
    return lambda nvml, handle: getattr(nvml, function)(handle, *args)


Ask = Callable[[Any, Any], Any]

OFTEN: tuple[tuple[tuple[str, ...], str, Ask], ...] = (
    ((Name.ECC_UNCORRECTED,), "ECC", call("nvmlDeviceGetTotalEccErrors", UNCORRECTED, VOLATILE)),
    ((Name.ECC_CORRECTED_DRAM,), "ECC", call("nvmlDeviceGetMemoryErrorCounter", CORRECTED, VOLATILE, DRAM)),
    ((Name.ECC_CORRECTED_SRAM,), "ECC", call("nvmlDeviceGetMemoryErrorCounter", CORRECTED, VOLATILE, SRAM)),
    ((Name.SRAM_THRESHOLD,), "SRAM status", _sram_threshold),
    ((Name.REMAPPED_ROWS, Name.REMAP_PENDING, Name.REMAP_FAILED), "remapped rows", _rows),
    ((Name.RETIRED_PAGES,), "retired pages", _retired),
    ((Name.TEMPERATURE,), "temperature", call("nvmlDeviceGetTemperature", 0)),
    ((Name.MARGIN,), "temperature margin", call("nvmlDeviceGetMarginTemperature")),
    ((Name.CLOCKS_REASONS,), "clocks reasons", _clocks),
    ((Name.PCIE_REPLAYS,), "PCIe replays", call("nvmlDeviceGetPcieReplayCounter")),
    ((Name.PCIE_GENERATION,), "PCIe generation", call("nvmlDeviceGetCurrPcieLinkGeneration")),
    ((Name.PCIE_WIDTH,), "PCIe width", call("nvmlDeviceGetCurrPcieLinkWidth")),
    ((Name.FABRIC,), "fabric", _fabric),
)
"""Names, what is asked for in words, and how; every interval."""

SELDOM: tuple[tuple[tuple[str, ...], str, Ask], ...] = (
    ((Name.REMAP_EXHAUSTED,), "row remapper histogram", _exhausted),
    ((Name.TEMPERATURE_SHUTDOWN,), "temperature threshold", call("nvmlDeviceGetTemperatureThreshold", 0)),
    ((Name.TEMPERATURE_MAX,), "temperature threshold", call("nvmlDeviceGetTemperatureThreshold", 3)),
    ((Name.MEMORY_TEMPERATURE_MAX,), "temperature threshold", call("nvmlDeviceGetTemperatureThreshold", 2)),
    ((Name.PCIE_WIDTH_MAX,), "PCIe width", call("nvmlDeviceGetMaxPcieLinkWidth")),
    ((Name.INFOROM,), "InfoROM", _inforom),
)
"""What hardly changes, or takes long (the InfoROM is read from flash): once a minute."""

FIELDS: tuple[tuple[str, int, bool], ...] = (
    (Name.RECOVERY_ACTION, 230, False),
    (Name.MEMORY_TEMPERATURE, 82, False),
    (Name.MARGIN_SHUTDOWN, 193, True),
    (Name.MARGIN_MAX, 196, True),
)
"""Names, fields of `nvmlDeviceGetFieldValues` and whether their value is signed."""

BER_FIELD = 220
"""Effective bit errors of a link a bit, packed; of NVLink 5 and later."""

COUNTERS = ((Name.NVLINK_REPLAY, 0), (Name.NVLINK_RECOVERY, 1), (Name.NVLINK_CRC, 2))
"""Errors of a link, and their number (nvml.h, nvmlNvLinkErrorCounter_t)."""


def bit_error_rate(packed: int) -> float:
    """Unpack a bit error rate: four bits that ten to the minus the lower eight multiplies (DCGM, NvmlBerParser)."""
    return float(packed >> 8 & 0xF) * 10.0 ** -(packed & 0xFF)


def by_uuid(nvml: Any, uuid: str) -> Any:
    """Give the handle of a device; libraries of other years want bytes."""
    try:
        return nvml.nvmlDeviceGetHandleByUUID(uuid)
    except TypeError:
        return nvml.nvmlDeviceGetHandleByUUID(uuid.encode())


def plain(value: Any) -> object:
    """Give a value that can travel; libraries of other years answer with bytes."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return value if isinstance(value, bool | int | float | str) else str(value)
