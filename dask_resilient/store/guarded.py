"""Reading that may hang, and the second read before a copy is revoked."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import TypeVar

from dask_resilient.core.manifest import Place
from dask_resilient.core.outcome import Ending
from dask_resilient.errors import Damaged, Foreign, Unreachable
from dask_resilient.protocols import PartitionStore

T = TypeVar("T")


def within(timeout: float, call: Callable[[], T]) -> T:
    """Call something that may hang; give up after `timeout` seconds.

    Raises
    ------
    Unreachable
        If it has not ended by then. The thread is left behind and ends by itself, if ever.
    """
    results: queue.SimpleQueue[Callable[[], T]] = queue.SimpleQueue()

    def run() -> None:
        try:
            value = call()
        except BaseException as e:
            error = e

            def give() -> T:
                raise error

        else:

            def give() -> T:
                return value

        results.put(give)

    threading.Thread(target=run, name="dask-resilient-load", daemon=True).start()
    try:
        give = results.get(timeout=timeout)
    except queue.Empty:
        raise Unreachable(f"the store did not answer within {timeout:g} s") from None
    return give()


def verify_and_revoke(
    store: PartitionStore | None, place: Place, key: str | None, timeout: float
) -> tuple[Ending, str]:
    """Read a copy a second time and revoke it only if it is damaged; gives how that ended, with the reason.

    Each of the two may take `timeout` seconds: what was computed anew waits in memory for the answer.
    """
    try:
        if store is None:
            raise Unreachable("no store here")
        reader = store
        within(timeout, lambda: reader.read(place, key))
    except Damaged as e:
        reason = str(e)
        try:
            within(timeout, lambda: reader.revoke(place, reason))
        except OSError as error:
            return Ending.UNREACHABLE, f"damaged ({e}), but its tombstone could not be written: {error}"
        return Ending.DAMAGED, str(e)
    except BaseException as e:
        return ending_of(e), str(e) or repr(e)
    return Ending.GOOD, ""


def ending_of(e: BaseException) -> Ending:
    """Say which ending of a load an exception stands for; what nobody expected proves no damage."""
    if isinstance(e, Damaged):
        return Ending.DAMAGED
    if isinstance(e, Foreign):
        return Ending.FOREIGN
    return Ending.UNREACHABLE
