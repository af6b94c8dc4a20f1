"""The user's functions of one run, and the seam to the store; scheduler, workers and client live in this process."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from dask._task_spec import Task, TaskRef
from dask.delayed import Delayed
from dask.highlevelgraph import HighLevelGraph, MaterializedLayer
from distributed import Client, Future
from distributed.client import futures_of

from dask_resilient import tasks
from dask_resilient.store import PosixStore
from tests.fuzz.case import Case
from tests.support.world import HELD, UserError, lineage, make

Call = Callable[[], None]

_plays: dict[int, Play] = {}


class Play:
    """What the functions of one run do, and how often they were run."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.number = len(_plays)
        _plays.clear()  # of the runs before, nothing runs any more
        _plays[self.number] = self
        self.spec: dict[str, Sequence[str]] = dict(case.spec)
        """Grows by second graphs."""
        self.version = 0
        """Part of every value: other functions under the same keys."""
        self.runs: Counter[str] = Counter()
        """How often each function began."""
        self.errors = dict(case.errors)
        """How many more times a function raises."""
        self.erring = set(case.errors)
        """Keys that raise, or did."""
        self.held: list[str] = []
        """Functions that wait before or behind their save."""
        self._gates: dict[str, threading.Event] = {}
        self.marked = set(case.marked)
        self._expected: dict[tuple[int, str], int] = {}
        self._lock = threading.Lock()

    def expected(self, key: str) -> int:
        """Give what the value of a key is filled with: a pure function of the graph."""
        at = (self.version, key)
        if at not in self._expected:
            args = [[self.expected(dep)] for dep in self.spec[key]]
            self._expected[at] = int(make(key, args, self.version)[0])
        return self._expected[at]

    # -- holding up --------------------------------------------------------------------------------------------------

    def hold(self, where: str) -> None:
        """Let every marked function wait ``"before"`` or ``"behind"`` its save."""
        self.held.clear()
        self._gates[where] = threading.Event()

    def free(self) -> None:
        """Let them go on."""
        gates, self._gates = self._gates, {}
        for gate in gates.values():
            gate.set()

    def _pass(self, key: str, where: str) -> None:
        gate = self._gates.get(where)
        if gate is not None:
            self.held.append(key)
            gate.wait(HELD)

    # -- called in the threads of workers ----------------------------------------------------------------------------

    def run(self, key: str, version: int, args: Sequence[Any]) -> Any:
        """Be the user's function of a key."""
        with self._lock:
            self.runs[key] += 1
            fails = self.errors.get(key, 0)
            if fails:
                self.errors[key] = fails - 1
        half = self.case.seconds.get(key, 0.0) / 2
        time.sleep(half)
        if fails:
            raise UserError(key)
        value = make(key, args, version)
        if key in self.marked:
            self._pass(key, "before")
            tasks.save(value, {"name": "fuzz", "key": key, "npartitions": len(self.marked), "keep": False})
            self._pass(key, "behind")
        time.sleep(half)
        return value


def compute(number: int, key: str, version: int, *args: Any) -> Any:
    """Run the function of a key; importable, so pickled by name."""
    return _plays[number].run(key, version, args)


def submit(client: Client, play: Play, keys: Iterable[str], **options: Any) -> list[Future]:
    """Submit what some keys need, and give their futures."""
    keys = list(keys)
    needed = lineage(play.spec, keys)
    nodes = {k: Task(k, compute, play.number, k, play.version, *map(TaskRef, deps)) for k, deps in needed.items()}
    graph = HighLevelGraph({"g": MaterializedLayer(nodes, annotations=options or None)}, {"g": set()})
    persisted = client.persist([Delayed(key, graph, layer="g") for key in keys], optimize_graph=False)
    futures = {future.key: future for one in persisted for future in futures_of(one)}
    return [futures[key] for key in keys]


class Gate:
    """The seam to every store of this process: what happens before a read and before a write."""

    def __init__(self) -> None:
        self.before_read: Call | None = None
        self.before_write: Call | None = None
        self._events: list[threading.Event] = []

    def hold(self) -> tuple[Call, Call]:
        """Give a call that waits, and the one that lets it go on."""
        event = threading.Event()
        self._events.append(event)
        return lambda: void(event.wait(HELD)), event.set

    def free(self) -> None:
        """Let everything through."""
        self.before_read = self.before_write = None
        for event in self._events:
            event.set()

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Stand before every store."""
        read, write = PosixStore.read, PosixStore.write

        def gated_read(*args: Any) -> Any:
            if (before := self.before_read) is not None:
                before()
            return read(*args)

        def gated_write(*args: Any) -> Any:
            if (before := self.before_write) is not None:
                before()
            return write(*args)

        PosixStore.read, PosixStore.write = gated_read, gated_write  # type: ignore[method-assign]
        try:
            yield
        finally:
            PosixStore.read, PosixStore.write = read, write  # type: ignore[method-assign]


def void(_: object) -> None:
    """Give nothing."""


def raising(error: BaseException) -> Call:
    """Give a call that raises."""

    def call() -> None:
        raise error

    return call
