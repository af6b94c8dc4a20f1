"""The probe process of a worker: reads its device through NVML, the kernel log and the host, one JSON object a line.

It is run by path, as a script, and imports of the package only what needs nothing else: so it is up in a fraction of a
second, and small. It says

- which device it is about, ``{"uuid", "name", "memory" (bytes), "own", "driver"}``, or ``{"none": reason}``;
- at the end of every round, each half second, ``{"round": true, "utilization": percent, "used": bytes}``, null for what
  the device does not tell, or ``{"round": true, "error": reason, "code": of NVML}``;
- every interval, and at once for what the driver reports, ``{"probe": name, "readings": [[name, value, text, own]]}``;
- ``{"error": reason, "code": of NVML}`` where it cannot be told which device it is;
- ``{"hung": what is asked for, "seconds": how long}`` once a second while a call hangs.

It is told, one JSON object a line, ``{"interval", "kernel_log", "disk", "uuid"}``; it waits for the first line, which
names the device if that is known: where one is lost, an index means another one. It ends with its parent.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any
from uuid import UUID

if __name__ == "__main__":
    # The package without its own imports: those of Dask and NumPy would make this process ten times as large.
    sys.modules["dask_resilient"] = _package = ModuleType("dask_resilient")
    _package.__path__ = [str(Path(__file__).parents[1])]

from dask_resilient.core.kernel_log import bus_id
from dask_resilient.core.readings import Name
from dask_resilient.probes import host, kernel_log
from dask_resilient.probes.nvml import GONE, NOT_LISTED, Nvml
from dask_resilient.probes.nvml_table import by_uuid, plain

INTERVAL = 0.5
"""Seconds between two readings of what Dask shows: that of its own system monitor."""

SELDOM = 60.0
"""Seconds between two readings of what hardly changes."""

AT_ONCE = 1.0
"""Least seconds between two readings for what the driver reports: it may report a flood."""

HUNG = 1.0
"""Seconds that a call takes before it is said which one it is, and between two such words."""

NOT_TOLD = frozenset({2, 3, 4, 13})
"""What NVML returns for what it will not tell later either: it does not take the question, here or at all."""

DRIVER_SECONDS = 15
"""Longest that the CUDA driver is waited for; starting it up on a host with many GPUs can take seconds."""

_options: dict[str, Any] = {"interval": 5.0, "kernel_log": "/dev/kmsg", "disk": None, "uuid": None}
_anew = threading.Event()
_none: list[str] = []
"""Why there is no device, once that is certain."""
_saying = threading.Lock()
_doing: tuple[str, float] | None = None


def main() -> None:
    """Print the device, then its readings."""
    parent = os.getppid()
    _take(sys.stdin.buffer.readline())
    threading.Thread(target=_obey, daemon=True).start()
    threading.Thread(target=_watch, daemon=True).start()
    _loop(parent)


def _loop(parent: int) -> None:
    """Read for ever; without a device the host alone."""
    device, log, next_sweep, next_full, full = _find(), None, 0.0, 0.0, False
    # A child that the parent forked may hold our standard input open when the parent is gone.
    while os.getppid() == parent:
        begin = time.monotonic()
        if _anew.is_set():
            # Whoever set options has just begun to listen.
            _anew.clear()
            next_sweep = next_full = 0.0
        sweep = begin >= next_sweep
        if sweep:
            next_sweep = begin + _options["interval"]
            _tell("host", host.rows(parent, _options["disk"]))
        if sweep and device is None and not _none:
            device = _find()
        if device is not None:
            if sweep:
                full = begin >= next_full
                next_full = begin + SELDOM if full else next_full
                for rows in device.sweep(full=full):
                    _tell("nvml", rows)
            log = _open_log(log, device.bus, parent, again=sweep and full)
            _tell(kernel_log.NAME, [*log.read(), *([log.state()] if sweep else ())])
            happened, at_once = device.wait(INTERVAL)
            _tell("nvml", happened)
            next_sweep = min(next_sweep, begin + AT_ONCE) if at_once else next_sweep
        _state(device)
        time.sleep(max(0.0, min(begin + INTERVAL, next_sweep) - time.monotonic()))


def _state(device: Nvml | None) -> None:
    """End a round with what Dask shows; a device that is gone is said at once, not with the next sweep."""
    try:
        _say(round=True, **(device.state() if device is not None else {}))
    except Exception as e:
        code = int(getattr(e, "value", 0))
        if code in GONE:
            _tell("nvml", [(Name.NVML_RETURN, code, "")])
        _say(round=True, error=str(e), code=code)


def _open_log(log: kernel_log.KernelLog | None, bus: str, pid: int, *, again: bool) -> kernel_log.KernelLog:
    path = _options["kernel_log"]
    if log is not None and log.path == path and not (again and log.reason):
        return log
    if log is not None:
        log.close()
    return kernel_log.KernelLog(path, bus, pid)


# -- which device ------------------------------------------------------------------------------------------------------


def _find() -> Nvml | None:
    """Print which device it is, or why there is none, and give what reads it; an error may pass."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and not visible.strip():
        _no_device("CUDA_VISIBLE_DEVICES is empty")
        return None
    try:
        import pynvml
    except ImportError:
        _no_device("pynvml is not installed")
        return None
    known = _options["uuid"]
    try:
        with _during("starting NVML"):
            pynvml.nvmlInit()
        with _during("finding the device"):
            handle = _handle(pynvml, known or (visible or "0").split(",")[0].strip())
            uuid = str(plain(pynvml.nvmlDeviceGetUUID(handle)))
            bus = str(plain(_told(pynvml, pynvml.nvmlDeviceGetPciInfo, _whole(pynvml, handle, uuid), "busId")))
            name = plain(_told(pynvml, pynvml.nvmlDeviceGetName, handle)) or "unknown"
            memory = _told(pynvml, pynvml.nvmlDeviceGetMemoryInfo, handle, "total")
            driver = _driver(pynvml)
    except pynvml.NVMLError_LibraryNotFound as e:
        _no_device(f"NVML: {e}")
        return None
    except Exception as e:
        code = int(getattr(e, "value", 0))
        if known and code in NOT_LISTED:
            _tell("nvml", [(Name.PRESENT, False, "")])
        _say(error=str(e), code=code)
        return None
    _say(uuid=uuid, name=name, memory=memory, own=visible is not None, driver=driver)
    return Nvml(pynvml, handle, uuid, bus_id(bus), _during)


