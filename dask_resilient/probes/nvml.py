"""What NVML says of one device, as a table: one row a reading, each asked for alone.

This runs in the probe process only. Rows of which the driver knows nothing are unknown, with the reason, and hide no
other. Numbers are those of nvml.h (NVML 13).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from ctypes import byref, c_uint
from typing import Any

from dask_resilient.core.nvml import GPU_IS_LOST, NVML_REASONS, RESET_REQUIRED
from dask_resilient.core.readings import Name

Row = tuple[str, object, str]
"""Name, value (None = unknown), and why it is unknown."""

Doing = Callable[[str], AbstractContextManager[None]]
"""Says which call is under way, so that one that hangs can be named."""

TOO_OLD = NVML_REASONS[13]
NOT_FOUND, TIMEOUT, CORRUPTED_INFOROM, GPU_NOT_FOUND = 6, 10, 14, 28
GONE = frozenset({GPU_IS_LOST, RESET_REQUIRED})

CORRECTED, UNCORRECTED, VOLATILE, DRAM, SRAM = 0, 1, 0, 2, 7
LINKS = 18
"""NVLinks that a device can have (nvml.h, NVML_NVLINK_MAX_LINKS)."""

EVENTS = 0x2 | 0x8 | 0x200 | 0x400 | 0x800 | 0x1000 | 0x2000 | 0x4000 | 0x8000
"""Double-bit error, XID, single-bit storm, retirement and its failure, poison twice, unavailable, recovery action."""
XID_EVENT, RECOVERY_EVENT = 0x8, 0x8000


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
    ask = getattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons", None)
    return int((ask or nvml.nvmlDeviceGetCurrentClocksThrottleReasons)(handle))


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


def _call(function: str, *args: int) -> Callable[[Any, Any], Any]:
    return lambda nvml, handle: getattr(nvml, function)(handle, *args)


Ask = Callable[[Any, Any], Any]

OFTEN: tuple[tuple[tuple[str, ...], str, Ask], ...] = (
    ((Name.ECC_UNCORRECTED,), "ECC", _call("nvmlDeviceGetTotalEccErrors", UNCORRECTED, VOLATILE)),
    ((Name.ECC_CORRECTED_DRAM,), "ECC", _call("nvmlDeviceGetMemoryErrorCounter", CORRECTED, VOLATILE, DRAM)),
    ((Name.ECC_CORRECTED_SRAM,), "ECC", _call("nvmlDeviceGetMemoryErrorCounter", CORRECTED, VOLATILE, SRAM)),
    ((Name.SRAM_THRESHOLD,), "SRAM status", _sram_threshold),
    ((Name.REMAPPED_ROWS, Name.REMAP_PENDING, Name.REMAP_FAILED), "remapped rows", _rows),
    ((Name.RETIRED_PAGES,), "retired pages", _retired),
    ((Name.TEMPERATURE,), "temperature", _call("nvmlDeviceGetTemperature", 0)),
    ((Name.MARGIN,), "temperature margin", _call("nvmlDeviceGetMarginTemperature")),
    ((Name.CLOCKS_REASONS,), "clocks reasons", _clocks),
    ((Name.PCIE_REPLAYS,), "PCIe replays", _call("nvmlDeviceGetPcieReplayCounter")),
    ((Name.PCIE_GENERATION,), "PCIe generation", _call("nvmlDeviceGetCurrPcieLinkGeneration")),
    ((Name.PCIE_WIDTH,), "PCIe width", _call("nvmlDeviceGetCurrPcieLinkWidth")),
    ((Name.FABRIC,), "fabric", _fabric),
)
"""Names, what is asked for in words, and how; every interval."""

SELDOM: tuple[tuple[tuple[str, ...], str, Ask], ...] = (
    ((Name.REMAP_EXHAUSTED,), "row remapper histogram", _exhausted),
    ((Name.TEMPERATURE_SHUTDOWN,), "temperature threshold", _call("nvmlDeviceGetTemperatureThreshold", 0)),
    ((Name.TEMPERATURE_MAX,), "temperature threshold", _call("nvmlDeviceGetTemperatureThreshold", 3)),
    ((Name.MEMORY_TEMPERATURE_MAX,), "temperature threshold", _call("nvmlDeviceGetTemperatureThreshold", 2)),
    ((Name.PCIE_WIDTH_MAX,), "PCIe width", _call("nvmlDeviceGetMaxPcieLinkWidth")),
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

COUNTERS = ((Name.NVLINK_REPLAY, 0), (Name.NVLINK_RECOVERY, 1), (Name.NVLINK_CRC, 2))
"""Errors of a link, and their number (nvml.h, nvmlNvLinkErrorCounter_t)."""


class Nvml:
    """Asks NVML about one device.

    Parameters
    ----------
    nvml
        The module pynvml, initialized.
    handle
        Of the device.
    uuid
        Of the device: handles are looked up anew by it, since indices move.
    bus
        Address of the device, see `core.kernel_log.bus_id`.
    doing
        Takes the words of what is asked for, before it is.
    """

    def __init__(self, nvml: Any, handle: Any, uuid: str, bus: str, doing: Doing) -> None:
        self._nvml, self._handle, self._uuid, self._doing = nvml, handle, uuid, doing
        self.bus = bus
        self._events, self._no_events = self._register()
        self._links: list[int] | None = None
        self._code = 0

    # -- sweeps ------------------------------------------------------------------------------------------------------

    def sweep(self, *, full: bool) -> Iterator[Row]:
        """Give all readings; those that hardly change only in a full sweep."""
        self._code = 0
        known = 0
        yield from self._present()
        for names, words, ask in (*OFTEN, *(SELDOM if full else ())):
            for row in self._asked(names, words, ask):
                known += row[1] is not None
                yield row
        for row in (*self._fields(), *self._nvlinks()):
            known += row[1] is not None
            yield row
        if self._events is None:
            yield Name.XID, None, self._no_events
        # Where nothing at all could be read, the reason is that of the whole device.
        yield Name.NVML_RETURN, self._code if self._code in GONE or not known else 0, ""

    def state(self) -> dict[str, Any]:
        """Give what Dask's own pages show: utilisation in percent and bytes in use; None is not told."""
        rates = self._told("utilisation", self._nvml.nvmlDeviceGetUtilizationRates)
        memory = self._told("memory", self._nvml.nvmlDeviceGetMemoryInfo)
        return {"utilization": getattr(rates, "gpu", None), "used": getattr(memory, "used", None)}

    def _told(self, words: str, ask: Callable[[Any], Any]) -> Any:
        """Ask for something that not every device tells: MIG slices have no utilisation."""
        with self._doing(words):
            try:
                return ask(self._handle)
            except self._nvml.NVMLError_NotSupported:
                return None

    def _asked(self, names: tuple[str, ...], words: str, ask: Ask) -> Iterator[Row]:
        try:
            with self._doing(words):
                value = ask(self._nvml, self._handle)
        except self._nvml.NVMLError as e:
            reason = self._reason(e)
            yield from ((name, None, reason) for name in names)
        except AttributeError:
            yield from ((name, None, "pynvml is older than the question") for name in names)
        except Exception as e:
            yield from ((name, None, f"pynvml: {e!r}") for name in names)
        else:
            values = value if isinstance(value, tuple) else (value,)
            yield from ((name, plain(each), "") for name, each in zip(names, values, strict=False))

    def _reason(self, error: Any) -> str:
        code = int(error.value)
        if self._code not in GONE:
            self._code = code
        return NVML_REASONS.get(code, f"NVML returned {code}")

    def _present(self) -> Iterator[Row]:
        try:
            with self._doing("handle by UUID"):
                self._handle = self._nvml.nvmlDeviceGetHandleByUUID(self._uuid)
        except self._nvml.NVMLError as e:
            if e.value in {NOT_FOUND, GPU_NOT_FOUND}:
                yield Name.PRESENT, False, ""
            else:
                yield Name.PRESENT, None, self._reason(e)
        else:
            yield Name.PRESENT, True, ""

    def _fields(self) -> Iterator[Row]:
        names = tuple(name for name, _, _ in FIELDS)
        ids = [field for _, field, _ in FIELDS]
        try:
            with self._doing("field values"):
                values = self._nvml.nvmlDeviceGetFieldValues(self._handle, ids)
        except self._nvml.NVMLError as e:
            reason = self._reason(e)
            yield from ((name, None, reason) for name in names)
            return
        for (name, _, signed), value in zip(FIELDS, values, strict=True):
            # The call succeeds also where a field of it does not.
            if value.nvmlReturn:
                yield name, None, NVML_REASONS.get(value.nvmlReturn, f"NVML returned {value.nvmlReturn}")
            else:
                yield name, int(value.value.siVal if signed else value.value.uiVal), ""

    # -- links -------------------------------------------------------------------------------------------------------

    def _nvlinks(self) -> Iterator[Row]:
        if self._links is None:
            self._links = list(self._find_links())
        for link in self._links:
            yield from self._asked((f"{Name.NVLINK_STATE}.{link}",), "NVLink", _call("nvmlDeviceGetNvLinkState", link))
            for name, counter in COUNTERS:
                ask = _call("nvmlDeviceGetNvLinkErrorCounter", link, counter)
                yield from self._asked((f"{name}.{link}",), "NVLink errors", ask)

    def _find_links(self) -> Iterator[int]:
        for link in range(LINKS):
            for _, value, _ in self._asked(("",), "NVLink", _call("nvmlDeviceGetNvLinkState", link)):
                if value is not None:
                    yield link

    # -- events ------------------------------------------------------------------------------------------------------

    def _register(self) -> tuple[Any, str]:
        nvml = self._nvml
        try:
            with self._doing("registering for events"):
                known = nvml.nvmlDeviceGetSupportedEventTypes(self._handle)
                events = nvml.nvmlEventSetCreate()
                nvml.nvmlDeviceRegisterEvents(self._handle, EVENTS & known, events)
        except nvml.NVMLError as e:
            return None, NVML_REASONS.get(e.value, f"NVML returned {e.value}")
        except AttributeError:
            return None, TOO_OLD
        return events, ""

    def wait(self, seconds: float) -> tuple[list[Row], bool]:
        """Wait for events.

        Returns
        -------
        Readings of what came, and whether the whole state is to be read at once. Where events cannot be waited for,
        nothing comes, at once.
        """
        nvml = self._nvml
        if self._events is None:
            return [], False
        try:
            with self._doing("waiting for events"):
                event = nvml.nvmlEventSetWait_v2(self._events, c_uint(int(1000 * seconds)).value)
        except nvml.NVMLError as e:
            if e.value in GONE:
                return [(Name.NVML_RETURN, int(e.value), "")], False
            if e.value != TIMEOUT:
                self._events, self._no_events = None, NVML_REASONS.get(e.value, f"NVML returned {e.value}")
            return [], False
        kind, data = int(event.eventType), int(event.eventData)
        if kind == XID_EVENT:
            return [(Name.XID, data, "")], True
        return [(f"{Name.EVENT}.{kind:#x}", kind, "")], True


def plain(value: Any) -> object:
    """Give a value that can travel; libraries of other years answer with bytes."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return value if isinstance(value, bool | int | float | str) else str(value)
