"""What NVML says of one device: all readings in sweeps, and events as they come. Runs in the probe process only.

Questions of which the driver or the library knows nothing are unknown, with the reason, and hide no other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

from dask_resilient.core.nvml import GPU_IS_LOST, RESET_REQUIRED
from dask_resilient.core.nvml import reason as nvml_reason
from dask_resilient.core.readings import Name
from dask_resilient.probes.nvml_table import (
    BER_FIELD,
    COUNTERS,
    FIELDS,
    LINKS,
    OFTEN,
    SELDOM,
    Ask,
    bit_error_rate,
    by_uuid,
    call,
    plain,
)

Row = tuple[str, object, str]
"""Name, value (None = unknown), and why it is unknown."""

Doing = Callable[[str], AbstractContextManager[None]]
"""Says which call is under way, so that one that hangs can be named."""

OLD = "pynvml is older than the question"
NOT_SUPPORTED, TIMEOUT = 3, 10
NOT_LISTED = frozenset({6, 28})
"""What a device that NVML does not list is answered with: not found."""
GONE = frozenset({GPU_IS_LOST, RESET_REQUIRED})

EVENTS = 0x2 | 0x8 | 0x200 | 0x400 | 0x800 | 0x1000 | 0x2000 | 0x4000 | 0x8000
"""Double-bit error, XID, single-bit storm, retirement and its failure, poison twice, unavailable, recovery action."""
XID_EVENT = 0x8
MOST_EVENTS = 100
"""Events that are taken at once, so that a flood keeps nothing waiting."""


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
        self._code = 0
        self._events: Any = None
        self._no_xids = ""
        self._links: set[int] = set()

    # -- sweeps ------------------------------------------------------------------------------------------------------

    def sweep(self, *, full: bool) -> Iterator[list[Row]]:
        """Give all readings, those of each question as soon as they are there; some only in a full sweep.

        What was read is told before the next call: that one may never come back.
        """
        known = gone = False
        if full and self._events is None:
            self._register()
        self._code = 0
        for rows in self._questions(full=full):
            yield rows
            # That the device is listed does not mean that it answers.
            known = known or any(value is not None and name != Name.PRESENT for name, value, _ in rows)
            if self._code in GONE and not gone:
                gone = True
                yield [(Name.NVML_RETURN, self._code, "")]
        if self._no_xids:
            yield [(Name.XID, None, self._no_xids)]
        # Where nothing at all could be read, the reason is that of the whole device.
        yield [(Name.NVML_RETURN, self._code if gone or not known else 0, "")]

    def _questions(self, *, full: bool) -> Iterator[list[Row]]:
        yield [self._present()]
        for names, words, ask in (*OFTEN, *(SELDOM if full else ())):
            yield self._asked(names, words, ask)
        yield self._fields()
        if full:
            self._find_links()
        if self._links:
            yield from self._nvlinks()

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

    # -- questions ---------------------------------------------------------------------------------------------------

    def _asked(self, names: tuple[str, ...], words: str, ask: Ask) -> list[Row]:
        value, reason = self._ask(words, ask)
        if reason:
            return [(name, None, reason) for name in names]
        values = value if isinstance(value, tuple) else (value,)
        return [(name, plain(each), "") for name, each in zip(names, values, strict=False)]

    def _ask(self, words: str, ask: Ask) -> tuple[Any, str]:
        """Give an answer, or why there is none."""
        try:
            with self._doing(words):
                return ask(self._nvml, self._handle), ""
        except self._nvml.NVMLError as e:
            return None, self._reason(int(e.value))
        except AttributeError:
            return None, OLD
        except Exception as e:
            return None, f"pynvml: {e!r}"

    def _reason(self, code: int) -> str:
        """Give the words of what a call returned; a device that is gone is remembered."""
        if self._code not in GONE:
            self._code = code
        return nvml_reason(code)

    def _present(self) -> Row:
        handle, reason = self._ask("handle by UUID", lambda nvml, _: by_uuid(nvml, self._uuid))
        if not reason:
            self._handle = handle
            return Name.PRESENT, True, ""
        return (Name.PRESENT, False, "") if self._code in NOT_LISTED else (Name.PRESENT, None, reason)

    def _values(self, words: str, fields: list[Any]) -> list[tuple[Any, str]]:
        """Ask for fields in one call; it succeeds also where a field of it does not."""
        values, reason = self._ask(words, call("nvmlDeviceGetFieldValues", fields))
        if reason:
            return [(None, reason)] * len(fields)
        return [(v.value, self._reason(int(v.nvmlReturn)) if v.nvmlReturn else "") for v in values]

    def _fields(self) -> list[Row]:
        rows: list[Row] = []
        values = self._values("field values", [field for _, field, _ in FIELDS])
        for (name, _, signed), (value, reason) in zip(FIELDS, values, strict=True):
            rows.append((name, None if reason else int(value.siVal if signed else value.uiVal), reason))
        return rows

    # -- links -------------------------------------------------------------------------------------------------------

    def _nvlinks(self) -> Iterator[list[Row]]:
        links = sorted(self._links)
        for link in links:
            yield self._asked((f"{Name.NVLINK_STATE}.{link}",), "NVLink", call("nvmlDeviceGetNvLinkState", link))
            for name, counter in COUNTERS:
                ask = call("nvmlDeviceGetNvLinkErrorCounter", link, counter)
                yield self._asked((f"{name}.{link}",), "NVLink errors", ask)
        values = self._values("bit errors of NVLinks", [(BER_FIELD, link) for link in links])
        yield [
            (f"{Name.NVLINK_BER}.{link}", None if reason else bit_error_rate(int(value.ullVal)), reason)
            for link, (value, reason) in zip(links, values, strict=True)
        ]

    def _find_links(self) -> None:
        for link in range(LINKS):
            code = self._code
            if not self._ask("NVLink", call("nvmlDeviceGetNvLinkState", link))[1]:
                self._links.add(link)
            elif self._code not in GONE:
                self._code = code  # that a link does not exist is no news about the device

    # -- events ------------------------------------------------------------------------------------------------------

    def _register(self) -> None:
        def ask(nvml: Any, handle: Any) -> tuple[Any, int]:
            known = int(nvml.nvmlDeviceGetSupportedEventTypes(handle))
            events = nvml.nvmlEventSetCreate()
            try:
                nvml.nvmlDeviceRegisterEvents(handle, EVENTS & known, events)
            except nvml.NVMLError:
                nvml.nvmlEventSetFree(events)
                raise
            return events, known

        answer, self._no_xids = self._ask("registering for events", ask)
        self._events, known = answer or (None, XID_EVENT)
        if not known & XID_EVENT:
            self._no_xids = nvml_reason(NOT_SUPPORTED)

    def wait(self, seconds: float) -> tuple[list[Row], bool]:
        """Wait for events.

        Returns
        -------
        Readings of what came, and whether the whole state is to be read at once. Where events cannot be waited for,
        nothing comes, at once.
        """
        rows: dict[Row, None] = {}
        for _ in range(MOST_EVENTS if self._events is not None else 0):
            left = 0 if rows else int(1000 * seconds)
            try:
                with self._doing("waiting for events"):
                    event = self._nvml.nvmlEventSetWait_v2(self._events, left)
            except self._nvml.NVMLError as e:
                if e.value in GONE:
                    return [*rows, (Name.NVML_RETURN, int(e.value), "")], bool(rows)
                if e.value != TIMEOUT:
                    self._events, self._no_xids = None, self._reason(int(e.value))
                break
            except AttributeError:
                self._events, self._no_xids = None, OLD
                break
            rows[_event(int(event.eventType), int(event.eventData))] = None
        return list(rows), bool(rows)


def _event(kind: int, data: int) -> Row:
    return (Name.XID, data, "") if kind == XID_EVENT else (f"{Name.EVENT}.{kind:#x}", kind, "")
