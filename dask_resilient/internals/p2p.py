"""Which tasks are inner parts of a P2P shuffle: their values are side effects, never to be saved or loaded.

Recognised by class and by the module of the function, not by the key: rechunk and merge use prefixes of their own. A
transfer whose number came out of a store would be of a run of the shuffle that is over, with no data behind it: the
barrier then fails the user's job ("No active shuffle"; seen with the fused transfers of a rechunk).
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
    """Say whether a task is a transfer or a barrier of a P2P shuffle, also if it was fused with what it transfers."""
    from dask._task_spec import _execute_subgraph
    from distributed.shuffle._core import P2PBarrierTask

    if isinstance(run_spec, P2PBarrierTask):
        return True
    func = getattr(run_spec, "func", None)
    if func is _execute_subgraph:
        return any(map(is_internal, run_spec.args[0].values()))
    module = getattr(func, "__module__", None) or ""
    return module.startswith(_MODULES) and getattr(func, "__name__", "") in _INTERNAL


def is_inner_part(ts: Any) -> bool:
    """Say whether a task of the scheduler is an inner part of a P2P shuffle.

    Fusing the graph of an array leaves the key of a transfer behind as an alias of the fused task, which has the same
    value; the barrier needs the alias.
    """
    from dask._task_spec import Alias

    if isinstance(ts.run_spec, Alias):
        return any(map(is_inner_part, ts.dependencies))
    return is_internal(ts.run_spec)
