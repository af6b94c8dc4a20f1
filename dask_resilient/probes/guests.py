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

from dask_resilient.core.readings import Reading
from dask_resilient.errors import SettingError
from dask_resilient.probes.guest import GROUP
from dask_resilient.probes.process import FIRST_DELAY, ProbeProcess, Silence

logger = logging.getLogger("dask_resilient")

COMMAND = (sys.executable, "-m", "dask_resilient.probes.guest")

SILENCE = 30.0
"""Seconds without an answer after which a third party's probe is taken for hung: more than ours has, since nobody knows
what it does."""

PATIENCE = 60.0
"""Seconds for its first answer: it may import a lot."""

PROBE = "probe"
"""Name of the reading that says whether the probe itself works."""


def pack(probes: Iterable[Any]) -> tuple[tuple[str, bytes], ...]:
    """Check probes and pickle them, each with its name.

    Raises
    ------
    SettingError
        If one is no probe, or cannot be sent to workers; the message names it.
    """
    import cloudpickle

    packed: list[tuple[str, bytes]] = []
    for probe in probes:
        name = getattr(probe, "name", None)
        if not isinstance(name, str) or not name or not callable(getattr(probe, "read", None)):
            raise SettingError(f"probes: {probe!r} is no probe: it needs a name (text) and a method read(device)")
        if name in (known for known, _ in packed):
            raise SettingError(f"probes: two are named {name!r}; give each a name of its own")
        interval = getattr(probe, "interval", 1.0)
        if isinstance(interval, bool) or not isinstance(interval, int | float) or not interval > 0:
            raise SettingError(f"probes: the interval of {name!r} is {interval!r}; it must be a number of seconds")
        try:
            packed.append((name, bytes(cloudpickle.dumps(probe))))
        except Exception as e:
            raise SettingError(f"probes: {name!r} cannot be sent to workers: {e!r}") from e
    return tuple(packed)


def load_entry_points() -> list[str]:
    """Give the names of the probes that installed packages bring."""
    return sorted({point.name for point in entry_points(group=GROUP)})


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
        self._answered = False
        self._process = ProbeProcess(
            COMMAND,
            self._hear,
            silent=self._silent,
            ended=self._failed,
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
        return json.dumps({"name": self.name, "pickle": self._probe, "device": self._device()}).encode() + b"\n"

    def _hear(self, said: dict[str, Any]) -> bool:
        if "error" in said:
            self._failed(str(said["error"]))
            return True
        self._answered = True
        now, device = time(), self._device()
        rows = [(*row, "")[:3] for row in said["readings"]]
        readings = [Reading(self.name, device, n, v, now, t) for n, v, t in rows if n != PROBE]
        bad = next((text for name, _, text in rows if name == PROBE), "")
        if bad:
            self._failed(bad)
        elif self._said:
            self._said = ""
            readings.append(Reading(self.name, device, f"{PROBE}.{self.name}", True, now))
        self._listen(readings)
        return True

    def _silent(self, silence: Silence) -> None:
        # One that starts may import a lot; if it takes too long, its end is told.
        if silence.seconds and self._answered:
            self._failed(f"has not answered for {silence.seconds:.0f} s")

    def _failed(self, reason: str) -> None:
        if self._process.stopped:
            return
        if not self._said:
            logger.warning("dask-resilient: probe %r %s; what it would have read is unknown", self.name, reason)
        self._said = reason
        name = f"{PROBE}.{self.name}"
        self._listen([Reading.unknown(self.name, self._device(), name, time(), f"probe {self.name!r} {reason}")])
