"""The probe process: reads one device through NVML and prints what it reads, one JSON object a line.

It is run by path, as a script, and imports nothing of the package: so it is up in a fraction of a second, and small.
Its first line says which device it is about, ``{"uuid": ..., "name": ..., "memory": bytes, "own": bool}``, or why there
is none, ``{"none": reason}``. Then comes a line an interval, ``{"utilization": percent, "used": bytes}``, null for what
the device does not tell, or ``{"error": reason}``. It ends with the process that started it.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import threading
import time
from typing import Any
from uuid import UUID

INTERVAL = 0.5
"""Seconds between two readings: that of Dask's own system monitor."""

DRIVER_SECONDS = 20
"""Longest that the CUDA driver is waited for; starting it up on a host with many GPUs can take seconds."""


def main() -> None:
    """Print the device, then its readings."""
    parent = os.getppid()
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    found = _find()
    if found is None:
        return
    pynvml, handle = found
    # A child that the parent forked may hold our standard input open when the parent is gone.
    while os.getppid() == parent:
        try:
            rates = _told(pynvml, pynvml.nvmlDeviceGetUtilizationRates, handle)
            memory = _told(pynvml, pynvml.nvmlDeviceGetMemoryInfo, handle)
            _say(utilization=getattr(rates, "gpu", None), used=getattr(memory, "used", None))
        except pynvml.NVMLError as e:
            _say(error=str(e))
        time.sleep(INTERVAL)


def _find() -> tuple[Any, Any] | None:
    """Print which device it is, or why there is none; give NVML and its handle of the device."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and not visible.strip():
        _say(none="CUDA_VISIBLE_DEVICES is empty")
        return None
    try:
        import pynvml
    except ImportError:
        _say(none="pynvml is not installed")
        return None
    try:
        pynvml.nvmlInit()
        handle = _handle(pynvml, (visible or "0").split(",")[0].strip())
        _say(
            uuid=_text(pynvml.nvmlDeviceGetUUID(handle)),
            name=_text(_told(pynvml, pynvml.nvmlDeviceGetName, handle)) or "unknown",
            memory=getattr(_told(pynvml, pynvml.nvmlDeviceGetMemoryInfo, handle), "total", None),
            own=visible is not None,
        )
    except pynvml.NVMLError_LibraryNotFound as e:
        _say(none=f"NVML: {e}")
    except (pynvml.NVMLError, ValueError) as e:
        _say(error=str(e))
    else:
        return pynvml, handle
    return None


def _handle(nvml: Any, first: str) -> Any:
    """Give NVML's handle of the first visible device; raises `ValueError` if it cannot be told which that is.

    Its number is CUDA's, whose order differs from NVML's unless CUDA_DEVICE_ORDER says so: hence the driver is asked.
    """
    if first.startswith(("GPU-", "MIG-")):
        return nvml.nvmlDeviceGetHandleByUUID(first)
    uuid = _ask_driver()
    for prefix in ("GPU-", "MIG-") if uuid else ():
        try:
            return nvml.nvmlDeviceGetHandleByUUID(f"{prefix}{uuid}")
        except nvml.NVMLError_NotFound:
            continue
    same_order = os.environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID" or nvml.nvmlDeviceGetCount() == 1
    if not same_order:
        raise ValueError("the CUDA driver does not say which device it counts first")
    return nvml.nvmlDeviceGetHandleByIndex(int(first))


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


def _told(nvml: Any, ask: Any, handle: Any) -> Any:
    """Ask for something that not every device tells: MIG slices have no utilisation."""
    try:
        return ask(handle)
    except nvml.NVMLError_NotSupported:
        return None


def _text(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value


def _say(**fields: Any) -> None:
    print(json.dumps(fields), flush=True)  # noqa: T201 - the pipe to the parent


def _leave_with_parent() -> None:
    """End when the other end of standard input is closed, also while a call into NVML hangs."""
    sys.stdin.buffer.read()
    os._exit(0)


if __name__ == "__main__":
    main()
