"""The device of this process, and what its probe process read last.

NVML is called in a process of its own: a call that hangs then stalls nothing. A probe process that falls silent is
killed and replaced with growing delay, and what it would have read is unknown meanwhile.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import select
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import monotonic
from typing import Any

logger = logging.getLogger("dask_resilient")

COMMAND = (sys.executable, "-P", str(Path(__file__).with_name("gauge.py")))

SILENCE = 5.0
"""Seconds without a line after which a probe process is taken for hung: ten of its intervals."""

PATIENCE = 30.0
"""Seconds that a probe process has for its first line: more than it gives the CUDA driver."""

STALE = 3.0
"""Seconds after which a reading no longer counts as the present state."""

FIRST_DELAY, LONGEST_DELAY = 1.0, 60.0
"""Seconds before a probe process is replaced: doubled as long as none of them gets to a reading."""


@dataclass(frozen=True, slots=True)
class Device:
    """Which GPU a process computes on."""

    uuid: str
    """As NVML and ``nvidia-smi -L`` write it: the same under any index, process, port or name."""
    name: str
    memory: int | None
    """Bytes."""
    own: bool
    """Whether CUDA_VISIBLE_DEVICES gave it to the process; else every process of the host sees it, also those that
    never compute on it."""

    def to_dict(self) -> dict[str, Any]:
        """Give plain types for the wire."""
        return asdict(self)


class Gauge:
    """Keeps one probe process alive, and what it said.

    Parameters
    ----------
    command
        Starts the probe process.
    silence, patience, first_delay
        Seconds; see `SILENCE`, `PATIENCE` and `FIRST_DELAY`.
    """

    def __init__(
        self,
        command: Sequence[str] = COMMAND,
        silence: float = SILENCE,
        patience: float = PATIENCE,
        first_delay: float = FIRST_DELAY,
    ) -> None:
        self.device: Device | None = None
        self.reason = "its probe process has not answered yet"
        """Why the device, or its present state, is unknown; empty if neither is."""
        self._command = command
        self._silence = silence
        self._patience = patience
        self._first_delay = first_delay
        self._none = False
        self._last: tuple[float, Any, Any] = (-math.inf, None, None)
        self._told: list[Callable[[Device], None]] = []
        self._lock = threading.Lock()
        self._known = threading.Event()
        self._stop = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._run, name="dask-resilient-gauge", daemon=True)

    # -- questions ---------------------------------------------------------------------------------------------------

    def wait(self, seconds: float) -> Device | None:
        """Wait until the device is known, or it is known that there is none; blocks."""
        self._known.wait(seconds)
        return self.device

    def tell(self, told: Callable[[Device], None]) -> None:
        """Call back with the device, now or from the gauge's thread as soon as it is known."""
        with self._lock:
            device = self.device
            if device is None:
                self._told.append(told)
        if device is not None:
            told(device)

    def real_time(self) -> dict[str, Any]:
        """Give the present state in the form of Dask's own NVML module; what is unknown is None, memory NaN.

        NaN, because Dask's GPU page computes with it: None would break the page for every worker.
        """
        at, utilization, used = self._last
        if monotonic() - at > STALE:
            return {"utilization": None, "memory-used": math.nan}
        return {"utilization": utilization, "memory-used": math.nan if used is None else used}

    # -- life --------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the probe process and its reader."""
        self._thread.start()

    def stop(self) -> None:
        """End both; does not wait for them."""
        self._stop.set()
        process = self._process
        if process is not None:
            process.kill()

    def _run(self) -> None:
        delay = self._first_delay
        while not self._over():
            before = self._last
            try:
                self._serve()
            except Exception as e:
                self._unknown(f"its probe process cannot be started: {e!r}")
            if self._over():
                break
            if self._last is not before:
                delay = self._first_delay
            self._stop.wait(delay)
            delay = min(2 * delay, LONGEST_DELAY)

    def _over(self) -> bool:
        return self._none or self._stop.is_set()

    def _serve(self) -> None:
        """Read what one probe process says until it ends, or falls silent."""
        process = self._process = subprocess.Popen(  # noqa: S603 - a command of our own
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        assert process.stdout is not None
        assert process.stdin is not None
        fd, rest, patience, complained = process.stdout.fileno(), b"", self._patience, False
        poll = select.poll()  # `select.select` knows the first 1,024 files of a process only
        poll.register(fd, select.POLLIN)
        try:
            while not self._stop.is_set():
                if not poll.poll(1000 * patience):
                    self._unknown(f"its probe process has said nothing for {patience:g} s: NVML hangs")
                    return
                patience = self._silence
                data = os.read(fd, 65536)
                if not data:
                    if not complained:
                        self._unknown("its probe process ended")
                    return
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    said = json.loads(line)
                    complained = "error" in said
                    self._hear(said)
        finally:
            process.kill()
            process.stdin.close()
            process.stdout.close()
            # A process that hangs inside the driver ends when the driver lets go of it, and nobody waits for that.
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(1)

    def _hear(self, said: dict[str, Any]) -> None:
        if "none" in said:
            logger.warning("dask-resilient: the GPU of this process cannot be watched: %s", said["none"])
            self._none, self.reason = True, str(said["none"])
            self._known.set()
        elif "error" in said:
            self._unknown(f"NVML: {said['error']}")
        elif "uuid" in said:
            self._identified(Device(said["uuid"], said["name"], said["memory"], said["own"]))
        else:
            self.reason = ""
            self._last = (monotonic(), said["utilization"], said["used"])

    def _identified(self, device: Device) -> None:
        with self._lock:
            self.device = device
            told, self._told = self._told, []
        self._known.set()
        for callback in told:
            callback(device)

    def _unknown(self, reason: str) -> None:
        if not self._stop.is_set() and not self._none and reason != self.reason:
            logger.warning("dask-resilient: the state of the GPU of this process is unknown: %s", reason)
        if not self._none:
            self.reason = reason


_lock = threading.Lock()
_shared: list[Gauge] = []
_users = 0


def acquire() -> Gauge:
    """Give the gauge of this process: one serves all that runs in it. Call `release` once for it."""
    global _users  # noqa: PLW0603 - a process computes on one device
    with _lock:
        if not _shared:
            gauge = Gauge()
            gauge.start()
            _shared.append(gauge)
        _users += 1
        return _shared[0]


def release() -> None:
    """Stop the gauge when nobody needs it any more."""
    global _users  # noqa: PLW0603
    with _lock:
        _users -= 1
        if not _users:
            _shared.pop().stop()
