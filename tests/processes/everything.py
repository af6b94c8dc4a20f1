"""A test-only hook on every worker: what a task gives is saved as if it were marked, and runs are counted.

Nothing is left out here on purpose, so that it is the package that has to refuse the inner parts of a P2P shuffle.
Their integers are staged as arrays: else no partition type would take them, and the refusal would not be seen.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import distributed.worker
import numpy as np
from dask._task_spec import Alias
from distributed import get_worker
from distributed.diagnostics.plugin import WorkerPlugin

from dask_resilient.core.manifest import digest
from dask_resilient.tasks import SaveTask, load
from tests.processes.preload import pass_gate
from tests.support.calls import Calls

STAGES = {
    "_shuffle_transfer": "transfer",
    "assign_index_merge_transfer": "transfer",
    "rechunk_transfer": "transfer",
    "p2p_barrier": "barrier",
    "shuffle_unpack": "unpack",
    "merge_unpack": "unpack",
    "rechunk_unpack": "unpack",
}
"""What a function does in a P2P shuffle."""

INNER = ("transfer", "alias", "barrier")
"""Parts whose values are side effects: an alias is what fusing leaves behind of a transfer's key."""


def functions(task: Any) -> Iterator[Any]:
    """Give the functions of a task, also of those that were fused into it."""
    func = getattr(task, "func", None)
    if getattr(func, "__name__", "") == "_execute_subgraph":
        for inner in task.args[0].values():
            yield from functions(inner)
    else:
        yield func


def stage(task: Any) -> str:
    """Say which part of a P2P shuffle a task is, ``other`` if of none."""
    if isinstance(task, Alias) and "transfer" in str(task.target):
        return "alias"
    names = {getattr(func, "__name__", "") for func in functions(task)}
    return next((stage for name, stage in STAGES.items() if name in names), "other")


class Everything(WorkerPlugin):
    """Counts and saves what every task gives, and holds up tasks by their part in a shuffle.

    A file ``gates/unpack`` holds every task of that part before it begins, ``gates/unpack-3`` the one whose key ends in
    3 when it has its result: an output of a shuffle begins on any worker, and then moves to the one that has its data.

    Parameters
    ----------
    where
        Directory with ``runs`` and ``gates``.
    save
        Whether values are saved, too.
    """

    name = "everything"

    def __init__(self, where: str | Path, *, save: bool = True) -> None:
        self.where = str(where)
        self.save = save

    def setup(self, worker: Any) -> None:
        """Put the hook around the function that runs a task in its thread."""
        self.original = distributed.worker._run_task_simple
        distributed.worker._run_task_simple = self._run

    def teardown(self, worker: Any) -> None:
        """Take it away."""
        distributed.worker._run_task_simple = self.original

    def _run(self, task: Any, data: dict[Any, Any], time_delay: float) -> Any:
        if load in functions(task):
            return self.original(task, data, time_delay)
        worker, part, key = get_worker(), stage(task), get_worker().get_current_task()
        self._tell("begun", part, key)
        pass_gate(Path(self.where, "gates", part))
        msg = self.original(task, data, time_delay)
        if msg["op"] == "task-finished":
            pass_gate(Path(self.where, "gates", f"{part}-{key[-1]}"))
            self._tell("done", part, key)
            if self.save and not isinstance(task, SaveTask):
                self._save(worker, key, msg["result"])
        return msg

    def _tell(self, what: str, part: str, key: Any) -> None:
        Calls(f"{self.where}/runs").add(json.dumps([what, part, str(key), digest(repr(key))]))

    def _save(self, worker: Any, key: Any, value: Any) -> None:
        plugin = worker.plugins.get("resilience")
        if plugin is not None and plugin.side is not None:
            value = np.asarray(value) if isinstance(value, int) else value
            plugin.side.save(value, {"name": "everything", "key": key, "npartitions": 1, "keep": False})


class Runs:
    """Reads what the hook has told.

    Parameters
    ----------
    where
        As for `Everything`.
    """

    def __init__(self, where: Path) -> None:
        self.where = where

    def _rows(self) -> Iterator[tuple[list[str], int]]:
        for row, times in Calls(self.where / "runs").counts().items():
            yield json.loads(row), times

    def counts(self, what: str = "done", wanted: Callable[[str], bool] = lambda part: True) -> Counter[str]:
        """Give how often the task of each key has begun, or has been done."""
        return Counter({key: n for (did, part, key, _), n in self._rows() if did == what and wanted(part)})

    def of(self, part: str, what: str = "done") -> Counter[str]:
        """Give the counts for one part of the shuffle."""
        return self.counts(what, lambda p: p == part)

    def inner(self) -> dict[str, str]:
        """Give the keys of transfers and barriers by their digest."""
        return {d: key for (_, part, key, d), _ in self._rows() if part in INNER}

    def outer(self) -> Counter[str]:
        """Give how often every other task has been done."""
        return self.counts("done", lambda part: part not in INNER)
