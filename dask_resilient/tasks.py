"""What runs inside Dask tasks: the node of a milestone's partition, and the functions that save and load.

Everything here is imported on schedulers and workers when a graph arrives, so this module stays light: what a save or a
load really does is behind :class:`~dask_resilient.protocols.WorkerSide`, which the plugin's worker side implements.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Self

from dask.task_spec import GraphNode
from dask.typing import Key

from dask_resilient.errors import ResilienceWarning

if TYPE_CHECKING:
    from dask_resilient.protocols import WorkerSide

logger = logging.getLogger("dask_resilient")

PLUGIN = "resilience"
"""Name under which the worker side is registered on every worker."""


_said: dict[str, object] = {}


def _first(subject: str) -> bool:
    """Say yes to the first caller of each subject in this process; `setdefault` is atomic, so also among threads."""
    mine = object()
    return _said.setdefault(subject, mine) is mine


def save(value: Any, ticket: Mapping[str, Any]) -> Any:
    """Hand a partition to the worker's saver and give it back unchanged.

    Never raises, and always returns `value`: a milestone must not be able to fail the job it protects. Without a
    worker, or without the plugin on it, this is a pass-through with one warning a process.

    Parameters
    ----------
    value
        The partition.
    ticket
        ``name`` of the milestone, ``key`` that this partition has in the graph, ``npartitions`` of the milestone,
        ``keep``, its description as bytes (``milestone``), and for xarray the names of the axes (``dims``).
    """
    try:
        worker = _worker()
        side = _side(worker)
        if side is None:
            _tell_unsaved(ticket, worker)
        else:
            side.save(value, ticket)
    except Exception:
        if _first("save"):
            logger.exception("Saving a partition failed, the job goes on (said once): %r", ticket.get("name"))
    return value


def load(ticket: Mapping[str, Any]) -> Any:
    """Give a stored partition instead of computing it.

    Raises
    ------
    distributed.Reschedule
        If it could not be given here; the worker side has then told the scheduler how the load ended.
    """
    side = _side(_worker())
    if side is None:
        from distributed import Reschedule

        raise Reschedule
    return side.load(ticket)


def read_stored(ticket: Mapping[str, Any]) -> Any:
    """Give one partition of a milestone that was opened outside any run.

    Parameters
    ----------
    ticket
        ``store``, the absolute path of its root, its ``token``, the path of the ``receipt`` below the root, and the
        ``codecs`` modules that register codecs of the user's.

    Raises
    ------
    Unreachable, Damaged, Foreign
        If it cannot be read, or is not what its receipt says. Nothing is recomputed: there is nothing to do so from.
    """
    from dask_resilient import partitions
    from dask_resilient.errors import LoadError, Unreachable
    from dask_resilient.store import read_at

    problems = partitions.load_modules(ticket.get("codecs", ()))
    try:
        receipt, payload = read_at(ticket["store"], ticket["token"], ticket["receipt"])
        return partitions.restore(receipt.codec, receipt.schema, payload)
    except LoadError as e:
        why = "; ".join([str(e), *problems]) if isinstance(e, Unreachable) else str(e)
        what = f"partition {ticket.get('index', '?')} of milestone {ticket.get('name', '?')!r} in {ticket['store']!r}"
        # The number of an OSError stays the first argument.
        raise type(e)(*e.args[:-1], f"{what}: {why}") from e


def snapshot_part(ticket: Mapping[str, Any]) -> tuple[bytes, dict[str, int]]:
    """Give what the store says of a milestone, and the generation of the valid receipt of each partition, by index.

    Parameters
    ----------
    ticket
        ``store``, the absolute path of its root, its ``token``, and which ``milestone``.

    Raises
    ------
    Unreachable, Damaged, Foreign
        As `read_stored`.
    """
    from dask_resilient.errors import StoreError, Unreachable
    from dask_resilient.store import open_archive

    try:
        archive = open_archive(ticket["store"])
        found = archive.milestone(ticket["milestone"])
        return found.dumps(), archive.listing(found.milestone).valid()
    except StoreError as e:
        raise Unreachable(e.errno, str(e)) from e


def _worker() -> Any:
    try:
        from distributed import get_worker

        return get_worker()
    except (ImportError, ValueError):  # no distributed, or a thread that runs no task of a worker
        return None


def _side(worker: Any) -> WorkerSide | None:
    plugin = None if worker is None else worker.plugins.get(PLUGIN)
    return None if plugin is None else plugin.side


def _tell_unsaved(ticket: Mapping[str, Any], worker: Any) -> None:
    if not _first("unsaved"):
        return
    if worker is None:
        message = (
            f"checkpoint {ticket['name']!r} is not saved: this is no worker of a Dask cluster, and only there "
            "can the plugin of dask_resilient.install(client, store=...) run"
        )
        warnings.warn(message, ResilienceWarning, stacklevel=3)
    else:
        # A warning in a worker process would reach nobody; its log is kept and can be asked for.
        logger.warning(
            "checkpoint %r is not saved: the plugin does not run on this worker; "
            "call dask_resilient.install(client, store=...) before computing",
            ticket["name"],
        )


class SaveTask(GraphNode):
    """The node of one partition of a milestone.

    It is a `GraphNode` and no `Task`: the optimiser of bags rebuilds every `Task`, subclass or not, as a plain `Task`,
    which later optimisers would fuse away. As it is, the node comes through every optimiser with its type and key.
    The ticket is a field of its own and is never searched for references, so the key in it is no dependency.

    Parameters
    ----------
    key
        Key of this partition of the milestone.
    source
        Key of the partition that is saved.
    ticket
        What `save` gets.
    prepare
        Importable function that is applied to the value first, or None. Bags need it: an iterator can be read once.
    """

    __slots__ = ("prepare", "source", "ticket")

    def __init__(
        self,
        key: Key,
        source: Key,
        ticket: Mapping[str, Any],
        prepare: Callable[[Any], Any] | None = None,
    ) -> None:
        self.key = key
        self.source = source
        self.ticket = dict(ticket)
        self.prepare = prepare
        self._dependencies = frozenset((source,))

    @property
    def block_fusion(self) -> bool:
        """Keep this node out of every fused task: its key would not exist, and nothing could be saved under it."""
        return True

    def __call__(self, values: Any = ()) -> Any:
        """Save the partition and give it back."""
        self._verify_values(values)
        value = values[self.source]
        return save(value if self.prepare is None else self.prepare(value), self.ticket)

    def copy(self) -> Self:
        """Give an equal node."""
        return type(self)(self.key, self.source, self.ticket, self.prepare)

    def substitute(self, subs: Mapping[Any, Any], key: Key | None = None) -> GraphNode:
        """Give a node whose source and key are replaced.

        Raises
        ------
        TypeError
            If the source would be replaced by a node: nothing may be fused into this one.
        """
        source = subs.get(self.source, self.source)
        if isinstance(source, GraphNode):
            raise TypeError(f"the source of {self!r} can be replaced by a key only, not by {source!r}")
        return type(self)(self.key if key is None else key, source, self.ticket, self.prepare)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.key, self.source, self.ticket, self.prepare)

    def __dask_tokenize__(self) -> tuple[Any, ...]:
        return type(self).__name__, self.key, self.source, self.ticket, self.prepare

    def __repr__(self) -> str:
        return f"<SaveTask {self.key!r} of {self.source!r}>"
