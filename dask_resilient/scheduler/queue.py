"""The scheduler's way to the store: one thread, so that its event loop never waits for a disk.

The thread is a daemon: a store that hangs for ever must not keep the scheduler's process from ending.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from dask_resilient.core.messages import sendable
from dask_resilient.core.remembered import is_remembered
from dask_resilient.store import Calls, PosixStore, devices, open_store

logger = logging.getLogger("dask_resilient")

T = TypeVar("T")

ANSWER_SECONDS = 5.0
"""Longest that a caller waits for the store to be opened or written to."""

READ_SECONDS = 4.0
"""Longest that what is remembered of devices is read: some of it is better than nothing, which a late answer is."""


class StoreQueue:
    """Runs store calls one after the other, off the loop.

    Parameters
    ----------
    loop
        The scheduler's tornado loop.
    """

    def __init__(self, loop: Any) -> None:
        self._loop = loop
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self.store: PosixStore | None = None
        self.reason = ""
        """Why there is no store, empty if there is one."""
        self._beside: StoreQueue | None = None
        """For another disk than the store's, so that neither waits for the other where one hangs."""
        self.forgets = ""
        """What is wrong with what is remembered of devices, empty if nothing is."""
        threading.Thread(target=self._run, name="dask-resilient-store", daemon=True).start()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()

    def submit(self, call: Callable[[], T], then: Callable[[T], None]) -> None:
        """Run a call in the thread and hand its result to `then` on the loop; an error is logged."""

        def job() -> None:
            try:
                result = call()
            except Exception as e:
                logger.warning("dask-resilient: the store failed on the scheduler: %s", e)
            else:
                self._loop.add_callback(then, result)

        self._jobs.put(job)

    async def ask(self, call: Callable[[], T]) -> T:
        """Run a call in the thread and give what it gives.

        Raises
        ------
        TimeoutError
            If it has not ended after `ANSWER_SECONDS`.
        """
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def settle(result: T | None, error: BaseException | None) -> None:
            if future.done():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)  # type: ignore[arg-type]

        def job() -> None:
            try:
                result = call()
            except Exception as e:
                self._loop.add_callback(settle, None, e)
            else:
                self._loop.add_callback(settle, result, None)

        self._jobs.put(job)
        return await asyncio.wait_for(future, ANSWER_SECONDS)

    async def open(self, url: str) -> None:
        """Open the store, or keep the reason why it cannot be used, with one warning."""
        try:
            self.store = await self.ask(lambda: open_store(url, create=True))
        except TimeoutError:
            self.reason = f"the store {url!r} did not answer within {ANSWER_SECONDS:g} s"
        except Exception as e:
            self.reason = str(e)
        if self.store is None:
            logger.warning("dask-resilient: nothing is saved: %s", self.reason)

    async def state(self) -> str:
        """Say why the store cannot be used now, empty if it can."""
        if self.store is None:
            return self.reason
        try:
            return await self.ask(self.store.reachable)
        except TimeoutError:
            return f"{self.store.url!r} does not answer"

    async def journal(self, run: str, name: str, body: dict[str, Any]) -> bool:
        """Write an entry of a run's journal; says whether it is there. Never raises: it is advisory."""
        store = self.store
        if store is None:
            return False
        try:
            await self.ask(lambda: store.journal(run, name, body))
        except FileExistsError:
            return True
        except (OSError, TimeoutError) as e:
            # A store that is gone or hangs when the job is done must not fail it, nor hold up leaving.
            logger.warning("dask-resilient: the run is not marked %s: %s", name, str(e) or "the store does not answer")
            return False
        return True

    def renew(
        self, run: str, milestones: Callable[[], set[str]], keep: Callable[[], set[str]], *, ended: bool = False
    ) -> None:
        """Renew the lease of a run, or end it; does not wait, and a failure is logged.

        What it names is asked for when it is written, so that nothing that came meanwhile is left out.
        """
        store = self.store
        if store is not None:
            self.submit(lambda: store.renew(run, milestones(), keep=keep(), ended=ended), lambda _: None)

    async def remembered(self, path: str | None) -> tuple[dict[str, list[dict[str, Any]]], str]:
        """Read what is remembered of devices, under `path` or else in the store. Never raises.

        Returns
        -------
        tuple
            Entries by device, for `dask_resilient.core.remembered.state`; and why nothing could be read, empty if it
            could. Either that or entries that are ignored is told with one warning.
        """
        queue, calls, root = self._memory(path)
        if not root:
            return {}, ""
        try:
            found, ignored = await queue.ask(lambda: devices.read_all(calls, root, seconds=READ_SECONDS))
        except Exception as e:
            reason = sendable(str(e), 500) or f"{root!r} did not answer within {ANSWER_SECONDS:g} s"
            logger.warning("dask-resilient: no device is held back, as nothing is known of any: %s", reason)
            self.forgets = f"nothing is known of devices that earlier runs took out of service: {reason}"
            return {}, reason
        if ignored:
            what = "dask-resilient: of what is remembered of devices in %r, %d things are ignored; the first: %s"
            logger.warning(what, root, len(ignored), ignored[0])
        return found, ""

    async def prepare(self, path: str) -> None:
        """See that devices can be remembered under a path, and make it if it is missing. Never raises."""
        queue, calls, root = self._memory(path)
        try:
            await queue.ask(lambda: devices.prepare(calls, root))
        except TimeoutError:
            self._tell(f"{root!r} did not answer within {ANSWER_SECONDS:g} s")
        except Exception as e:
            self._tell(f"the scheduler cannot write to {root!r}: {getattr(e, 'strerror', None) or e}")

    def remember(self, path: str | None, device: str, entry: Mapping[str, Any]) -> None:
        """Append an entry about a device, under `path` or else in the store; does not wait.

        Nothing happens where there is neither, nor for a CPU worker's device. That it failed is logged once.
        """
        queue, calls, root = self._memory(path)
        if not root or not is_remembered(device):
            return
        kept = dict(entry)

        def append() -> None:
            try:
                devices.append(calls, root, device, kept, make=bool(path))
            except Exception as e:
                self._tell(str(e) or type(e).__name__)

        queue.submit(append, lambda _: None)

    def _tell(self, reason: str) -> None:
        if not self.forgets:
            self.forgets = f"later runs will not know of all quarantined devices: {sendable(reason, 500)}"
            logger.warning("dask-resilient: %s", self.forgets)

    def _memory(self, path: str | None) -> tuple[StoreQueue, Calls, str]:
        """Give where devices are remembered, and what is needed to get there; an empty root if nowhere."""
        if path:
            self._beside = self._beside or StoreQueue(self._loop)
            return self._beside, Calls(), path
        if self.store is not None:
            return self, self.store.calls, self.store.url
        return self, Calls(), ""

    def close(self) -> None:
        """Take nothing more; what is under way ends by itself."""
        self._jobs.put(None)
        if self._beside is not None:
            self._beside.close()
