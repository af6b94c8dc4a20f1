"""Probes of third parties: checked and packed on the client, run beside each worker in a process each."""

from __future__ import annotations

import base64
import json
import logging
import sys
from collections.abc import Callable, Iterable
from importlib.metadata import entry_points
from time import time
from typing import Any

from dask_resilient.core.readings import NOTHING, Name, Reading
from dask_resilient.errors import SettingError
from dask_resilient.probes.guest import GROUP, PROBE, wrong, wrong_name
from dask_resilient.probes.process import FIRST_DELAY, ProbeProcess, Silence

logger = logging.getLogger("dask_resilient")

START = """
import ctypes, json, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
order = json.loads(sys.stdin.buffer.readline())
sys.path[:] = order["path"]
from dask_resilient.probes.guest import main
main(order)
"""
"""What the process of a probe does: it ends with the thread that started it (PR_SET_PDEATHSIG, prctl.h), also where the
probe holds Python's lock; it finds modules where the worker does, and nowhere else."""

COMMAND = (sys.executable, "-P", "-c", START)

SILENCE = 30.0
"""Seconds without an answer after which a third party's probe is taken for hung: more than ours has, since nobody knows
what it does."""

PATIENCE = 60.0
"""Seconds for its first answer: it may import a lot."""


def pack(probes: Iterable[Any]) -> tuple[tuple[str, bytes], ...]:
    """Check probes and pickle them, each with its name.

    Raises
    ------
    SettingError
        If one is no probe, or cannot be sent to workers; the message names it.
    """
    import cloudpickle

    if not isinstance(probes, Iterable):
        raise SettingError(f"probes: {probes!r} is no list of probes; write probes=[...]")
    packed: list[tuple[str, bytes]] = []
    for probe in probes:
        if reason := wrong(probe):
            raise SettingError(f"probes: {reason}")
        name = probe.name
        if name in (known for known, _ in packed):
            raise SettingError(f"probes: two are named {name!r}; give each a name of its own")
        try:
            packed.append((name, bytes(cloudpickle.dumps(probe))))
        except Exception as e:
            raise SettingError(f"probes: {name!r} cannot be sent to workers: {e!r}") from e
    return tuple(packed)


def load_entry_points() -> tuple[list[str], list[tuple[str, str]]]:
    """Give the names of the probes that installed packages bring, and those that cannot be, each with the reason."""
    good, bad = [], []
    for name in sorted({point.name for point in entry_points(group=GROUP)}):
        reason = wrong_name(name)
        if reason:
            bad.append((name, reason))
        else:
            good.append(name)
    return good, bad


class Guest:
    """One probe of a third party, in its process.

    Whatever it does, it says nothing about the device but what it gives: its silence, its end and its errors are
    readings about itself.

    Parameters
    ----------
    name
        Of the probe.
    probe
        The pickled probe; None is the entry point of that name.
    device
        Gives the name of the worker's device.
    listen
        Called with readings, from a thread.
    """

    def __init__(
        self,
        name: str,
        probe: bytes | None,
        device: Callable[[], str],
        listen: Callable[[list[Reading]], None],
        silence: float = SILENCE,
        patience: float = PATIENCE,
        first_delay: float = FIRST_DELAY,
    ) -> None:
        self.name = name
        self._probe = None if probe is None else base64.b64encode(probe).decode()
        self._device = device
        self._listen = listen
        self._said = ""
        self._standing: frozenset[str] = frozenset()
        """What it stated, or gave as unknown, and has not taken back."""
        self._answered = False
        self._unloaded = False
        self._sent = ""
        self._silence = silence
        self._process = ProbeProcess(
            COMMAND,
            self._hear,
            silent=self._silent,
            ended=self._ended,
            greeting=lambda: [self._order()],
            silence=silence,
            patience=patience,
            first_delay=first_delay,
            name=f"dask-resilient-probe-{name}",
        )

    def start(self) -> None:
        """Start its process."""
        self._process.start()

    def stop(self) -> None:
        """End it; does not wait."""
        self._process.stop()

    def _order(self) -> bytes:
        self._unloaded = False
        path = [str(each) for each in sys.path]
        self._sent = self._device()
        order = {"name": self.name, "pickle": self._probe, "device": self._sent, "path": path}
        return json.dumps({**order, "again": self._silence / 3}).encode() + b"\n"

    def _hear(self, said: dict[str, Any]) -> bool:
        if "unloaded" in said:
            self._unloaded = True
            self._failed(f"cannot be loaded: {said['unloaded']}")
            return False  # no answer: the next process comes after a growing delay
        self._answered = True
        if self._device() != self._sent:
            # Which GPU a worker has becomes known only after its start.
            self._sent = self._device()
            self._process.tell(json.dumps({"device": self._sent}).encode() + b"\n")
        if "error" in said:
            self._failed(f"raised {said['error']}")
            return True
        now, device = time(), self._device()
        rows = said["readings"]
        readings = [Reading(self.name, device, self._named(n), v, now, t) for n, v, t in rows if n != PROBE]
        bad = next((text for name, _, text in rows if name == PROBE), "")
        if bad:
            self._failed(bad, readings)
            return True
        if self._said:
            self._said = ""
            readings.append(Reading(self.name, device, f"{PROBE}.{self.name}", True, now))
        self._tell(readings)
        return True

    def _tell(self, readings: list[Reading]) -> None:
        """Pass readings on, and take back what was said before them and is not said any more."""
        gone = self._standing - {reading.name for reading in readings}
        self._standing = frozenset(r.name for r in readings if r.value is None or r.kind == Name.STATED)
        now, device = time(), self._device()
        self._listen([*readings, *(Reading(self.name, device, name, NOTHING, now) for name in sorted(gone))])

    def _named(self, name: str) -> str:
        """Give the name of a reading beside those of other probes, which may have given it the same one."""
        kind, point, which = name.partition(".")
        if kind == Name.STATED:
            return f"{kind}.{self.name}{point}{which}"
        return f"{PROBE}.{self.name}.{name}"

    def _ended(self, reason: str) -> None:
        # One that could not be loaded has said more than that it ended.
        if not self._unloaded:
            self._failed(reason.removeprefix("its probe process "))

    def _silent(self, silence: Silence) -> None:
        # One that starts may import a lot; if it takes too long, its end is told.
        if silence.seconds and self._answered:
            self._failed(f"has not answered for {silence.seconds:.0f} s")

    def _failed(self, reason: str, readings: Iterable[Reading] = ()) -> None:
        if self._process.stopped:
            return
        if not self._said:
            logger.warning("dask-resilient: probe %r %s; what it would have read is unknown", self.name, reason)
        self._said = reason
        name = f"{PROBE}.{self.name}"
        text = f"probe {self.name!r} {reason}"
        self._tell([*readings, Reading.unknown(self.name, self._device(), name, time(), text)])
