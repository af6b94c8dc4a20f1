"""The scheduler's way to the store: one thread, so that its event loop never waits for a disk."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from dask_resilient.protocols import PartitionStore

logger = logging.getLogger("dask_resilient")


class StoreQueue:
    """Runs store calls one after the other, off the loop."""

    def __init__(self, loop: Any) -> None:
        self._loop = loop
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="dask-resilient-store")
        self.store: PartitionStore | None = None
        self.reason = ""
        """Why there is no store, empty if there is one."""

    def submit(self, call: Callable[[], Any], then: Callable[[Any], None] | None = None) -> None:
        """Run a call in the thread and hand its result to `then` on the loop; errors are logged, once each."""

        def done(future: Future[Any]) -> None:
            if future.cancelled():
                return
            error = future.exception()
            if error is not None:
                logger.warning("dask-resilient: the store failed on the scheduler: %s", error)
            elif then is not None:
                self._loop.add_callback(then, future.result())

        self._executor.submit(call).add_done_callback(done)

    def close(self) -> None:
        """Take nothing more; what is under way ends by itself."""
        self._executor.shutdown(wait=False, cancel_futures=False)
