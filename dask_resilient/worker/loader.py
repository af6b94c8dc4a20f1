"""Loading inside tasks, and reading a second time what somebody else found damaged."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from time import perf_counter
from typing import TYPE_CHECKING, Any

from dask_resilient import partitions
from dask_resilient.core.manifest import Place, Receipt
from dask_resilient.core.outcome import Ending
from dask_resilient.errors import Unreachable
from dask_resilient.internals.device_data import ask_for_room
from dask_resilient.protocols import Payload
from dask_resilient.store.guarded import ending_of, verify_and_revoke, within

if TYPE_CHECKING:
    from dask_resilient.worker.side import Side

logger = logging.getLogger("dask_resilient")

ROOM_SECONDS = 5.0
"""Longest that a load waits for device memory to be made free; it then goes on, as any task would."""


class Loader:
    """Reads partitions for the tasks of one worker."""

    def __init__(self, side: Side) -> None:
        self._side = side

    def load(self, ticket: Mapping[str, Any]) -> Any:
        """Give a stored value back, or report how it ended and raise `Reschedule`: never an error of the user's."""
        from distributed.exceptions import Reschedule

        side, begin = self._side, perf_counter()
        side.send({"kind": "loading", "key": ticket["dask_key"], "attempt": ticket["place"]["attempt"]})
        try:
            receipt, payload = self._bounded(ticket)
            nbytes = receipt.nbytes
            if needed := partitions.device_nbytes(receipt.codec, receipt.schema, nbytes):
                ask_for_room(side.worker, needed, ROOM_SECONDS)
            # Here and not in the thread that reads: device values come back on the device that is current in this one.
            value = partitions.restore(receipt.codec, receipt.schema, payload)
        except BaseException as e:
            self._ended(ticket, ending_of(e), str(e) or repr(e))
            raise Reschedule from e
        side.send({"kind": "loaded", "key": ticket["dask_key"], "nbytes": nbytes, "seconds": perf_counter() - begin})
        return value

    def verify(self, key: Any, place: Mapping[str, Any], digest_of_key: str | None) -> None:
        """Read a copy that somebody else found damaged; if it is, write its tombstone."""
        side = self._side
        timeout = side.settings.recover_timeout
        ending, reason = verify_and_revoke(side.store, Place.from_dict(place), digest_of_key, timeout)
        side.send(
            {"kind": "verified", "key": key, "attempt": place["attempt"], "ending": str(ending), "reason": reason}
        )

    def _ended(self, ticket: Mapping[str, Any], ending: Ending, reason: str) -> None:
        logger.warning("dask-resilient: load of %r ended %s: %s", ticket["dask_key"], ending, reason)
        self._side.send(
            {
                "kind": "load-ended",
                "key": ticket["dask_key"],
                "attempt": ticket["place"]["attempt"],
                "ending": str(ending),
                "reason": reason,
            }
        )

    def _read(self, ticket: Mapping[str, Any]) -> tuple[Receipt, Payload]:
        store = self._side.store
        if store is None:
            raise Unreachable(f"this worker has no store: {self._side.reason}")
        return store.read(Place.from_dict(ticket["place"]), ticket["key"])

    def _bounded(self, ticket: Mapping[str, Any]) -> tuple[Receipt, Payload]:
        """Read in a thread of its own: a store that hangs must not hold the task for ever."""
        return within(self._side.settings.recover_timeout, lambda: self._read(ticket))
