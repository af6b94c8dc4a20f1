"""What runs on one worker: staging inside tasks, loading inside tasks, and the messages of both.

Messages to the scheduler go through the worker's batched stream, in order with Dask's own task messages: the scheduler
hears how a load ended before it hears that the task asks to be rescheduled.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from time import perf_counter, time
from typing import Any
from uuid import uuid4

from dask_resilient import partitions
from dask_resilient.config import Settings
from dask_resilient.core.manifest import Place, digest
from dask_resilient.core.messages import sendable
from dask_resilient.core.outcome import Declined
from dask_resilient.errors import StoreError
from dask_resilient.internals.nodes import is_renamed
from dask_resilient.internals.unlink import Unlink
from dask_resilient.protocols import PartitionStore
from dask_resilient.store import open_store
from dask_resilient.worker.duty import Duty
from dask_resilient.worker.gpu import Gpu
from dask_resilient.worker.loader import Loader
from dask_resilient.worker.monitor import Monitor
from dask_resilient.worker.saver import Item, Saver

logger = logging.getLogger("dask_resilient")

OP = "resilience"
OPEN_SECONDS = 2.0
"""Longest that the first task of a worker waits for the store to be opened."""

REASON = 2_000
"""Characters of a reason that are told."""

CHECK_MS = 500
"""Milliseconds between looks at memory and at a write that hangs."""


class Side:
    """The plugin's side on one worker.

    Parameters
    ----------
    worker
        The `distributed.Worker`.
    settings
        As the client read them.
    run
        Id of this life of the plugin.
    token
        Token that the scheduler read in the store; None = the scheduler has no store, nothing is saved.
    rules
        What the user's file of rules says, see `config.read_rules`.
    probes
        Probes of the user, each with its name, pickled.
    """

    def __init__(
        self,
        worker: Any,
        settings: Settings,
        run: str,
        token: str | None,
        rules: Mapping[str, Any] | None = None,
        probes: Sequence[tuple[str, bytes]] = (),
    ) -> None:
        self.worker = worker
        self.settings = settings
        self.run = run
        self.saver: Saver | None = None
        self.store: PartitionStore | None = None
        self.reason = "its store is not open yet"
        self._unlink = Unlink(worker)
        self.gpu = Gpu(worker, self.send)
        self._duty = Duty(self)
        self._monitor = Monitor(self, rules, probes, self._duty.failed)
        self._loader = Loader(self)
        self._check: Any = None
        self._token = token
        self._problems: list[str] = []
        self._opened = threading.Event()

    # -- life --------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Install the intrusions; `open` and `hello` follow off the loop."""
        self._unlink.install()
        self.worker.stream_handlers[OP] = self._handle
        self.gpu.start()
        self._monitor.start()
        self._duty.start(self._monitor.failing)

    def open(self) -> None:
        """Open the store; a failure leaves this worker unprotected, with the reason. Blocks: not for the event loop."""
        try:
            self._open()
        finally:
            self._opened.set()

    def _open(self) -> None:
        self._problems = partitions.load_modules(self.settings.codecs)
        try:
            if self._token is None:
                raise StoreError("the scheduler cannot use the store")
            assert self.settings.store is not None
            self.store = open_store(self.settings.store, create=False, token=self._token)
        except Exception as e:
            self.reason = str(e)
            return
        self.reason = ""
        limit = self.worker.memory_manager.memory_limit
        self.saver = Saver(
            self.store,
            limit=int(self.settings.save_memory * limit) if limit else 1 << 62,
            threads=self.worker.state.nthreads,
            task_wait=self.settings.save_task_wait,
            run_wait=self.settings.save_run_wait,
            stuck=self.settings.save_stuck,
            send=self.send,
        )

    def hello(self) -> None:
        """Tell the scheduler that this worker can load, and whether it can save."""
        from tornado.ioloop import PeriodicCallback

        if self.saver is not None:
            self._check = PeriodicCallback(self._look, CHECK_MS)
            self._check.start()
        self.send(
            {
                "kind": "hello",
                "protected": self.saver is not None,
                "reason": self.reason,
                "token": self.store.token if self.store is not None else None,
                "host": socket.gethostname(),
                "problems": self._problems,
            }
        )

    def stop(self) -> None:
        """Undo every intrusion on this worker and end its thread."""
        if self.worker.status.name not in ("closing", "closed"):
            # A worker that closes still handles what is on its way, loads too.
            self._unlink.undo()
        self._monitor.stop()
        self._duty.stop()
        self.gpu.stop()
        if self.worker.stream_handlers.get(OP) == self._handle:
            # Messages may still be on their way: an op without handler would close the scheduler's connection.
            self.worker.stream_handlers[OP] = _ignore
        if self._check is not None:
            self._check.stop()
        if self.saver is not None:
            self.saver.close()

    # -- messages ----------------------------------------------------------------------------------------------------

    def send(self, msg: Mapping[str, Any]) -> None:
        """Send a message to the scheduler, from any thread, in order with the task messages of this worker."""
        full = self._full(msg)
        # A loop that is closed already means that the worker is leaving: nobody needs the message.
        if not self.worker.loop.asyncio_loop.is_closed():
            self.worker.loop.add_callback(self.worker.batched_send, full)

    def send_now(self, msg: Mapping[str, Any]) -> None:
        """Send a message to the scheduler from the event loop: before what Dask sends of the same transition."""
        self.worker.batched_send(self._full(msg))

    def _full(self, msg: Mapping[str, Any]) -> dict[str, Any]:
        full = {"op": OP, "run": self.run, **msg}
        if "reason" in full:
            # It may quote a path that is no UTF-8; a text that cannot be sent would cost the worker its connection.
            full["reason"] = sendable(full["reason"], REASON)
        return full

    def _handle(self, do: str, run: str, **msg: Any) -> None:
        """Handle a message of the scheduler."""
        if run != self.run:
            return
        if do == "verify":
            threading.Thread(target=self._loader.verify, kwargs=msg, name="dask-resilient-verify", daemon=True).start()
        elif self._duty.handle(do, msg) or self.saver is None:
            return
        elif do == "write":
            self.saver.grant(msg["key"], msg["attempt"], Place.from_dict(msg["place"]))
        elif do == "drop":
            self.saver.drop(msg["attempt"])

    def _look(self) -> None:
        """Keep staged memory from pushing the worker into spilling, and notice a store that hangs."""
        if self.saver is None or not self.saver.staged:
            return
        self.saver.check()
        manager = self.worker.memory_manager
        share = manager.memory_target_fraction or manager.memory_spill_fraction
        limit = share * manager.memory_limit if share and manager.memory_limit else None
        if limit and self.worker.monitor.get_process_memory() > limit:
            self.saver.shed("the worker passed its memory target", late=False)

    def transition(self, key: Any, start: str, finish: str) -> None:
        """Hear of every transition of the worker's tasks. Never raises."""
        self._monitor.transition(key, start, finish)

    # -- inside tasks ------------------------------------------------------------------------------------------------

    def save(self, value: Any, ticket: Mapping[str, Any]) -> None:
        """Stage the value of the task that runs in this thread and queue it. Never raises."""
        key: Any = None
        begin = perf_counter()
        try:
            key = self.worker.get_current_task()
            reason = self._save(value, ticket, key, begin)
        except Exception as e:
            logger.warning("dask-resilient: could not stage a partition of %r", ticket.get("name"), exc_info=True)
            reason = f"staging failed: {e!r}"
        if reason is not None:
            who = self._who(key, ticket)
            self.send({"kind": "not-saved", "attempt": None, "reason": reason, "failed": False, **who})

    def _who(self, key: Any, ticket: Mapping[str, Any]) -> dict[str, Any]:
        task = self.worker.state.tasks.get(key)
        # In this order: a run that is overtaken just now gives its own id, or none.
        run_id = task.run_id if task is not None else None
        if key in self._unlink.overtaken:
            run_id = None
        return {
            "key": key,
            "name": ticket["name"],
            "npartitions": ticket["npartitions"],
            "run_id": run_id,
        }

    def _save(self, value: Any, ticket: Mapping[str, Any], key: Any, begin: float) -> str | None:
        if not self._opened.wait(OPEN_SECONDS):
            self.reason = f"the store did not answer within {OPEN_SECONDS:g} s"
            self._opened.set()  # one wait is enough
        if self.saver is None:
            return f"this worker is unprotected: {self.reason}"
        if self.saver.off is not None:
            return self.saver.off
        if key != ticket["key"] and not is_renamed(key, ticket["key"]):
            return f"its task was merged into {key!r}"
        staged = partitions.stage(value)
        if isinstance(staged, Declined):
            return staged.reason
        description = ticket.get("milestone")
        if dims := ticket.get("dims"):
            staged = replace(staged, dimension_names=dims)
        attempt = uuid4().hex
        who = self._who(key, ticket)
        facts = self.facts(key, begin) | {"temporary": description is None}
        ids = frozenset((ticket.get("ids") or {}).values())
        item = Item(attempt, key, staged, facts, description, ids=ids)
        reason = self.saver.queue(item)
        if reason is None:
            self.send({"kind": "staged", "attempt": attempt, "nbytes": staged.nbytes, **who})
        return reason

    def facts(self, key: Any, begin: float) -> dict[str, Any]:
        """Give what a receipt says of where a partition comes from."""
        host = socket.gethostname()
        now = time()
        return {
            "key": digest(repr(key)),
            "run": self.run,
            "producer": {
                "device": self.gpu.device(),
                "host": host,
                "worker": self.worker.address,
                "staged": now,
            },
            "parents": (),
            "seconds": {"stage": perf_counter() - begin},
        }

    def load(self, ticket: Mapping[str, Any]) -> Any:
        """Give a stored value back, or report how it ended and raise `Reschedule`: never an error of the user's."""
        return self._loader.load(ticket)


def _ignore(**msg: Any) -> None:
    """Take a late message of a scheduler's side that has left."""
