"""Rules that can be switched off: the fuzzer must notice."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from dask_resilient.internals.detour import Detour
from dask_resilient.internals.rows import Rows
from dask_resilient.internals.unlink import Unlink
from dask_resilient.scheduler.copies import Copies
from dask_resilient.scheduler.watch import Watch

Mutation = Callable[[], contextlib.AbstractContextManager[Any]]


class _Deaf(set[Any]):
    """A set that takes nothing in."""

    def add(self, item: Any) -> None:
        pass


def no_unlink() -> Any:
    """Rule 1."""
    return mock.patch.object(Unlink, "_unlink", return_value=None)


def no_discard() -> Any:
    """Rule 3: the key stays in the waiters of what it no longer needs."""
    return mock.patch.object(Detour, "_give_up", staticmethod(lambda dep, ts, recs: None))


def _original(name: str, row: tuple[str, str]) -> Any:
    def plain(self: Rows, scheduler: Any, key: Any, stimulus_id: str, **kwargs: Any) -> Any:
        return self._original[row](scheduler, key, stimulus_id, **kwargs)

    return mock.patch.object(Rows, name, plain)


def no_look_ahead() -> Any:
    """Rule 4: what is lost is started for tasks that will be loaded."""
    return _original("_memory_released", ("memory", "released"))


@contextlib.contextmanager
def no_overtaken() -> Iterator[None]:
    """A value that an overtaken run staged passes for the new run's."""
    init = Unlink.__init__

    def deaf(self: Unlink, worker: Any) -> None:
        init(self, worker)
        self.overtaken = _Deaf()

    with mock.patch.object(Unlink, "__init__", deaf):
        yield


def no_run_id() -> Any:
    """Attempts of earlier lives are granted."""

    def known(self: Copies, worker: str, msg: Any) -> Any:
        ts = self._watch.scheduler.tasks.get(msg["key"])
        return None if ts is None else self._watch.ledger.entry(ts, msg["name"], int(msg["npartitions"]))

    return mock.patch.object(Copies, "_known", known)


def no_poke() -> Any:
    """Rule 12: a copy that turns up is not used by what waits."""
    return mock.patch.object(Detour, "reconsider", return_value=None)


def no_clearing() -> Any:
    """Rule 9: the user's pins stay on loads."""
    enter = Detour.enter

    def pinned(self: Detour, ts: Any, ticket: Any) -> Any:
        pins = ts.worker_restrictions
        recs = enter(self, ts, ticket)
        ts.worker_restrictions = pins
        return recs

    return mock.patch.object(Detour, "enter", pinned)


def no_lineage_shown() -> Any:
    """Rule 16: resubmitted while parked, keys look like others."""
    return mock.patch.object(
        Rows, "_generate_taskstates", lambda self, *args, **kwargs: self._generate(*args, **kwargs)
    )


def no_error_rows() -> Any:
    """Rule 7: a dependency that erred takes what was loaded with it."""
    stack = contextlib.ExitStack()
    stack.enter_context(_original("_memory_erred", ("memory", "erred")))
    stack.enter_context(_original("_released_erred", ("released", "erred")))
    return stack


def no_blame() -> Any:
    """Rule 6 is part of the row that enters: with a dependency that erred, the original is asked."""

    def row(self: Rows, scheduler: Any, key: Any, stimulus_id: str, **kwargs: Any) -> Any:
        ts = scheduler.tasks[key]
        ticket = self._ticket(ts)
        given_up = {} if ticket is None else self.detour.enter(ts, ticket)
        out = self._original["released", "waiting"](scheduler, key, stimulus_id, **kwargs)
        return {**given_up, **out[0]}, out[1], out[2]

    return mock.patch.object(Rows, "_released_waiting", row)


def no_liveness() -> Any:
    """Rule 11: rows do not ask whether the plugin is still registered."""
    init = Watch.__init__

    def deaf(self: Any, *args: Any) -> None:
        init(self, *args[:-1], lambda: True)

    return mock.patch.object(Watch, "__init__", deaf)


def no_letting_go() -> Any:
    """A load whose value nobody wants any more is held against the copy."""
    left = Watch.left

    def charged(self: Watch, key: Any, state: str, was: str, moved: bool) -> None:
        entry = self.ledger.entries.get(key)
        before = entry.bad_loads if entry is not None else 0
        left(self, key, state, was, moved)
        if entry is not None and state != "memory" and was == "processing" and not moved:
            entry.bad_loads = before + 1

    return mock.patch.object(Watch, "left", charged)


MUTATIONS: dict[str, Mutation] = {
    "unlink": no_unlink,
    "discard": no_discard,
    "look ahead": no_look_ahead,
    "overtaken": no_overtaken,
    "run id": no_run_id,
    "poke": no_poke,
    "clearing": no_clearing,
    "lineage shown": no_lineage_shown,
    "error rows": no_error_rows,
    "blame": no_blame,
    "liveness": no_liveness,
    "letting go": no_letting_go,
}
