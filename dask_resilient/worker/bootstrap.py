"""The plugins that the scheduler hands to every worker and nanny, also to those that join or restart later.

They are pickled by value (`dumps`), so that they unpickle on a worker without this package: a plugin that does not
unpickle would keep such a worker from joining at all. For the same reason nothing of the package is imported outside
`setup`.
"""

from __future__ import annotations

from typing import Any

from distributed.diagnostics.plugin import NannyPlugin, WorkerPlugin


class ResilienceWorker(WorkerPlugin):
    """Starts the worker's side, and never fails or delays the worker.

    Parameters
    ----------
    settings
        `Settings.to_dict()`.
    run
        Id of this life of the plugin.
    token
        Token that the scheduler read in the store, or None.
    rules
        What the user's file of rules says.
    probes
        Probes of the user, each with its name, pickled.
    """

    name = "resilience"

    def __init__(
        self,
        settings: dict[str, Any],
        run: str,
        token: str | None,
        rules: dict[str, Any] | None = None,
        probes: tuple[tuple[str, bytes], ...] = (),
    ) -> None:
        self.settings = settings
        self.run = run
        self.token = token
        self.rules = rules
        self.probes = probes
        self.side: Any = None

    def setup(self, worker: Any) -> None:
        """Start the side; whatever goes wrong is told to the scheduler, which shows the worker as unprotected."""
        import threading

        if worker.status.name in ("closing", "closed", "failed"):
            return  # its plugins are, or were, torn down already: nobody would end our thread
        try:
            from dask_resilient.config import Settings
            from dask_resilient.worker.side import Side

            self.side = Side(worker, Settings(**self.settings), self.run, self.token, self.rules, self.probes)
            self.side.start()
        except Exception as e:
            self.side = None
            msg = {"op": "resilience", "run": self.run, "kind": "failed", "reason": f"set-up failed: {e!r}"}
            worker.loop.add_callback(worker.batched_send, msg)
            return

        side = self.side

        def opened() -> None:
            if self.side is side:
                side.hello()
            elif side.saver is not None:
                side.saver.close()

        def open_store() -> None:
            side.open()
            worker.loop.add_callback(opened)

        # A store that hangs must keep the worker neither from joining nor, hence a daemon, from ending.
        threading.Thread(target=open_store, name="dask-resilient-open", daemon=True).start()

    def transition(self, key: Any, start: str, finish: str, **kwargs: Any) -> None:  # noqa: ARG002
        """Hear of every transition of the worker's tasks."""
        if self.side is not None:
            self.side.transition(key, start, finish)

    def teardown(self, worker: Any) -> None:  # noqa: ARG002
        """Undo everything on this worker."""
        side, self.side = self.side, None
        if side is not None:
            side.stop()


class ResilienceNanny(NannyPlugin):
    """Replaces the worker's process at the scheduler's word, and takes NVML off the nanny's event loop.

    A call into NVML that hangs there would keep it from restarting its worker.
    """

    name = "resilience"
    restart = False

    def __init__(self) -> None:
        self._undo: Any = None
        self._nanny: Any = None

    def setup(self, nanny: Any) -> None:
        """Put the stand-in; a nanny without the package, or where that fails, goes on as it was."""
        import contextlib

        with contextlib.suppress(Exception):
            from dask_resilient.internals.nvml import off_loop

            self._undo = off_loop(nanny, None)
        self._nanny = nanny
        nanny.handlers["resilience"] = self.end

    async def end(self, timeout: float, last: bool = False) -> str:  # noqa: ASYNC109 - the nanny's own word
        """End the worker's process, by force after most of `timeout`; with `last` the nanny ends with it.

        Else the nanny starts another one at once: the cluster would take a worker that is away for long for lost.
        """
        import contextlib

        if last:  # not "close": that is a word of Dask's own in every call, and never arrives
            self._nanny.close_gracefully(reason="resilience-evict")
        # Dask waits a fifth of `timeout` for the end of a process that was killed: on a busy host it comes later.
        with contextlib.suppress(TimeoutError):
            await self._nanny.kill(timeout=timeout, reason="resilience")
        return "OK"

    def teardown(self, nanny: Any) -> None:
        """Take everything away."""
        nanny.handlers.pop("resilience", None)
        undo, self._undo = self._undo, None
        if undo is not None:
            undo()


def dumps(plugin: WorkerPlugin | NannyPlugin) -> bytes:
    """Pickle a plugin of this module by value."""
    import sys

    import cloudpickle

    module = sys.modules[__name__]
    cloudpickle.register_pickle_by_value(module)
    try:
        return bytes(cloudpickle.dumps(plugin))
    finally:
        cloudpickle.unregister_pickle_by_value(module)
