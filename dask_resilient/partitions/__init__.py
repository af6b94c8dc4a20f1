"""Values as flat bytes and a schema: exactly, or not at all.

`stage` is called inside the task that holds the value, `restore` inside a load task. Which types have a codec stands in
one table. A value without an exact codec is `Declined`, never approximated, and nothing is ever pickled.
"""

from __future__ import annotations

import sys

from dask_resilient.partitions.buffers import digest
from dask_resilient.partitions.builtin import device_nbytes  # this import also fills the table
from dask_resilient.partitions.modules import load_modules
from dask_resilient.partitions.table import register, restore, stage

__all__ = ["device_nbytes", "digest", "load_modules", "register", "restore", "stage", "trim"]


def trim() -> None:
    """Give back the pinned memory that nobody uses; where no device value was staged there is none."""
    pinned = sys.modules.get(f"{__name__}.pinned")
    if pinned is not None:
        pinned.POOL.trim()