def _no_device(reason: str) -> None:
    _none.append(reason)
    _say(none=reason)


def _handle(nvml: Any, first: str) -> Any:
    """Give NVML's handle of the first visible device; raises `ValueError` if it cannot be told which that is.

    Its number is CUDA's, whose order differs from NVML's unless CUDA_DEVICE_ORDER says so: hence the driver is asked.
    """
    if first.startswith(("GPU-", "MIG-")):
        return by_uuid(nvml, first)
    uuid = _ask_driver()
    for prefix in ("GPU-", "MIG-") if uuid else ():
        try:
            return by_uuid(nvml, f"{prefix}{uuid}")
        except nvml.NVMLError_NotFound:
            continue
    same_order = os.environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID" or nvml.nvmlDeviceGetCount() == 1
    if not same_order:
        raise ValueError("the CUDA driver does not say which device it counts first")
    return nvml.nvmlDeviceGetHandleByIndex(int(first))


def _whole(nvml: Any, handle: Any, uuid: str) -> Any:
    """Give the handle of the GPU of a MIG slice: the kernel log names that."""
    if uuid.startswith("MIG-"):
        with suppress(nvml.NVMLError, AttributeError):
            return nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle)
    return handle


def _ask_driver() -> str | None:
    """Ask CUDA for the UUID of its device 0, in a process that ends with the answer: it would hold the device open."""
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        import signal

        signal.alarm(DRIVER_SECONDS)
        os.write(send, _driver_uuid())
        os._exit(0)
    os.close(send)
    raw = os.read(receive, 16)
    os.close(receive)
    os.waitpid(child, 0)
    return str(UUID(bytes=raw)) if len(raw) == 16 else None  # noqa: PLR2004 - bytes of a UUID


def _driver_uuid() -> bytes:
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return b""
    device, raw = ctypes.c_int(), ctypes.create_string_buffer(16)
    ask = getattr(cuda, "cuDeviceGetUuid_v2", cuda.cuDeviceGetUuid)
    failed = cuda.cuInit(0) or cuda.cuDeviceGet(ctypes.byref(device), 0) or ask(raw, device)
    return b"" if failed else raw.raw


def _driver(nvml: Any) -> dict[str, str]:
    """Give the versions of the driver, of NVML, and of the CUDA that the driver can do."""
    said = {}
    for what, ask in (("driver", "nvmlSystemGetDriverVersion"), ("NVML", "nvmlSystemGetNVMLVersion")):
        with suppress(nvml.NVMLError):
            said[what] = str(plain(getattr(nvml, ask)()))
    with suppress(nvml.NVMLError):
        version = int(nvml.nvmlSystemGetCudaDriverVersion())
        said["CUDA of the driver"] = f"{version // 1000}.{version % 1000 // 10}"
    return said


def _told(nvml: Any, ask: Any, handle: Any, field: str = "") -> Any:
    """Ask for something that not every device tells."""
    try:
        answer = ask(handle)
    except nvml.NVMLError as e:
        if e.value not in NOT_TOLD:
            raise
        return None
    return getattr(answer, field) if field else answer


# -- saying ------------------------------------------------------------------------------------------------------------


def _tell(probe: str, rows: Iterable[tuple[Any, ...]]) -> None:
    """Print the readings of a probe, if there are any."""
    if readings := [[*row, *(None,) * (4 - len(row))] for row in rows]:
        _say(probe=probe, readings=readings)


def _say(**fields: Any) -> None:
    with _saying:
        print(json.dumps(fields), flush=True)  # noqa: T201 - the pipe to the parent


@contextmanager
def _during(call: str) -> Iterator[None]:
    """Remember what is asked for, in case that it hangs."""
    global _doing  # noqa: PLW0603 - one call at a time, and one thread that watches it
    _doing = (call, time.monotonic())
    try:
        yield
    finally:
        _doing = None


def _watch() -> None:
    """Say which call hangs; also a sign that this process gets to run."""
    while True:
        time.sleep(HUNG)
        doing = _doing
        if doing is not None and time.monotonic() - doing[1] > HUNG:
            _say(hung=doing[0], seconds=round(time.monotonic() - doing[1], 1))


def _obey() -> None:
    """Take options, and end when the other end of standard input is closed, also while a call into NVML hangs."""
    for line in sys.stdin.buffer:
        _take(line)
    os._exit(0)


def _take(line: bytes) -> None:
    with suppress(ValueError):
        _options.update(json.loads(line))
        _anew.set()


if __name__ == "__main__":
    main()
