"""Which tasks are inner parts of a P2P shuffle: their values are side effects, never to be saved or loaded.

Recognised by class and by the module of the function, not by the key: rechunk and merge use prefixes of their own.
"""

from __future__ import annotations

from typing import Any

_INTERNAL = frozenset(
    {
        "shuffle_transfer",
        "_shuffle_transfer",
        "merge_transfer",
        "assign_index_merge_transfer",
        "rechunk_transfer",
        "p2p_barrier",
    }
)
_MODULES = ("distributed.shuffle", "dask.dataframe.dask_expr")
"""Dataframes wrap the functions of distributed in their own."""


def is_internal(run_spec: Any) -> bool:
    """Say whether a task is a transfer or a barrier of a P2P shuffle."""
    from distributed.shuffle._core import P2PBarrierTask

    if isinstance(run_spec, P2PBarrierTask):
        return True
    func = getattr(run_spec, "func", None)
    module = getattr(func, "__module__", None) or ""
    return module.startswith(_MODULES) and getattr(func, "__name__", "") in _INTERNAL
