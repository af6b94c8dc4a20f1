"""The jobs of these tests: ``a -> b -> c -> milestone -> d`` over some partitions, counted, and held on demand."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any
from uuid import uuid4

import dask
import dask.array as da
import numpy as np
from distributed import Future, wait
from distributed.client import futures_of

import dask_resilient as dr
from tests.processes.preload import pass_gate
from tests.support.calls import Calls
from tests.support.processes import Processes

SIZE = 50
"""Elements of a partition."""


class UserError(Exception):
    """What a user's function raises on demand."""


def step(block: Any, where: str, name: str, block_id: Any = None) -> Any:
    """Be one user function on one partition: counted when it begins, then held while its gate exists."""
    i = block_id[0]
    Calls(f"{where}/calls").add(f"{name}-{i}")
    pass_gate(Path(where, "gates", name))
    pass_gate(Path(where, "gates", f"{name}-{i}"))
    if Path(where, "gates", f"error-{name}-{i}").exists():
        raise UserError(f"{name}-{i}")
    return value(name, i, block)


def source(where: str, name: str, size: int = SIZE, block_id: Any = None) -> Any:
    """Be the first user function."""
    return step(np.arange(size, dtype=float), where, name, block_id=block_id)


def add(left: Any, right: Any) -> Any:
    """Be a function of two partitions."""
    return left + right


def value(name: str, i: int, block: Any) -> Any:
    """Give what a function makes of a block."""
    return block * 2 + i + ord(name)


