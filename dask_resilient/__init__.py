"""Dask pipelines that survive: only what was lost comes back, from durable storage where that is cheaper.

>>> import dask_resilient as dr
>>> with dr.install(client, store="/lustre/run-42") as res:  # doctest: +SKIP
...     clean = dr.checkpoint(df, "clean")
...     clean.groupby("k").x.sum().compute()
...     print(res.report())
"""

from dask_resilient import config as _config
from dask_resilient.client.handle import Handle
from dask_resilient.client.install import connect, install
from dask_resilient.client.loop import Loop, loop
from dask_resilient.client.report import Report
from dask_resilient.errors import (
    NotInstalledError,
    NotStored,
    ResilienceError,
    ResilienceWarning,
    SettingError,
    StoreError,
    UnsupportedType,
)
from dask_resilient.graph import checkpoint
from dask_resilient.graph import open_milestone as open  # noqa: A004 - dr.open, as zarr.open
from dask_resilient.partitions import register as register_codec
from dask_resilient.plugin import Resilience

__version__ = "0.1.0"

__all__ = [
    "Handle",
    "Loop",
    "NotInstalledError",
    "NotStored",
    "Report",
    "Resilience",
    "ResilienceError",
    "ResilienceWarning",
    "SettingError",
    "StoreError",
    "UnsupportedType",
    "checkpoint",
    "connect",
    "install",
    "loop",
    "open",
    "register_codec",
]

_config.load_defaults()
