"""The composition root: `Resilience`, which puts the scheduler's and the workers' sides together and takes them apart.

Registering it is all that a cluster needs; `dask_resilient.install` does that from a client and gives a handle.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from time import time
from typing import Any
from uuid import uuid4

from distributed.diagnostics.plugin import SchedulerPlugin

from dask_resilient import config
from dask_resilient.config import Settings
from dask_resilient.probes.guests import pack
from dask_resilient.scheduler.answers import answer
from dask_resilient.scheduler.lease import Lease
from dask_resilient.scheduler.queue import StoreQueue
from dask_resilient.scheduler.sides import Sides
from dask_resilient.scheduler.watch import Watch
from dask_resilient.store import resolve, resolve_directory
from dask_resilient.worker.bootstrap import ResilienceNanny, ResilienceWorker, dumps

logger = logging.getLogger("dask_resilient")

NAME = "resilience"
"""Name of the plugin, of the config namespace, of the RPC handler and of the stream op."""


class Resilience(SchedulerPlugin):
    """Bring back only what was lost when a worker dies.

    Parameters
    ----------
    store
        Path or ``file://`` URL of the store; made absolute here, on the client. None takes the setting
        ``resilience.store``, and without that ``./dask-resilient-store``.
    probes
        Probes of your own, see `dask_resilient.protocols.Probe`; they run on every worker, each in its own process.
    resume
        By what milestones of other runs are known: ``"fingerprint"``, ``"name"`` or ``"off"``; None takes the setting
        ``resilience.resume``.

    Raises
    ------
    SettingError
        If a setting under ``resilience`` does not exist or cannot work, or a probe is none.

    Notes
    -----
    One plugin runs per scheduler: registering again, also from another client, keeps the first with its settings.
    """

    name = NAME
    idempotent = True

    def __init__(
        self, store: str | os.PathLike[str] | None = None, *, probes: Iterable[Any] = (), resume: str | None = None
    ) -> None:
        settings = config.read()
        if resume is not None:
            settings = replace(settings, resume=config.check_resume(resume))
        self.rules = config.read_rules(settings.probe_rules) if settings.enabled else None
        self.probes = pack(probes)
        self.given = config.fingerprints(self.probes, self.rules)
        chosen = store if store is not None else settings.store
        self.default_store = chosen is None
        path = settings.quarantine_path
        if settings.enabled:
            memory = None if path is None else resolve_directory(path, "resilience.quarantine.path")
            settings = replace(settings, store=resolve(chosen), quarantine_path=memory)
        self.settings: Settings = settings
        self.run = ""
        self._watch: Watch | None = None
        self._queue: StoreQueue | None = None
        self._sides: Sides | None = None
        self._scheduler: Any = None
        self._seen = False
        self._lease: Lease | None = None
        self._undoing: asyncio.Future[None] | None = None

    # -- registering -------------------------------------------------------------------------------------------------

    async def start(self, scheduler: Any) -> None:
        """Start the scheduler's side, then the workers'. Never raises: the job then runs as it would without."""
        if not self.settings.enabled or await self._is_second(scheduler):
            return
        self._up = asyncio.Event()
        self.run = uuid4().hex
        self._scheduler = scheduler
        scheduler.handlers[NAME] = self._rpc
        scheduler.stream_handlers[NAME] = self._message
        try:
            self._queue = StoreQueue(scheduler.loop)
            self._watch = Watch(scheduler, self.settings, self.run, self._queue, self._alive, self.rules)
            self._watch.start()
            token = await self._open_store()
            await self._watch.keeper.recall()
            worker = dumps(ResilienceWorker(self.settings.to_dict(), self.run, token, self.rules, self.probes))
            self._sides = Sides(scheduler, NAME)
            self._watch.nanny_closed = self._sides.gone
            await self._sides.add(worker, dumps(ResilienceNanny()))
            self._watch.registered()
        except Exception:
            logger.exception("dask-resilient: could not start; the computation goes on unprotected")
            self._up.set()
            await self._undo()
        finally:
            # Whoever waits for this goes on after Dask has put this instance into its table.
            self._up.set()
            # Seen there once, else one that is taken out before anybody asks would be taken for one that still starts.
            scheduler.loop.add_callback(self._alive)

    @staticmethod
    async def _is_second(scheduler: Any) -> bool:
        """Say whether another instance runs; one that starts is waited for, else this one would take its place."""
        while isinstance(other := getattr(scheduler.handlers.get(NAME), "__self__", None), Resilience):
            if other._undoing is not None or not other._alive():
                await other._undo()
            elif other._up.is_set():
                # Where somebody insists (``idempotent=False``), Dask puts this one into the first's place in a moment,
                # and tells nobody: leaving before anything was asked found one that is registered and never started.
                scheduler.loop.add_callback(other._alive)
                return True
            else:
                await other._up.wait()
        return False

    async def _open_store(self) -> str | None:
        """Open the store and give its token; None if it cannot be used."""
        queue = self._queue
        assert queue is not None
        assert self.settings.store is not None
        await queue.open(self.settings.store)
        if queue.store is None:
            return None
        await queue.journal(self.run, "run", {"started": time(), "store": self.settings.store})
        assert self._watch is not None
        self._lease = Lease(queue, self.run, self._watch.ledger)
        return queue.store.token

    def _alive(self) -> bool:
        """Say whether this instance is registered; while `start` runs it is not yet in the scheduler's table.

        Dask calls nothing when it takes a plugin out of its table, or puts another in its place. So this is found out
        here, and what is left of the plugin leaves by itself.
        """
        registered = self._scheduler.plugins.get(NAME) is self
        self._seen = self._seen or registered
        if registered or not self._seen:
            return True
        if self._undoing is None:
            self._scheduler.loop.add_callback(self._replaced)
        return False

    async def _replaced(self) -> None:
        """Leave, and start the instance that has taken this one's place in Dask's table, if one has."""
        if self._undoing is not None:
            return
        await self._undo()
        heir = self._scheduler.plugins.get(NAME)
        if isinstance(heir, Resilience):
            heir._seen = True
            await heir.start(self._scheduler)

    # -- messages and calls ------------------------------------------------------------------------------------------

    def _message(self, worker: str, run: str, kind: str, **msg: Any) -> None:
        """Handle one message of a worker; one of another run, or one that surprises, changes nothing."""
        watch = self._watch
        if watch is None or run != self.run or not self._alive():
            return
        try:
            watch.handle(worker, kind, msg)
        except Exception:
            logger.exception("dask-resilient: could not handle %r of worker %s", kind, worker)

    async def _rpc(self, comm: Any = None, *, method: str, **kwargs: Any) -> Any:  # noqa: ARG002
        """Serve the handle, see `answer`; None while the plugin leaves, as where there is none."""
        if method == "uninstall":
            return await self.uninstall(**kwargs)
        watch, queue = self._watch, self._queue
        if watch is None or queue is None:
            return None
        told = await answer(method, kwargs, self.run, self.settings, watch, queue)
        return {**told, "given": self.given} if method == "status" else told

    # -- hooks -------------------------------------------------------------------------------------------------------

    def transition(self, key: Any, start: str, finish: str, *args: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Pass on; see `Watch.transition`."""
        if self._watch is not None:
            self._watch.transition(key, start, finish, kwargs.get("startstops"))

    def log_event(self, topic: str, msg: Any) -> None:
        """Hear of a loss before Dask works it off; the hook `remove_worker` comes after."""
        if topic != "all" or self._watch is None:
            return
        # Users log whatever they like.
        if isinstance(msg, dict) and msg.get("action") == "remove-worker" and "stimulus_id" in msg:
            self._watch.losses.lost(msg)

    def add_worker(self, scheduler: Any, worker: str) -> None:  # noqa: ARG002
        """Pass on; see `Watch.added`."""
        if self._watch is not None:
            self._watch.added(worker)
        if self._sides is not None:
            self._sides.joined(worker)

    def remove_worker(self, scheduler: Any, worker: str, **kwargs: Any) -> None:  # noqa: ARG002
        """Pass on; see `Watch.removed`."""
        if self._watch is not None:
            self._watch.removed(worker)

    def restart(self, scheduler: Any) -> None:  # noqa: ARG002
        """Pass on; see `Watch.restarted`."""
        if self._watch is not None:
            self._watch.restarted()

    async def close(self) -> None:
        """End with the scheduler; the process may go on, and start another one."""
        if self._sides is not None:
            self._sides.close()
        self._end_lease()

    # -- leaving -----------------------------------------------------------------------------------------------------

    async def uninstall(self, wait: float | None = None) -> bool:
        """Wait for saves and loads under way, then undo every intrusion on scheduler and workers.

        Parameters
        ----------
        wait
            Longest wait in seconds; None takes the setting ``resilience.leave``.

        Returns
        -------
        bool
            Whether everything under way had ended in time.
        """
        deadline = time() + (self.settings.leave if wait is None else wait)
        busy = False
        while (watch := self._watch) is not None:
            watch.detour.on = False
            busy = bool(watch.ledger.saving() or (watch.detour.parked and self._scheduler.workers))
            if not busy or time() >= deadline:
                break
            await asyncio.sleep(0.02)
        await self._undo()
        return not busy

    async def _undo(self) -> None:
        """Undo every intrusion, once; whoever asks again waits for the end of the first."""
        if self._undoing is None:
            self._undoing = asyncio.ensure_future(self._take_apart())
        await asyncio.shield(self._undoing)

    async def _take_apart(self) -> None:
        # One that still starts would hand its sides to the workers behind their removal.
        await self._up.wait()
        scheduler, watch = self._scheduler, self._watch
        self._watch = None
        if watch is not None:
            watch.stop()
        if scheduler.plugins.get(NAME) is self:
            await scheduler.unregister_scheduler_plugin(NAME)
        if scheduler.stream_handlers.get(NAME) == self._message:
            # Messages may still be on their way: an op without handler would close the worker's connection.
            scheduler.stream_handlers[NAME] = _ignore
        if self._sides is not None:
            await self._sides.remove()
        self._end_lease()
        # Last, since an instance that is registered meanwhile waits until this name is free.
        if scheduler.handlers.get(NAME) == self._rpc:
            del scheduler.handlers[NAME]

    def _end_lease(self) -> None:
        lease, self._lease = self._lease, None
        if lease is not None:
            lease.end()
        if self._queue is not None:
            self._queue.close()


def _ignore(**msg: Mapping[str, Any]) -> None:
    """Take a late message of a plugin that has left."""
