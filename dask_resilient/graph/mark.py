"""``checkpoint()``: marks a collection as a milestone and gives the same kind of collection back, lazily.

Dataframes are in :mod:`dask_resilient.graph.frames`, xarray objects in :mod:`dask_resilient.graph.labelled`; everything
else that speaks Dask's collection protocol is here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from dask.base import get_name_from_key, is_dask_collection, replace_name_in_key
from dask.delayed import Delayed
from dask.highlevelgraph import HighLevelGraph, MaterializedLayer

from dask_resilient import config
from dask_resilient.errors import SettingError, UnsupportedType
from dask_resilient.graph.ancestors import names_in_graph
from dask_resilient.graph.describe import describe, describe_collection
from dask_resilient.graph.identity import Identity, identify, warn
from dask_resilient.graph.kinds import is_xarray
from dask_resilient.graph.labelled import Part, mark_xarray
from dask_resilient.graph.milestone import Mark, keys_of

T = TypeVar("T")


def checkpoint(x: T, name: str, *, version: str | int | None = None, keep: bool = False) -> T:
    """Mark a Dask collection as a milestone: with the plugin installed, its partitions are kept in the store.

    The result is lazy and of the same kind, with the same meta, divisions or chunks. It adds one task a partition,
    which gives its input on unchanged. Without the plugin, or on another scheduler, that is all it does, with one
    warning.

    What stands below a milestone is optimised by itself and what stands above by itself: projections and filters do not
    pass it: all of what was marked is computed and stored. Select columns and rows first. What is stored is loaded
    instead of being computed again, by this run and by others; a milestone that is for this run only as long as the
    scheduler knows its key, so hold that (persist it).

    Not to be confused with ``dask.graph_manipulation.checkpoint``, which is a barrier and stores nothing.

    Parameters
    ----------
    x
        A Dask array, dataframe, series, index, bag or delayed value, an xarray Dataset or DataArray, or anything with
        Dask's collection protocol. It may stand on futures.
    name
        Name of the milestone: at most 100 letters, digits, ``_``, ``-`` and ``.``, shown as ``checkpoint-<name>`` in
        progress bars (as ``checkpoint_<name>``, dashes as underscores, where Dask would cut the name short). Different
        collections may share a name, but not one above the other.
    version
        Your word on what the partitions are: with the same name and version (and the same number, limits and types of
        partitions) another run takes what is stored, whatever it would compute. Without it a fingerprint tells: the
        code, the arguments and the inputs.
    keep
        Exempts the milestone from the collection of garbage, also when its run was marked complete.

    Returns
    -------
    collection
        The same kind as `x`; `x` itself where ``resilience.enabled`` is false.

    Warns
    -----
    ResilienceWarning
        If no other run can tell whether it would compute the same, so that it is kept for this run only.

    Raises
    ------
    SettingError
        If the name is no plain file name or is the name of a milestone that `x` stands on, or if `version` or `keep`
        has another type.
    UnsupportedType
        If `x` is no Dask collection, or one that cannot be rebuilt with other keys.
    """
    mark = Mark(name, version, keep)
    return _checkpoint(x, mark) if config.read().enabled else x


def _checkpoint(x: Any, mark: Mark) -> Any:
    if is_xarray(x):
        if is_dask_collection(x):
            _refuse_ancestor(mark, names_in_graph(x.__dask_graph__()))
        marked, reasons = mark_xarray(x, mark, lambda *args: _mark(args[0], mark, *args[1:]))
        warn(mark, reasons, stacklevel=4)
        return marked
    if not is_dask_collection(x):
        raise UnsupportedType(
            f"checkpoint {mark.name!r} was given an object of type {type(x).__name__}, which is no Dask collection; "
            "give it a Dask array, dataframe, bag or xarray object, or wrap what makes the value in dask.delayed"
        )
    if _is_expression(x):
        from dask_resilient.graph import frames

        _refuse_ancestor(mark, frames.names_in_expression(x.expr))
    else:
        _refuse_ancestor(mark, names_in_graph(x.__dask_graph__()))
    identity = identify(mark, x)
    warn(mark, identity.reasons, stacklevel=4)
    return _mark(x, mark, identity)


def mark_as(x: Any, name: str, milestone: str) -> Any:
    """Mark a collection as a part of something whose m is known: nothing of it is looked at, and nobody is warned."""
    return _mark(x, Mark(name, None, keep=False), Identity(milestone, fixed=milestone))


def _mark(x: Any, mark: Mark, identity: Identity, npartitions: int | None = None, part: Part | None = None) -> Any:
    if _is_expression(x):
        from dask_resilient.graph import frames

        return frames.mark_frame(x, mark, identity)
    if isinstance(x, Delayed):
        return _mark_delayed(x, mark, identity)
    return _mark_by_protocol(x, mark, identity, npartitions, part)


def _is_expression(x: Any) -> bool:
    """Say whether a collection is of dask.dataframe, refusing other collections that are made of expressions.

    Raises
    ------
    UnsupportedType
        If it is a Dask array made with ``array.query-planning`` on, an experiment of Dask's.
    """
    expr = getattr(x, "expr", None) if not isinstance(x, Delayed) else None
    modules = {cls.__module__ for cls in type(expr).__mro__}
    if "dask.dataframe.dask_expr._expr" in modules:
        return True
    if "dask._expr" in modules:
        raise UnsupportedType(
            f"a {type(x).__name__} made of {type(expr).__name__} expressions cannot be marked; "
            "set array.query-planning to False before importing dask.array"
        )
    return False


def _refuse_ancestor(mark: Mark, names: Iterator[str]) -> None:
    if mark.name in names:
        raise SettingError(
            f"checkpoint {mark.name!r} already stands below this collection; give the later one another name"
        )


def _mark_delayed(x: Any, mark: Mark, identity: Identity) -> Any:
    # Not by the protocol: a rebuilt Delayed names its layer by its key, which is a tuple where it came from to_delayed.
    key = mark.layer_name(x.key, identity.fingerprint)
    identity.remember(mark, key)
    described = describe(mark, "delayed", 1, identity.reasons)
    facts = identity.facts(mark, described.shape)
    layer = MaterializedLayer(mark.nodes([(key, x.key)], 1, description=described.raw, **facts))
    graph = HighLevelGraph.from_collections(key, layer, dependencies=[x])
    return Delayed(key, graph, length=x._length, layer=key)


def _mark_by_protocol(x: Any, mark: Mark, identity: Identity, npartitions: int | None, part: Part | None) -> Any:
    keys = keys_of(x)
    try:
        rename = {old: mark.layer_name(old, identity.fingerprint) for old in map(get_name_from_key, keys)}
    except TypeError as e:
        raise UnsupportedType(
            f"the keys of a {type(x).__name__} do not begin with a name, so it cannot be marked"
        ) from e
    described = describe_collection(mark, x, len(keys), part, identity.reasons)
    facts = identity.facts(mark, described.shape)
    if len(rename) > 1:
        facts["ids"] = None  # an index says nothing there without the name, which no other run has
    else:
        identity.remember(mark, *rename.values())
    graphs = []
    for old, new in rename.items():
        pairs = [(replace_name_in_key(key, rename), key) for key in keys if get_name_from_key(key) == old]
        dims = part.dims if part is not None else None
        count = npartitions or len(keys)
        layer = MaterializedLayer(mark.nodes(pairs, count, _preparation(x), described.raw, dims, **facts))
        graphs.append(HighLevelGraph.from_collections(new, layer, dependencies=[x]))
    rebuild, args = x.__dask_postpersist__()
    try:
        return rebuild(HighLevelGraph.merge(*graphs), *args, rename=rename)
    except TypeError as e:
        raise UnsupportedType(
            f"a {type(x).__name__} cannot be rebuilt with other keys (its __dask_postpersist__ takes no rename=), "
            "so it cannot be marked; mark the Dask collections inside it"
        ) from e


def _preparation(x: Any) -> Callable[[Any], Any] | None:
    """Give what a value must go through before it can be saved and used by more than one task."""
    bags = sys.modules.get("dask.bag.core")  # loaded if there is a bag
    return bags.reify if bags is not None and isinstance(x, bags.Bag) else None
