"""Errors of a worker's tasks that say something about its device."""

from __future__ import annotations

import logging
import pickle
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dask.utils import key_split

from dask_resilient.core.cuda_errors import CudaRow, TaskFault, classify
from dask_resilient.core.messages import texts

logger = logging.getLogger("dask_resilient")

MOST = 1 << 20
"""Bytes of a pickled exception that are looked into: Dask itself keeps less (distributed.admin.max-error-length)."""


_ELSEWHERE = re.compile(
    r'^ *File "[^"\n]*\bdistributed[/\\]client\.py", line \d+, in _?(?:result|gather)$', re.MULTILINE
)
"""Where a task waits for another one: what that raised happened on its own worker, which tells of it."""


class Faults:
    """Classifies errors as they happen, and tells the scheduler before Dask tells of the error itself.

    Parameters
    ----------
    worker
        The `distributed.Worker`.
    send
        Sends a message to the scheduler, in order with the worker's own.
    table
        The rows of CUDA errors, with a user's changes.
    failed
        Takes each error that was found.
    """

    def __init__(
        self,
        worker: Any,
        send: Callable[[Mapping[str, Any]], None],
        table: Mapping[int, CudaRow],
        failed: Callable[[TaskFault], None] = lambda _: None,
    ) -> None:
        self._worker = worker
        self._failed = failed
        self._send = send
        self._table = table
        self._known: dict[Any, tuple[int, TaskFault | None]] = {}
        """By key: run and fault of the failures that are being handled."""
        self._puzzled = False

    def failing(self, failures: Sequence[Any]) -> None:
        """Look at failures that the worker is about to handle together; none once it has. Never raises.

        Parameters
        ----------
        failures
            Dask's `ExecuteFailureEvent`. What is found is told when their tasks change their states.
        """
        self._known.clear()
        for event in failures:
            try:
                fault = self._fault(event)
                if fault is not None:
                    self._failed(fault)
                self._known[event.key] = event.run_id, fault
            except Exception as e:
                self._surprised(e)

    def transition(self, key: Any, start: str, finish: str) -> None:  # noqa: ARG002
        """Take in that a task of the worker changed its state. Never raises."""
        if finish != "error":
            return
        try:
            if known := self._known.pop(key, None):
                self._tell(key, *known)
            elif task := self._worker.state.tasks.get(key):
                fault = self._fault(task)
                self._tell(key, task.run_id, fault)
                if fault is not None:
                    self._failed(fault)
        except Exception as e:
            self._surprised(e)

    def _tell(self, key: Any, run_id: int, fault: TaskFault | None) -> None:
        if fault is not None:
            msg = {"kind": "fault", "key": key, "run_id": run_id, "prefix": key_split(key)}
            self._send({**msg, "fault": fault.to_dict()})

    def _fault(self, failure: Any) -> TaskFault | None:
        """Classify what an event or a task says: both hold it under the same names."""
        said = [failure.exception_text or "", failure.traceback_text or ""]
        if _ELSEWHERE.search(said[1]):
            return None
        return classify([*_inner(failure.exception), *said], self._table)

    def _surprised(self, error: Exception) -> None:
        if not self._puzzled:
            self._puzzled = True
            logger.error("dask-resilient: errors of tasks could not be classified; this is told once", exc_info=error)


def _inner(exception: Any) -> list[str]:
    """Give the texts of an exception and of its causes; none if it cannot be looked into."""
    data = getattr(exception, "data", None)
    if not isinstance(data, bytes) or len(data) > MOST:
        return []
    try:
        # Dask has just done the same with these bytes: what this may do is done already.
        error = pickle.loads(data)  # noqa: S301
    except Exception:
        return []
    return texts(error) if isinstance(error, BaseException) else []
