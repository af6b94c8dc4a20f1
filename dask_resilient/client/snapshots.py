"""The snapshots of a loop in the store of a cluster: written and read by tasks, as the client need not see the store.

A snapshot has a name of its own: its step, and how many there were of that step before, as one that cannot be restored
stays where it is. Its collections are milestones; its plain values, with the names of those, are the partition of the
loop's own milestone, and that is written last: it makes the snapshot exist.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from time import monotonic, sleep
from typing import Any
from uuid import uuid4

from dask.task_spec import DataNode
from distributed import Future, wait

from dask_resilient import config
from dask_resilient.client.handle import Handle
from dask_resilient.core.fingerprints import Fingerprint, combine
from dask_resilient.core.lineages import dump_lineage
from dask_resilient.core.milestones import LOOP, Description, dump_description
from dask_resilient.errors import LoadError, NotInstalledError, ResilienceWarning, SettingError, StoreError, Unreachable
from dask_resilient.graph.fields import field_of, mark_field
from dask_resilient.graph.milestone import keys_of, prefix
from dask_resilient.tasks import SaveTask, read_stored, snapshot_part

PATIENCE = 60.0
"""Seconds for which nothing becomes durable, after which a snapshot is given up."""

LOOK = 0.02
"""Seconds between looks at whether a snapshot is durable."""

LARGE = 5_000_000
"""Bytes above which plain values are handed to a worker instead of being sent with the graph."""


class ClusterSnapshots:
    """Keeps the snapshots of one loop in the store of the cluster that a handle asks.

    Parameters
    ----------
    handle
        Of the plugin there.
    """

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._client = handle.client
        self.devices = 1
        self._name = self._milestone = self._collection = ""
        self._description = b""
        self._where: dict[str, str] = {}
        self._names: dict[int, list[int]] = {}
        """By step, which snapshots there are of it, ascending."""
        self._valid: dict[str, int] = {}
        """Generations of their receipts, by name."""
        self._in_use: int | None = None
        """The step whose snapshot collections of the state may still be read from."""

    # -- opening -----------------------------------------------------------------------------------------------------

    def open(self, name: str, identity: str, lineage: Fingerprint, reasons: tuple[str, ...], steps: int) -> list[int]:
        """See `protocols.Snapshots`."""
        unique = uuid4().hex if reasons else ""
        self._name, self._milestone = name, combine(["loop", name, identity, unique])
        self._collection = f"{prefix(name)}-{self._milestone}"
        self._description = dump_description(Description(name, LOOP, steps, reasons=tuple(reasons[:5]) or None))
        found = self._ask(
            "loop-open",
            milestone=self._milestone,
            collection=self._collection,
            description=self._description,
            lineage=dump_lineage(lineage),
        )
        self._where = {"store": found["store"], "token": found["token"]}
        for index, generation in found["found"].items():
            step, number = map(int, index.split("."))
            self._names.setdefault(step, []).append(number)
            self._valid[index] = generation
        for numbers in self._names.values():
            numbers.sort()
        self.devices = len({row["device"] for row in self._handle.workers()})
        if found["changes"] and not reasons:
            warnings.warn(
                f"loop {name!r} begins at step 0: {'; '.join(found['changes'])}", ResilienceWarning, stacklevel=4
            )
        return sorted(self._names)

    # -- restoring ---------------------------------------------------------------------------------------------------

    def restore(self, step: int) -> Mapping[str, Any]:
        """See `protocols.Snapshots`."""
        index = f"{step}.{self._names[step][-1]}"
        ticket = self._ticket(self._milestone, index, self._valid[index])
        kept = self._run(read_stored, ticket)
        fields = dict(kept["plain"])
        for name, milestone in kept["collections"].items():
            part, receipts = self._run(snapshot_part, {**ticket, "milestone": milestone})
            collection = field_of(self._where["store"], self._where["token"], part, receipts)
            fields[name] = self._client.persist(collection)
        for name in kept["collections"]:
            self._loaded(fields[name])
        self._in_use = step if kept["collections"] else None
        return fields

    def _ticket(self, milestone: str, index: str, generation: int) -> dict[str, Any]:
        receipt = f"commit/{milestone}/{index}.{generation}.json"
        codecs = list(config.read().codecs)
        return {**self._where, "receipt": receipt, "name": self._name, "index": index, "codecs": codecs}

    def _run(self, function: Any, ticket: Mapping[str, Any]) -> Any:
        """Run a load in a task; what goes wrong on the way there proves nothing about the snapshot."""
        future = self._client.submit(function, ticket, key=f"resilience-snapshot-{uuid4().hex}", pure=False, retries=2)
        try:
            return future.result()
        except LoadError:
            raise
        except Exception as e:
            raise Unreachable(f"it could not be read: {e!r}") from e

    def _loaded(self, collection: Any) -> None:
        futures = _futures(collection)
        wait(futures)
        for future in futures:
            if future.status != "finished":
                error = future.exception() if future.status == "error" else None
                raise error if isinstance(error, LoadError) else Unreachable(f"it could not be read: {error!r}")

    # -- saving ------------------------------------------------------------------------------------------------------

    def save(self, step: int, plain: Mapping[str, Any], collections: Mapping[str, Any]) -> Mapping[str, Any]:
        """See `protocols.Snapshots`."""
        numbers = self._names.setdefault(step, [])
        number = numbers[-1] + 1 if numbers else 0
        index = f"{step}.{number}"
        milestones = {name: f"{self._milestone}.{index}.{combine([name])[:16]}" for name in collections}
        kept = {}
        for name, x in collections.items():
            kept[name] = self._client.persist(mark_field(x, self._name, name, milestones[name]))
        for collection in kept.values():
            _computed(collection)
        if kept:
            self._wait_until_durable([str(_name_of(x)) for x in kept.values()])
        self._commit(step, number, {"plain": dict(plain), "collections": milestones})
        numbers.append(number)
        self._valid[index] = 0
        return kept

    def _commit(self, step: int, number: int, value: Mapping[str, Any]) -> None:
        key, source = (self._collection, step, number), f"resilience-state-{uuid4().hex}"
        ids = {"fingerprint": self._milestone, "name": self._milestone}
        ticket = {"name": self._name, "npartitions": 1, "keep": False, "key": key, "quiet": True}
        node = SaveTask(key, source, {**ticket, "milestone": self._description, "ids": ids})
        held = None
        if _nbytes(value) > LARGE:
            (held,) = self._client.scatter([value], hash=False)
            node = SaveTask(key, held.key, node.ticket)
        graph = {key: node} if held is not None else {source: DataNode(source, value), key: node}
        (future,) = self._client.get(graph, [key], sync=False)
        wait([future])
        if future.status != "finished":
            raise StoreError(f"the worker that was to save it was lost ({future.status})")
        self._wait_until_durable([self._collection], more=len(self._valid) + 1)

    def _wait_until_durable(self, collections: list[str], more: int | None = None) -> None:
        """Wait until all partitions are stored; of a loop's own milestone, until there are so many snapshots."""
        deadline, last = monotonic() + PATIENCE, -1
        while True:
            found = self._ask("loop-durable", collections=collections)
            if found["reasons"] and not (more is not None and found["stored"] >= more):
                raise StoreError("; ".join(found["reasons"]))
            if (found["stored"] >= more) if more is not None else not found["pending"]:
                return
            if found["stored"] > last:
                deadline, last = monotonic() + PATIENCE, found["stored"]
            if monotonic() > deadline:
                raise StoreError(f"nothing of it became durable within {PATIENCE:g} s")
            sleep(LOOK)

    # -- taking away -------------------------------------------------------------------------------------------------

    def drop(self, steps: Iterable[int]) -> None:
        """See `protocols.Snapshots`. That which this run has gone on from stays: its collections may be read again."""
        gone = [step for step in steps if step != self._in_use]
        names = [f"{step}.{number}" for step in gone for number in self._names.get(step, ())]
        if not names:
            return
        self._ask("loop-drop", milestone=self._milestone, snapshots=names)
        for step in gone:
            self._names.pop(step, None)
        for name in names:
            self._valid.pop(name, None)

    def _ask(self, method: str, **kwargs: Any) -> Any:
        try:
            return self._handle.ask(method, **kwargs)
        except (NotInstalledError, SettingError, OSError) as e:
            raise StoreError(str(e)) from e


def _futures(collection: Any) -> list[Future[Any]]:
    from distributed import futures_of

    return futures_of(collection)  # type: ignore[no-any-return]


def _computed(collection: Any) -> None:
    """Wait until a collection is computed; what its tasks raised is the user's."""
    futures = _futures(collection)
    wait(futures)
    for future in futures:
        future.result() if future.status != "finished" else None


def _name_of(collection: Any) -> Any:
    key = keys_of(collection)[0]
    return key[0] if isinstance(key, tuple) else key


def _nbytes(value: Any) -> int:
    from dask.sizeof import sizeof

    return int(sizeof(value))
