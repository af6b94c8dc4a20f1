"""The handle: a thin call table, each method one call to the scheduler that gives rows (lists of plain dicts)."""

from __future__ import annotations

import logging
import warnings
import weakref
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

import dask.config

from dask_resilient.client.asking import ask, checked, who
from dask_resilient.client.explanation import Explanation
from dask_resilient.client.report import Report
from dask_resilient.errors import NotInstalledError, ResilienceWarning, SettingError
from dask_resilient.scheduler.answers import REFUSED

logger = logging.getLogger("dask_resilient")


_handles: list[weakref.ref[Handle]] = []
"""Of this process, the newest last."""


def newest_handle() -> Handle | None:
    """Give the handle that was made last of those that can be asked, None if there is none."""
    for reference in reversed(_handles):
        handle = reference()
        if handle is not None and handle.is_of_use:
            return handle
    return None


class Handle:
    """Asks the plugin that is installed on a client's cluster.

    Every method blocks, or gives an awaitable where the client is asynchronous.
    """

    def __init__(self, client: Any, *, enabled: bool = True, said: Mapping[str, str] | None = None) -> None:
        self._client = client
        self._said = None if said is None else dask.config.set(said)
        """Settings of this process that go with this installation."""
        self._enabled = enabled
        _handles[:] = [each for each in _handles if each() is not None] + [weakref.ref(self)]
        self._left = False
        """Whether this handle has uninstalled: asking a plugin that is not there makes Dask log a traceback."""

    def __repr__(self) -> str:
        """Say what it is a handle of."""
        return f"<dask_resilient.Handle on {self._client.scheduler.address if self._client.scheduler else 'nothing'}>"

    def workers(self) -> Any:
        """Give a row a worker.

        Keys of a row are ``worker, name, host``; ``device``, the UUID of the worker's own GPU, else
        ``host:<host>/<name>``; ``gpu``, the name of the GPU that it sees, empty if it sees none or that is not known
        yet; ``phase``; ``health`` (healthy, degraded, unhealthy, unknown), what is asked for as its ``class`` (observe,
        degrade, kill, drain, evict; None without a verdict), the ``rule`` that says so, empty if none does, its
        ``evidence`` (sentences), whether what the worker holds on the device is ``readable`` (None = not known),
        ``since`` when (UNIX s), and what is ``unknown`` of it, with reasons; ``protected``, and the ``reason`` if it is
        not.
        """
        return self._call("workers")

    def devices(self) -> Any:
        """Give a row a device that has a worker or is out of service, also where its workers are gone.

        There is none while quarantine is switched off.

        Keys of a row are ``device, host, phase``; ``since`` when (UNIX s; None for one that was never out of service);
        the ``rule`` and ``evidence`` (sentences) that put it there, and ``by`` whom; ``until_released``, whether only
        an operator brings it back; and the addresses of its ``workers`` that are there to stay.
        """
        return self._call("devices")

    def incidents(self) -> Any:
        """Give a row a loss, and a row a decision about a device.

        Keys of a row are ``id, kind, time`` (UNIX s), ``worker, device, cause, lost, reloaded, recomputed`` (counts),
        ``keys`` (the first 1,000), ``nbytes`` and ``seconds`` until whole again (None while it is not). The kind is
        ``loss``, or ``decision`` or ``declined``; those two have also ``host``, the phases ``before`` and ``after``,
        ``rule``, ``evidence``, ``by`` whom, whether it is a ``fact``, ``actions``, why it was ``declined``, the
        ``outcome``, and how many results were ``saved`` and ``moved``; their ``seconds`` are those until it was done.
        """
        return self._call("incidents")

    def checkpoints(self) -> Any:
        """Give a row a marked partition.

        Keys of a row are ``name, key, index, state`` (saving, durable, revoked, failed, not saved), ``nbytes,
        stored_nbytes, worker, seconds`` (of the write), ``late`` (taken from a worker that was to leave, for this run
        only; such a row need be of no marked partition) and ``reason``.
        """
        return self._call("checkpoints")

    def report(self) -> Any:
        """Give the report: what failed and came back how, and whether you are protected now. Printing it is enough."""
        return self._sync(self._report)

    def explain(self, name: str) -> Any:
        """Say what was reused of the milestones of a name, and why not the rest; printing it is enough.

        Of those whose graphs were sent in this run. Its ``rows`` say the same as plain values.

        Raises
        ------
        SettingError
            If this run has met no milestone of that name; the message names those that it has.
        """
        return self._sync(self._explain, name=checked("name", name))

    def quarantine(self, x: str | int, reason: str) -> Any:
        """Take a device out of service: what it holds is saved or moved, and its workers get no more tasks.

        Parameters
        ----------
        x
            The device, or the address or the name of one of its workers.
        reason
            In words, for those who read the row later; the first 500 characters are kept, in one line.

        Returns
        -------
        Rows of what was decided, as in `incidents`.

        Raises
        ------
        SettingError
            A `ValueError`: if nothing is called `x`, the message names the devices; if `reason` says nothing; or if
            ``resilience.enabled`` or ``resilience.quarantine.enabled`` is false.

        Notes
        -----
        An operator's word is not bound by the breaker: it may take the last device.
        """
        return self._operate("quarantine", x, reason)

    def release(self, x: str | int, reason: str = "") -> Any:
        """Put a device back into service, whatever took it out; takes, gives and raises what `quarantine` does.

        A worker that was closed does not come back by this: whoever started it starts another one. The reason may be
        left out.
        """
        return self._operate("release", x, reason)

    def complete(self) -> Any:
        """Mark the run as complete in the store; nothing is deleted."""
        return self._call("complete")

    def uninstall(self, wait: float | None = None) -> Any:
        """Wait up to `wait` seconds (setting ``resilience.leave``) for what is under way, then undo everything.

        Gives whether everything under way ended in time.
        """
        return self._sync(self._uninstall, wait=wait)

    @property
    def client(self) -> Any:
        """The client that it asks through."""
        return self._client

    @property
    def is_of_use(self) -> bool:
        """Whether it can be asked here and now, by code that waits for the answer."""
        return self._enabled and not self._left and not self._client.asynchronous and self._client.status == "running"

    def ask(self, method: str, **kwargs: Any) -> Any:
        """Call a method of the plugin by its name; raises `NotInstalledError` or `SettingError` as the others do."""
        return self._call(method, **kwargs)

    # -- calls -------------------------------------------------------------------------------------------------------

    def _call(self, method: str, **kwargs: Any) -> Any:
        return self._sync(self._ask, method, **kwargs)

    def _sync(self, do: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self._client.status in ("closing", "closed"):
            raise NotInstalledError(
                f"{self._client!r} is {self._client.status}: make a new distributed.Client, and call "
                "dask_resilient.connect(client)"
            )
        return self._client.sync(do, *args, **kwargs)

    def _operate(self, what: str, x: str | int, reason: str) -> Any:
        name = checked("x", str(x) if type(x) is int else x)  # names of workers may be numbers
        words = checked("reason", reason)
        if not self._enabled:
            raise SettingError(f"cannot {what} {name!r}: resilience.enabled is false, so nothing is installed")
        return self._call(what, x=name, reason=words, by=who())

    async def _ask(self, method: str, **kwargs: Any) -> Any:
        if not self._enabled:
            return []
        answer = None if self._left else await ask(self._client, method, **kwargs)
        if answer is None:
            raise NotInstalledError(
                "no dask-resilient plugin runs on this scheduler (any more): call dask_resilient.install(client) again"
            )
        if isinstance(answer, Mapping) and REFUSED in answer:
            raise SettingError(answer[REFUSED])
        return [dict(row) for row in answer] if isinstance(answer, (list, tuple)) else answer

    async def _report(self) -> Report:
        if not self._enabled:
            return Report.disabled()
        return Report(
            status=await self._ask("status"),
            workers=await self._ask("workers"),
            devices=await self._ask("devices"),
            incidents=await self._ask("incidents"),
            checkpoints=await self._ask("checkpoints"),
        )

    async def _explain(self, name: str) -> Explanation:
        return Explanation.of(await self._ask("explain", name=name))

    async def _uninstall(self, wait: float | None) -> bool:
        if not self._enabled:
            return True
        if self._said is not None:
            self._said.__exit__(None, None, None)
            self._said = None
        try:
            ended = bool(await self._ask("uninstall", wait=wait))
        except NotInstalledError:
            ended = True  # gone already: what was asked for is so
        self._left = True
        return ended

    # -- leaving -----------------------------------------------------------------------------------------------------

    def __enter__(self) -> Handle:
        """Give the handle itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        """Mark the run complete unless an exception passes, and uninstall."""
        if self._is_there():
            self._client.sync(self._leave, kind is None)

    async def __aenter__(self) -> Handle:
        """Give the handle itself."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        """Mark the run complete unless an exception passes, and uninstall."""
        if self._is_there():
            await self._leave(kind is None)

    def _is_there(self) -> bool:
        """Say whether there is anything to leave: a client that was closed in the block has no event loop to ask on."""
        return self._enabled and self._client.status == "running"

    async def _leave(self, good: bool) -> None:
        """Leave; what fails here neither fails a block that ended well nor hides the exception that passes."""
        try:
            if good:
                await self._ask("complete")
            await self._uninstall(None)
        except NotInstalledError:
            return  # another client was first
        except Exception as e:
            text = f"leaving failed, so the plugin may still be installed: {e!r}"
            if good:
                warnings.warn(text, ResilienceWarning, stacklevel=2)
            else:
                logger.warning("dask-resilient: %s", text)
