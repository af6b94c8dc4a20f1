"""What is around one run: settings, the log, threads that are left, and what came of it."""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

from dask_resilient.scheduler import members, watch
from tests.fuzz.case import Case
from tests.fuzz.log import LOGGERS, Log
from tests.support.cluster import CONFIG


@dataclass(slots=True)
class Outcome:
    """What came of one run."""

    problems: list[str]
    faults: Counter[str] = field(default_factory=Counter)
    endings: Counter[str] = field(default_factory=Counter)
    runs: int = 0
    loads: int = 0
    seconds: float = 0.0

    @property
    def kinds(self) -> set[str]:
        """The classes of what went wrong."""
        return {problem.partition(":")[0] for problem in self.problems}


@contextlib.contextmanager
def quick(log: Log) -> Iterator[None]:
    """Hold loads for a worker that never reports only for a moment; keep the log; forgive slow disks."""
    loggers = [logging.getLogger(name) for name in LOGGERS]
    with (
        mock.patch.object(members, "HOLD_SECONDS", 0.3),
        mock.patch.object(watch, "HOLD_SECONDS", 0.3),
        warnings.catch_warnings(),
    ):
        warnings.filterwarnings("ignore", "Creating scratch directories")
        warnings.filterwarnings("ignore", "Scheduler already contains a plugin")  # on purpose
        for logger in loggers:
            logger.addHandler(log)
        try:
            yield
        finally:
            for logger in loggers:
                logger.removeHandler(log)


def config(case: Case) -> dict[str, Any]:
    """Give the settings of a case: reloading always wins over recomputing, pauses are short."""
    return {
        **CONFIG,
        "distributed.comm.timeouts.connect": "2s",  # else what is fetched from a lost worker takes long
        "distributed.scheduler.allowed-failures": 1_000,
        "distributed.scheduler.worker-saturation": case.saturation,
        "distributed.scheduler.work-stealing": case.stealing,
        "distributed.scheduler.work-stealing-interval": "20ms",
        "distributed.scheduler.active-memory-manager.start": case.amm,
        "distributed.scheduler.active-memory-manager.interval": "30ms",
        "resilience.recover.floor": 1e9,
        "resilience.recover.timeout": case.timeout,
        "resilience.recover.pause": 0.2,
        "resilience.save.run-wait": 1,
    }


def left_threads() -> list[str]:
    """Tell where threads of the package stand that are left, and take their names: the next run begins without any."""
    problems = []
    for thread in threading.enumerate():
        if thread.name.startswith("dask-resilient"):
            frames = traceback.extract_stack(sys._current_frames()[thread.ident or 0])[-3:]
            owner = getattr(getattr(thread, "_target", None), "__self__", None)
            state = {name: value for name in ("_closing", "_items", "off") if (value := getattr(owner, name, None))}
            problems.append(f"THREAD: {thread.name} at {[(f.name, f.lineno) for f in frames]} of {state}"[:800])
            thread.name = f"left by a run: {thread.name}"
    return problems
