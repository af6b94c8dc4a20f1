"""The monitor of a worker: what probes, the canary and failing tasks say of its device, told to the scheduler.

Nothing here judges. Readings go in batches, and only those that the scheduler does not know yet: a state that stays as
it is is told of again every `STILL` seconds, together with all others.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from time import monotonic, time
from typing import TYPE_CHECKING, Any

from dask_resilient.core.cuda_errors import TaskFault
from dask_resilient.core.kept import Told
from dask_resilient.core.readings import Reading
from dask_resilient.core.tables import Tables
from dask_resilient.probes import device as probes
from dask_resilient.probes.canary import Canary
from dask_resilient.probes.guest import PROBE
from dask_resilient.probes.guests import Guest, load_entry_points
from dask_resilient.worker.faults import Faults
from dask_resilient.worker.pace import Pace

if TYPE_CHECKING:
    from dask_resilient.worker.side import Side

logger = logging.getLogger("dask_resilient")

STILL = 20.0
"""Seconds after which states that have not changed are told of again: a third of the time that they count as present
(`Limits.fresh`)."""

GATHER = 0.05
"""Seconds in which the readings of one sweep are gathered into one message."""

MOST = 2_000
"""Readings that wait at most while the event loop does not get to run, the newest."""

FIRST = 0.2
"""Seconds from the start to the first canary: the worker's own start comes first."""


class Monitor:
    """Watches the device of one worker; nothing that goes wrong here touches the worker.

    Parameters
    ----------
    side
        Of the same worker: its settings, its device, its way to the scheduler.
    rules
        What the user's file of rules says.
    guests
        Probes of the user, each with its name, pickled.
    failed
        Takes errors of CUDA that tasks met.
    """

    def __init__(
        self,
        side: Side,
        rules: Mapping[str, Any] | None,
        guests: Sequence[tuple[str, bytes]],
        failed: Callable[[TaskFault], None],
    ) -> None:
        self._worker = side.worker
        self._settings = side.settings
        self._gpu = side.gpu
        self._send = side.send_now
        self._packed = guests
        self._guests: list[Guest] = []
        self._gauge: probes.Gauge | None = None
        self._canary = Canary()
        self._tried = monotonic()
        self._faults = Faults(side.worker, side.send_now, Tables.of(rules).cuda, failed)
        self._pace = Pace()
        self._told = Told(STILL)
        self._new: list[Reading] = []
        self._lock = threading.Lock()
        self._on = False
        self._beat: Any = None

    # -- life --------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the probes; the first canary follows in a moment."""
        if not self._settings.probe_enabled:
            return
        try:
            self._start()
        except Exception:
            logger.exception("dask-resilient: the device of this worker cannot be watched")
            self.stop()

    def _start(self) -> None:
        from tornado.ioloop import PeriodicCallback

        self._on = True
        gauge = self._gauge = probes.acquire()
        gauge.configure(
            interval=self._settings.probe_interval,
            kernel_log=self._settings.probe_kernel_log,
            disk=self._worker.local_directory,
        )
        gauge.listen(self._hear)
        installed, wrong = load_entry_points()
        for name, reason in wrong:
            logger.warning("dask-resilient: probe %r of an installed package is left out: %s", name, reason)
            text = f"this entry point is left out: {reason}"
            self._hear([Reading.unknown(PROBE, self._gpu.device(), f"{PROBE}.{name}", time(), text)])
        packed: list[tuple[str, bytes | None]] = [
            *self._packed,
            *((name, None) for name in installed if name not in dict(self._packed)),
        ]
        for name, probe in packed:
            self._guests.append(Guest(name, probe, self._gpu.device, self._hear))
            self._guests[-1].start()
        self._beat = PeriodicCallback(self._every, 1000 * self._settings.probe_interval)
        self._beat.start()
        self._worker.loop.call_later(FIRST, self._try)

    def stop(self) -> None:
        """End the probes; does not wait for them."""
        self._on = False
        if self._beat is not None:
            self._beat.stop()
        for guest in self._guests:
            guest.stop()
        gauge, self._gauge = self._gauge, None
        if gauge is not None:
            gauge.unlisten(self._hear)
            probes.release()

    # -- hearing -----------------------------------------------------------------------------------------------------

    def failing(self, failures: Sequence[Any]) -> None:
        """Hear of tasks that failed, before the worker handles that; of none once it has. Never raises."""
        if self._on:
            self._faults.failing(failures)

    def transition(self, key: Any, start: str, finish: str) -> None:
        """Hear of a transition of one of the worker's tasks. Never raises."""
        if self._on:
            self._faults.transition(key, start, finish)
            self._pace.transition(self._worker, key, start, finish)

    def _hear(self, readings: Iterable[Reading]) -> None:
        """Take readings, from any thread."""
        # Of a GPU that is not this worker's own the others would be told too, and it may never touch it.
        own = self._gpu.uuid() is not None
        mine = [reading for reading in readings if own or reading.probe not in probes.OF_THE_GPU]
        with self._lock:
            news = self._told.news(mine)
            first = bool(news) and not self._new
            self._new += news
            self._told.untold(self._new[:-MOST])
            del self._new[:-MOST]
        if first:
            self._on_loop(lambda: self._worker.loop.call_later(GATHER, self._flush))

    def _on_loop(self, call: Callable[[], Any]) -> None:
        # A loop that is closed means that the worker is gone.
        if self._on and not self._worker.loop.asyncio_loop.is_closed():
            with contextlib.suppress(RuntimeError):
                self._worker.loop.add_callback(call)

    def _flush(self) -> None:
        with self._lock:
            new, self._new = self._new, []
            still = self._told.still(monotonic())
        pace = self._pace.report()
        if self._on and (new or still or pace):
            rows = [replace(reading, device="").to_dict() for reading in new]
            self._send({"kind": "readings", "sent": time(), "new": rows, "still": still, "pace": pace})

    def _every(self) -> None:
        """Tell what is still so, and try the device where the worker has nothing to do."""
        self._flush()
        wait = self._settings.probe_canary
        if wait and monotonic() - self._tried >= wait and not self._busy():
            self._try()

    def _busy(self) -> bool:
        state = self._worker.state
        return bool(state.executing_count or state.ready or state.constrained)

    def _try(self) -> None:
        if self._on:
            self._tried = monotonic()
            self._canary.start(self._gpu.device(), self._gpu.uuid() is not None, self._hear)