class Job:
    """One graph, and what the test learns about it.

    Parameters
    ----------
    x
        The cluster.
    n
        Partitions.
    below, above
        Names of the functions below and above the milestone, one letter each.
    mark
        Whether there is a milestone.
    size
        Elements of a partition.
    """

    def __init__(
        self, x: Processes, n: int, below: str = "abc", above: str = "d", *, mark: bool = True, size: int = SIZE
    ) -> None:
        self.x = x
        self.n = n
        self.size = size
        self.below, self.above = below, above
        self.lost: set[int] = set()
        """Partitions of the milestone that were in memory on killed workers only."""
        self.begun: dict[str, set[int]] = {}
        """By function, the partitions for which it was running on a killed worker."""
        self.bad: set[int] = set()
        """Partitions whose copy the test has damaged."""
        self.failed: set[int] = set()
        """The partition whose function above raised."""
        self.first_lost = 0
        """How many were lost in an earlier event of the same test."""
        self.extra: Any = None
        """Another collection that is kept."""
        self.token = uuid4().hex[:8]
        meta = np.empty((0,))
        where = str(x.where)
        made = da.map_blocks(
            source,
            where,
            below[0],
            size,
            chunks=((size,) * n,),
            dtype=float,
            meta=meta,
            name=f"{below[0]}-{self.token}",
        )
        for name in below[1:]:
            made = self.then(made, name)
        self.milestone = dr.checkpoint(made, "clean") if mark else made
        self.result = self.milestone
        for name in above:
            self.result = self.then(self.result, name)
        self.held: Any = None

    def then(self, block: Any, name: str) -> Any:
        """Apply one more user function to each partition."""
        where = str(self.x.where)
        return block.map_blocks(step, where, name, dtype=float, meta=np.empty((0,)), name=f"{name}-{self.token}")

    def plus(self, name: str) -> Any:
        """Add one value to each partition of the milestone, made by a task of its own."""
        one = dask.delayed(source)(str(self.x.where), name, block_id=(0,), dask_key_name=f"{name}-{self.token}")
        return da.map_blocks(add, self.milestone, one, dtype=float, meta=np.empty((0,)), name=f"sum-{self.token}")

    # -- running -----------------------------------------------------------------------------------------------------

    def persist(self, collection: Any) -> Any:
        """Compute a collection on the cluster, keeping it there."""
        return self.x.client.persist(collection)

    def hold_milestone(self) -> None:
        """Compute the milestone, keep it in memory, and wait until it is durable."""
        self.held = self.persist(self.milestone)
        wait(futures_of(self.held), 30)
        self.x.durable(self.n)

    def hold_consumers(self) -> None:
        """Let every worker be at work above the milestone, which is durable and wanted by nobody else."""
        self.hold_milestone()
        self.x.gate(self.above[0])
        self.held = self.persist(self.result)
        self.everyone_runs(self.above[0])
        self.x.until(lambda: not any(self.x.scheduler.tasks[key].who_wants for key in self.milestone_keys()))

    def hold_sources(self) -> None:
        """Let some partitions be durable, some running, and the rest queued on the scheduler."""
        first = self.below[0]
        workers = len(self.x.addresses())
        self.x.gate(first)
        self.held = self.persist(self.milestone)
        self.everyone_runs(first)
        self.x.gate(*(f"{first}-{i}" for i in range(self.n) if not self.x.calls.counts()[f"{first}-{i}"]))
        self.x.open_gate(first)
        self.x.durable(workers)
        self.x.until(lambda: sum(self.x.calls.counts()[f"{first}-{i}"] for i in range(self.n)) == 2 * workers)
        assert len(self.x.ask(lambda: list(self.x.scheduler.queued))) == self.n - 2 * workers

    def everyone_runs(self, name: str) -> None:
        """Wait until every worker runs this function."""
        workers = self.x.scheduler.workers
        self.x.until(lambda: all(self.running(ws, name) for ws in workers.values()), what=f"every worker runs {name}")

    def running(self, ws: Any, name: str) -> set[int]:
        counts = self.x.calls.counts()
        last = (
            self.below[-1] if name in self.below else name
        )  # the functions below the milestone are fused into one task
        here = {ts.key[1] for ts in ws.processing if isinstance(ts.key, tuple) and ts.key[0] == f"{last}-{self.token}"}
        return {i for i in here if counts[f"{name}-{i}"]}

    def finish(self) -> None:
        """Compute the result and keep it; the milestone is let go, but known."""
        self.held = self.persist(self.result)
        wait(futures_of(self.held), 30)
        self.x.durable(self.n)

    def futures(self) -> list[Future]:
        """Give the futures that are kept."""
        return list(futures_of(self.held))

    # -- looking -----------------------------------------------------------------------------------------------------

    def milestone_keys(self) -> list[Any]:
        """Give the keys of the milestone."""
        return [(self.milestone.name, i) for i in range(self.n)]

    def look(self, victims: Iterable[str]) -> None:
        """Note what the loss of some workers will cost."""
        gone = set(victims)
        tasks = self.x.scheduler.tasks

        def look() -> None:
            for i, key in enumerate(self.milestone_keys()):
                holders = {ws.address for ws in tasks[key].who_has or ()} if key in tasks else set()
                if holders and holders <= gone:
                    self.lost.add(i)
            for address in gone:
                for name in "abcdeg":
                    running = self.running(self.x.scheduler.workers[address], name)
                    if running:
                        self.begun.setdefault(name, set()).update(running)

        self.x.ask(look)

    def holders(self) -> list[str]:
        """Give the workers that hold partitions of the milestone, by name."""
        tasks = self.x.scheduler.tasks
        held = self.x.ask(lambda: {ws.address for key in self.milestone_keys() for ws in tasks[key].who_has or ()})
        return [address for address in self.x.addresses() if address in held]

    # -- judging -----------------------------------------------------------------------------------------------------

    def expected(self, names: str) -> Any:
        """Give what these functions make, computed here."""
        blocks = []
        for i in range(self.n):
            block = np.arange(self.size, dtype=float)
            for name in names:
                block = value(name, i, block)
            blocks.append(block)
        return np.concatenate(blocks)

    def right(self, collection: Any = None, names: str | None = None) -> None:
        """Check the values of a persisted collection, by default of the one that is kept; no worker gets a replica."""
        if collection is None:
            collection = self.held
            names = self.below if collection.name == self.milestone.name else self.below + self.above
        assert names is not None
        np.testing.assert_array_equal(self.gather(collection), self.expected(names))

    def gather(self, collection: Any) -> Any:
        """Fetch a persisted collection."""
        futures = {future.key: future for future in futures_of(collection)}
        values = self.x.client.gather([futures[key] for key in collection.__dask_keys__()])
        return np.concatenate(values)

    def repeated(self, most: int = 2) -> dict[str, set[int]]:
        """Give, by function, the partitions for which it ran again; none may run more than `most` times."""
        again: dict[str, set[int]] = {}
        for called, times in self.x.calls.counts().items():
            name, _, i = called.partition("-")
            if times > 1:
                assert times <= most, f"{called} ran {times} times"
                again.setdefault(name, set()).add(int(i))
        return again
