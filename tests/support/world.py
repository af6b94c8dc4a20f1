"""Graphs of user functions under explicit keys, whose runs and loads tests count, hold up and make fail.

Scheduler, workers and client of these tests live in one process, so one `World` is all that they share.
"""

from __future__ import annotations

import threading
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from dask._task_spec import Task, TaskRef
from dask.delayed import Delayed
from dask.highlevelgraph import HighLevelGraph, MaterializedLayer
from distributed import Client, Future
from distributed.client import futures_of

from dask_resilient import tasks

Spec = Mapping[str, list[str]]
"""Which keys each key is computed from."""

HELD = 20.0
"""Seconds after which a held function goes on, so that a failed test ends."""


class UserError(Exception):
    """What a user's function raises on demand."""


class World:
    """What happens in one test."""

    def __init__(self) -> None:
        self.runs: list[str] = []
        """Keys of the user functions that began, in order; without those that only keep others known."""
        self.loads: list[tuple[str, str]] = []
        """Key and worker of the loads that began, in order."""
        self.marked: Callable[[str], bool] = lambda _: False
        """Whether the function of a key hands its value to `tasks.save`."""
        self.errors: dict[str, int] = {}
        """How many more times a key raises `UserError`."""
        self.faults: dict[str, BaseException] = {}
        """What a load of a key raises."""
        self.other = 0
        """Part of every value: another function under the same keys."""
        self._gates: dict[str, threading.Event] = {}
        self._lock = threading.Lock()

    def ran(self, key: str) -> int:
        """Give how often the function of a key began."""
        return self.runs.count(key)

    def loaded(self, key: str) -> int:
        """Give how often a load of a key began."""
        return sum(k == key for k, _ in self.loads)

    def counts(self) -> Counter[str]:
        """Give the runs so far, by key."""
        return Counter(self.runs)

    # -- holding up --------------------------------------------------------------------------------------------------

    def hold(self, *keys: str) -> None:
        """Keep functions from going on: K before it does anything, ``"end K"`` behind its save, ``"load K"`` a load."""
        for key in keys:
            self._gates[key] = threading.Event()

    def free(self, *keys: str) -> None:
        """Let them go on; without keys, all."""
        for key in keys or list(self._gates):
            self._gates.pop(key).set()

    def pass_(self, name: str) -> None:
        """Go on, or wait until that is free."""
        gate = self._gates.get(name)
        if gate is not None:
            gate.wait(HELD)

    # -- called in the threads of workers ----------------------------------------------------------------------------

    def run(self, key: str, *args: Any) -> Any:
        """Be the user's function of a key."""
        with self._lock:
            if not key.startswith("keep-"):
                self.runs.append(key)
            fails = self.errors.get(key, 0)
            self.errors[key] = max(fails - 1, 0)
        self.pass_(key)
        if fails:
            raise UserError(key)
        value = make(key, args, self.other)
        if self.marked(key):
            tasks.save(value, {"name": "test", "key": key, "npartitions": 1, "keep": False})
        self.pass_(f"end {key}")
        return value

    def load(self, key: str, worker: str) -> None:
        """Count a load, hold it up, make it fail."""
        with self._lock:
            self.loads.append((key, worker))
        self.pass_(f"load {key}")
        if key in self.faults:
            raise self.faults[key]


_worlds: dict[int, World] = defaultdict(World)


def enter(world: World) -> int:
    """Make a world known to functions that come out of a pickle; gives its number."""
    number = len(_worlds)
    _worlds[number] = world
    return number


def run(number: int, key: str, *args: Any) -> Any:
    """Run the function of a key; importable, so pickled by name."""
    return _worlds[number].run(key, *args)


def make(key: str, args: Iterable[Any], other: int = 0) -> Any:
    """Give the value of a key: it depends on the key and on every value it was computed from."""
    text = repr((key, other, [int(a[0]) for a in args]))
    return np.full(8, zlib.crc32(text.encode()), np.int64)


def expected(spec: Spec, key: str, other: int = 0) -> int:
    """Give what the values of a key are filled with."""
    return int(make(key, [[expected(spec, dep, other)] for dep in spec[key]], other)[0])


def lineage(spec: Spec, keys: Iterable[str]) -> dict[str, list[str]]:
    """Give the part of a graph that some keys need."""
    needed: dict[str, list[str]] = {}
    stack = list(keys)
    while stack:
        key = stack.pop()
        if key not in needed:
            needed[key] = spec[key]
            stack.extend(spec[key])
    return needed


def persist(client: Client, number: int, spec: Spec, keys: Iterable[str], **annotations: Any) -> list[Future]:
    """Submit a graph, and give the futures of some of its keys."""
    keys = list(keys)
    nodes = {k: Task(k, run, number, k, *map(TaskRef, deps)) for k, deps in lineage(spec, keys).items()}
    graph = HighLevelGraph({"g": MaterializedLayer(nodes, annotations=annotations or None)}, {"g": set()})
    persisted = client.persist([Delayed(key, graph, layer="g") for key in keys], optimize_graph=False)
    futures = {future.key: future for one in persisted for future in futures_of(one)}
    return [futures[key] for key in keys]
