"""One cluster of processes for all tests that leave it whole, and what holds around each of them."""

from __future__ import annotations

import contextlib
import logging
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dask

from tests.support.processes import Processes


class Pool:
    """Keeps one cluster for the tests that can share it."""

    def __init__(self, directory: Callable[[], Path]) -> None:
        self._directory = directory
        self._kept: Processes | None = None
        self._spec: tuple[Any, ...] = ()

    def get(self, workers: int, threads: int = 1, config: dict[str, Any] | None = None) -> Processes:
        """Give a cluster of this size and configuration, the last one if it is whole and was made so."""
        spec = (workers, threads, tuple(sorted((config or {}).items())))
        if self._kept is None or self._kept.worn or self._spec != spec:
            self.close()
            self._kept, self._spec = Processes(self._directory(), workers, threads, config), spec
        return self._kept

    def close(self) -> None:
        """Close the cluster that is kept."""
        kept, self._kept = self._kept, None
        if kept is not None:
            kept.close()


@contextlib.contextmanager
def one_test(x: Processes, where: Path) -> Iterator[Processes]:
    """Run one test on a cluster; one that fails wears it out."""
    try:
        x.begin(where)
    except BaseException:
        x.worn = True
        raise
    loggers = [logging.getLogger("distributed"), logging.getLogger("dask_resilient")]
    for logger in loggers:
        logger.addHandler(x.log)
    try:
        with dask.config.set(x.config):
            yield x
            x.check()
    except BaseException:
        x.worn = True
        raise
    finally:
        x.free()
        for logger in loggers:
            logger.removeHandler(x.log)
        shutil.rmtree(x.store, ignore_errors=True)
