"""The values of a worker, looked at where they are: on its device, in host memory or on disk.

``worker.data[key]`` of dask-cuda's ``DeviceHostFile`` moves a spilled value back to the device and pushes others out,
and that of Dask's own ``SpillBuffer`` does the same between memory and disk. Here nothing moves, and no order of use
changes. Neither class is imported: what they are made of is recognised by its attributes.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

__all__ = ["ask_for_room", "make_room", "off_device", "peek"]

_LOOKS = 3
"""A value that moves on between two places may be missed in a look at both."""


def off_device(data: Any) -> frozenset[Any] | None:
    """Give the keys of the values that a ``DeviceHostFile`` has in host memory or on disk; None for any other `data`.

    To be called on the event loop of the worker, where its values move.
    """
    if not hasattr(data, "device_buffer"):
        return None
    return frozenset(key for level in _levels(data.host_buffer) for key in level)


def peek(data: Any, key: Any, *, device: bool = True) -> Any:
    """Give a value as it is kept: what dask-cuda has spilled comes as its ``DeviceSerialized``. May read from disk.

    Parameters
    ----------
    data
        ``worker.data``: a dict, a ``SpillBuffer``, or a ``DeviceHostFile``.
    key
        Key of the value.
    device
        Whether it may be on the device.

    Raises
    ------
    KeyError
        If the worker does not have it, or not there.
    """
    places = _places(data) if device else _levels(data.host_buffer)
    for _ in range(_LOOKS):
        for place in places:
            try:
                return place[key]
            except KeyError:
                continue
    raise KeyError(key)


def _places(data: Any) -> list[Mapping[Any, Any]]:
    if hasattr(data, "device_buffer"):
        return [data.others, *_levels(data.device_buffer)[:1], *_levels(data.host_buffer)]
    return _levels(data)


def _levels(buffer: Any) -> list[Mapping[Any, Any]]:
    """Give the mappings that a ``zict.Buffer`` is made of; of its fast one what lies below its order of use."""
    return [buffer.fast.d, buffer.slow] if hasattr(buffer, "slow") else [buffer]


def make_room(data: Any, nbytes: int) -> None:
    """Let a ``DeviceHostFile`` spill until a value of so many bytes fits under its limit of device memory.

    A load calls this before it allocates, so that a worker that is full does not pass its limit by what it restores. It
    spills what putting the value into `data` would spill a moment later: the values that are longest out of use. Any
    other `data`, and one without a limit, is left alone; a value larger than the limit empties the device and then
    passes the limit by itself, until it is put into `data` and spilled, as the result of any task.

    To be called on the event loop of the worker, where all its values move.

    Parameters
    ----------
    data
        ``worker.data``.
    nbytes
        Device memory that is about to be taken.
    """
    buffer = getattr(data, "device_buffer", None)
    if buffer is not None and hasattr(buffer, "evict_until_below_target"):
        buffer.evict_until_below_target(max(0, buffer.n - nbytes))


def ask_for_room(worker: Any, nbytes: int, seconds: float) -> None:
    """Have `make_room` run on the event loop of a worker, and wait for it; called inside a task.

    Whatever comes of it, the caller may go on: without room it passes the limit as any task may.
    """
    done = threading.Event()

    def make() -> None:
        try:
            make_room(worker.data, nbytes)
        finally:
            done.set()

    worker.loop.add_callback(make)
    done.wait(seconds)
