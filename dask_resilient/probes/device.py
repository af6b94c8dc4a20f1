"""The device of this process, and what its probe process read last.

NVML is called in a process of its own: a call that hangs then stalls nothing. A probe process that falls silent is
killed and replaced with growing delay, and what it would have read is unknown meanwhile.
"""

from __future__ import annotations

import json
import logging
import math
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import monotonic, time
from typing import Any

from dask_resilient.core.readings import Name, Reading
from dask_resilient.probes.process import FIRST_DELAY, PATIENCE, SILENCE, ProbeProcess, Silence

logger = logging.getLogger("dask_resilient")

COMMAND = (sys.executable, "-P", str(Path(__file__).with_name("gauge.py")))

STALE = 3.0
"""Seconds after which a reading no longer counts as the present state."""

OF_THE_GPU = frozenset({"nvml", "kernel-log"})
"""Probes whose readings are about the GPU; the others are about the host."""

Listener = Callable[[list[Reading]], None]


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
        Seconds; see `dask_resilient.probes.process`.
    """

    def __init__(
        self,
        command: Sequence[str] = COMMAND,
        silence: float = SILENCE,
        patience: float = PATIENCE,
        first_delay: float = FIRST_DELAY,
    ) -> None:
        self.device: Device | None = None
        self.driver: dict[str, str] = {}
        """Versions of the driver and of NVML, as far as they are known."""
        self.reason = "its probe process has not answered yet"
        """Why the device, or its present state, is unknown; empty if neither is."""
        self._none = False
        self._expected = False
        self._complained = False
        self._last: tuple[float, Any, Any] = (-math.inf, None, None)
        self._told: list[Callable[[Device], None]] = []
        self._listeners: list[Listener] = []
        self._failed: list[Listener] = []
        """Listeners that raised, which is told once."""
        self._options: dict[str, Any] = {}
        self._lock = threading.Lock()
        self._known = threading.Event()
        self._process = ProbeProcess(
            command,
            self._hear,
            silent=self._silent,
            ended=self._ended,
            greeting=lambda: [self._line()],
            silence=silence,
            patience=patience,
            first_delay=first_delay,
            name="dask-resilient-gauge",
        )

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

    def listen(self, listener: Listener) -> None:
        """Call back with readings, from the gauge's thread; their device is the GPU's UUID, empty for the host."""
        with self._lock:
            self._listeners.append(listener)

    def unlisten(self, listener: Listener) -> None:
        """Call back no more."""
        with self._lock:
            for listeners in (self._listeners, self._failed):
                if listener in listeners:
                    listeners.remove(listener)

    def configure(self, **options: Any) -> None:
        """Set options of the probe process: ``interval`` (s), ``kernel_log`` and ``disk`` (paths)."""
        self._options |= options
        self._process.tell(self._line())

    def expect(self) -> None:
        """Take in that Dask sees a GPU here: that none can be watched is then worth a warning."""
        self._expected = True
        if self._none:
            self._warn_of_none()

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
        self._process.start()

    def stop(self) -> None:
        """End both; does not wait for them."""
        self._process.stop()

    # -- what the process says ---------------------------------------------------------------------------------------

    def _line(self) -> bytes:
        device = self.device
        # A process that replaces another must find the same device, or say that it is gone.
        return json.dumps({**self._options, "uuid": device and device.uuid}).encode() + b"\n"

    def _hear(self, said: dict[str, Any]) -> bool:
        self._complained = "error" in said
        if "readings" in said:
            self._read(said["probe"], said["readings"])
        elif "none" in said:
            self._none, self.reason = True, str(said["none"])
            self._known.set()
            if self._expected:
                self._warn_of_none()
        elif "error" in said:
            self._unknown(f"NVML: {said['error']}")
            if self.device is not None and said.get("code") and "round" not in said:
                self._read("nvml", [[Name.NVML_RETURN, said["code"], "", None]])
        elif "uuid" in said:
            self.driver = dict(said.get("driver", {}))
            self._identified(Device(said["uuid"], said["name"], said["memory"], said["own"]))
        elif "utilization" in said:
            self.reason = ""
            self._last = (monotonic(), said["utilization"], said["used"])
        # Only a whole round shows that nothing hangs: each process that replaces another may get as far as that did.
        return "round" in said

    def _read(self, probe: str, rows: Iterable[Sequence[Any]]) -> None:
        uuid = self.device.uuid if self.device is not None and probe in OF_THE_GPU else ""
        now = time()
        self._pass_on([Reading(probe, uuid, str(n), v, now, str(text), own) for n, v, text, own in rows])

    def _pass_on(self, readings: list[Reading]) -> None:
        with self._lock:
            listeners = list(self._listeners)
        for listener in listeners:
            try:
                listener(readings)
            except Exception:
                if listener not in self._failed:
                    self._failed.append(listener)
                    logger.exception("dask-resilient: readings could not be taken")

    def _silent(self, silence: Silence) -> None:
        if self.device is None:
            return
        rows = (
            (Name.SILENCE, round(silence.seconds, 1), silence.call),
            (Name.TIMEOUTS, silence.timeouts, ""),
            (Name.OVERLOADED, silence.starved, ""),
        )
        self._read("nvml", [(*row, None) for row in rows])

    def _identified(self, device: Device) -> None:
        with self._lock:
            self.device = device
            told, self._told = self._told, []
        self._known.set()
        for callback in told:
            callback(device)

    def _ended(self, reason: str) -> None:
        if not self._complained:
            self._unknown(reason)

    def _unknown(self, reason: str) -> None:
        if self._none or self._process.stopped:
            return
        if reason != self.reason and (self._expected or self.device is not None):
            logger.warning("dask-resilient: the state of the GPU of this process is unknown: %s", reason)
        self.reason = reason

    def _warn_of_none(self) -> None:
        logger.warning("dask-resilient: the GPU of this process cannot be watched: %s", self.reason)


_lock = threading.Lock()
_shared: list[Gauge] = []
_users = 0


def acquire(*, gpu: bool = False) -> Gauge:
    """Give the gauge of this process: one serves all that runs in it. Call `release` once for it.

    Parameters
    ----------
    gpu
        Whether Dask sees a GPU in this process.
    """
    global _users  # noqa: PLW0603 - a process computes on one device
    with _lock:
        if not _shared:
            gauge = Gauge()
            gauge.start()
            _shared.append(gauge)
        _users += 1
        if gpu:
            _shared[0].expect()
        return _shared[0]


def release() -> None:
    """Stop the gauge when nobody needs it any more."""
    global _users  # noqa: PLW0603
    with _lock:
        _users -= 1
        if not _users:
            _shared.pop().stop()
