"""A cluster of the real dask-cuda over fake GPUs: real nannies and workers, real pynvml, real DeviceHostFile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.fakegpu import Control
from tests.support.processes import Processes


class GPUProcesses(Processes):
    """Two workers, one a GPU.

    Parameters
    ----------
    directory
        Where its files go.
    gpus
        Control of the fake GPUs.
    options
        Options of `LocalCUDACluster`.
    """

    def __init__(self, directory: Path, gpus: Control, **options: Any) -> None:
        self.gpus = gpus
        self.options = options
        super().__init__(directory, 2)

    def make(self, workers: int, threads: int) -> Any:
        """Start the cluster as users of dask-cuda do."""
        from dask_cuda import LocalCUDACluster

        options = {"preload": ["tests.processes.preload"], **self.options}
        return LocalCUDACluster(
            n_workers=workers,
            threads_per_worker=threads,
            host="127.0.0.1",
            dashboard_address=":0",
            silence_logs=False,
            memory_limit="2 GiB",
            **options,
        )

    def devices(self) -> dict[str, str]:
        """Give the device of each worker, by name."""
        return {row["name"]: row["device"] for row in self.handle.workers()}

    def known(self) -> dict[str, str]:
        """Wait until the GPU of every worker is known, and give them by name."""
        self.until(lambda: all(row["gpu"] for row in self.watch.members.rows()), what="every GPU is known")
        return self.devices()
