"""What a worker does at the scheduler's word about its device: take no more tasks, try the device, get ready to leave.

A worker whose task met an error after which its process can compute nothing stops by itself, before Dask handles that
error, since Dask starts the next task with it; the worker goes on if the scheduler says so, or says nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dask_resilient.core.cuda_errors import TaskFault
from dask_resilient.core.readings import Name, Reading
from dask_resilient.internals.worker_gate import Hear, WorkerGate
from dask_resilient.probes.canary import Canary
from dask_resilient.worker.late import Late

if TYPE_CHECKING:
    from dask_resilient.worker.side import Side

logger = logging.getLogger("dask_resilient")

UNANSWERED = 5.0
"""Seconds that a worker which stopped by itself waits for the scheduler's word."""


class Duty:
    """Does what the scheduler decided; every call comes on the worker's event loop.

    Parameters
    ----------
    side
        Of the same worker.
    """

    def __init__(self, side: Side) -> None:
        self._worker = side.worker
        self._gpu = side.gpu
        self._send = side.send
        settings = side.settings
        self._acts = settings.quarantine_enabled and not settings.quarantine_observe
        self._gate = WorkerGate(side.worker)
        self._canary = Canary()
        self._late = Late(side)
        self._answer: Any = None
        self._leaving = False
        self._nanny: str | None = None

    def start(self, failing: Hear) -> None:
        """Have failures of tasks heard before Dask handles them, if anything may follow from them."""
        if self._acts:
            self._gate.listen(failing)

    def stop(self) -> None:
        """Undo everything."""
        self._stay()
        self._answered()
        self._late.stop()
        self._gate.undo()

    def handle(self, do: str, msg: Mapping[str, Any]) -> bool:
        """Handle a message of the scheduler; says whether it was one of these."""
        match do:
            case "gate":
                self._answered()
                if msg["shut"]:
                    self._gate.shut()
                    self._send({"kind": "busy", "keys": self._gate.busy()})
                else:
                    self._late.stop()
                    self._gate.open()
            case "late":
                self._late.ask(msg["keys"], spilled_only=msg["spilled_only"])
            case "canary":
                self._canary.start(self._gpu.device(), self._gpu.uuid() is not None, self._tried)
            case "leaving":
                self._leave()
            case _:
                return False
        return True

    def failed(self, fault: TaskFault) -> None:
        """Take in an error of a task: with one after which the process can compute nothing, start no more tasks."""
        if fault.sticky:
            self._late.broken()
        if self._acts and fault.sticky and not self._gate.is_shut:
            # In this order: whatever goes wrong, the gate does not stay shut.
            self._answer = self._worker.loop.call_later(UNANSWERED, self._unanswered)
            self._gate.shut()

    def _leave(self) -> None:
        self._gate.shut()
        if not self._leaving:
            # A heartbeat of a worker that the scheduler has let go of makes it close, and its nanny too.
            self._leaving, self._nanny = True, self._worker.nanny
            self._worker.periodic_callbacks["heartbeat"].stop()
            self._worker.nanny = None
        self._send({"kind": "leaving"})

    def _stay(self) -> None:
        """Have a worker that was to leave go on as any other; one that closes has nothing to report any more."""
        if self._leaving and self._worker.status.name not in ("closing", "closed", "failed"):
            self._leaving = False
            self._worker.nanny = self._nanny
            self._worker.periodic_callbacks["heartbeat"].start()

    def _unanswered(self) -> None:
        self._answer = None
        logger.warning("dask-resilient: no word from the scheduler, so this worker takes tasks again")
        self._gate.open()

    def _answered(self) -> None:
        answer, self._answer = self._answer, None
        if answer is not None:
            self._worker.loop.remove_timeout(answer)

    def _tried(self, readings: list[Reading]) -> None:
        """Tell how a canary ended; comes from its thread."""
        reading = next(r for r in readings if r.kind == Name.CANARY)
        result = "unknown" if reading.value is None else str(reading.value)
        self._send({"kind": "tried", "result": result, "reason": reading.text})
