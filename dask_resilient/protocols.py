"""The seams on one page: what passes between rooms, and what each side may expect of the other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from dask_resilient.core.fingerprints import Fingerprint
from dask_resilient.core.manifest import Place, Receipt
from dask_resilient.core.milestones import Milestone
from dask_resilient.core.outcome import Declined

Payload = npt.NDArray[np.uint8]
"""The bytes of a partition's buffers in one flat array, shape (nbytes,)."""


@dataclass(frozen=True, slots=True)
class Staged:
    """One partition in host memory, ready to be written as one Zarr v3 array.

    The chunks are views where possible: the value must not change until they are written, and the checksums, taken
    inside the task, tell whether it did.
    """

    codec: str
    """Name in the table of registered codecs."""
    schema: Mapping[str, Any]
    """What the codec needs beside the bytes to restore the value; JSON types only."""
    data_type: str | Mapping[str, Any]
    """Zarr v3 ``data_type``."""
    shape: tuple[int, ...]
    chunk_shape: tuple[int, ...]
    chunks: tuple[tuple[memoryview, ...], ...]
    """Of each chunk in C order of the chunk grid, the contiguous byte buffers (format ``"B"``) that it is made of,
    padding of an edge chunk included."""
    crc32c: tuple[int, ...]
    """Of each chunk, taken inside the task."""
    nbytes: int
    """Bytes of the value's buffers, without padding."""
    dimension_names: tuple[str | None, ...] = ()
    """Names of the axes of `shape`, for other readers of the store; empty where nobody knows them."""


class Codec(Protocol):
    """Turns values of some types into `Staged` and back: exactly, or not at all.

    One instance serves all threads of a worker. `stage` is called inside the task that holds the value; `restore`
    inside a load task. Neither may use pickle, and `restore` may import nothing that `schema` names.
    """

    name: str

    def stage(self, value: Any) -> Staged | Declined:
        """Stage a value of a type that the table maps to this codec, or say why that cannot be exact."""

    def restore(self, schema: Mapping[str, Any], payload: Payload) -> Any:
        """Give the value back. `payload` is the caller's to give away: the value may be a view of it.

        Raises
        ------
        Foreign
            If the schema does not describe a value of this codec, or does not fit the size of the payload.
        """


class Probe(Protocol):
    """Reads something about a worker's device, or its host, that the built-in probes do not.

    Given to `dask_resilient.install(probes=[...])`, or named as an entry point of the group ``dask_resilient.probes``.
    It runs beside every worker, in a process of its own: it may be slow, hang or crash, and only what it would have
    read is unknown then. A class is called without arguments there; an object travels by cloudpickle.

    It may also have ``interval``, the seconds between two calls (5 if it has none).
    """

    name: str

    def read(self, device: str) -> Iterable[tuple[str, Any] | tuple[str, Any, str]]:
        """Read, and give tuples ``(name, value)`` or ``(name, value, text)``.

        A value is a number, a text, a truth value, or None for unknown, with the reason as the text: that is shown.
        What is judged is ``("stated", class, text)``, or ``("stated.<which>", class, text)`` where there are several:
        the class, of `dask_resilient.core.faults.Class`, that the probe itself thinks right, as long as it goes on
        saying so: what it gave counts until its next call, and what that does not give again is taken back. Names of
        built-in readings are refused, and so is what comes after a hundred readings of one call.

        Parameters
        ----------
        device
            UUID of the worker's own GPU, else ``host:<host>/<name>``.
        """


class PartitionStore(Protocol):
    """Keeps immutable partitions. Every method blocks; all may be called from any thread."""

    url: str
    token: str
    """Random text in ``store.json``: two processes that read another token see another disk."""

    def write(self, place: Place, staged: Staged, facts: Mapping[str, Any]) -> Receipt:
        """Write the attempt, make it durable, then create its receipt.

        `facts` holds the fields of the receipt that only the caller knows: ``key``, ``run``, ``producer``, ``parents``,
        ``seconds``.

        Raises
        ------
        StoreError
            If it could not be written. The attempt is removed as far as possible and there is no receipt.
        FileExistsError
            If a receipt of this generation exists already; the attempt is removed.
        ChangedWhileWriting
            If the staged memory no longer has its checksums after the last write; the attempt is removed.
        """

    def read(self, place: Place, key: str | None) -> tuple[Receipt, Payload]:
        """Read the receipt, then the chunks, and verify every byte before giving them back.

        Parameters
        ----------
        place
            Which partition, generation and attempt.
        key
            Digest of the Dask key that the receipt must name, or None not to compare it.

        Raises
        ------
        Unreachable, Damaged, Foreign
            The endings of a load.
        """

    def winner(self, place: Place) -> Receipt | None:
        """Give the durable receipt of this generation, of whichever attempt; None if there is none, or it is revoked.

        Raises
        ------
        StoreError, Damaged, Foreign
            If that cannot be told, or the receipt cannot be used.
        """

    def declare(self, milestone: Milestone) -> None:
        """Create ``milestones/<m>.json``; it may exist already. Before the first receipt of that milestone.

        Raises
        ------
        StoreError
            If it could not be created.
        """

    def revoke(self, place: Place, reason: str) -> None:
        """Create the tombstone of this generation; it may exist already.

        Raises
        ------
        StoreError
            If it could not be created.
        """


class WorkerSide(Protocol):
    """What the functions inside Dask tasks may ask of the plugin on their worker."""

    def save(self, value: Any, ticket: Mapping[str, Any]) -> None:
        """Stage the value and queue it for the background writer. Never raises."""

    def load(self, ticket: Mapping[str, Any]) -> Any:
        """Give a stored value back, or report how that ended and raise `distributed.Reschedule`."""


class Snapshots(Protocol):
    """Keeps the snapshots of one loop at a time. Every method blocks the step that calls it."""

    devices: int
    """How many devices the cluster has, each of which may fail; known once the loop is open."""

    def open(self, name: str, identity: str, lineage: Fingerprint, reasons: tuple[str, ...], steps: int) -> list[int]:
        """Begin or go on with a loop, and give the steps of its complete snapshots, ascending.

        Called once, before the first step. Where the last loop of this name has another identity, it warns itself,
        with what `core.fingerprints.changes` says of the two lineages.

        Parameters
        ----------
        name
            Of the loop; a plain file name.
        identity
            Digest of name, version and lineage: equal ones may go on with each other's snapshots.
        lineage
            What the loop depends on.
        reasons
            Why its snapshots are of use in this run only; empty where another run may go on with them. With reasons
            nothing that this gives is restored.
        steps
            How many steps it has.

        Raises
        ------
        StoreError
            If the store cannot be used.
        """

    def restore(self, step: int) -> Mapping[str, Any]:
        """Give the fields of the state after a step: plain values, which are given away, and Dask collections.

        Raises
        ------
        Unreachable, Damaged, Foreign
            The endings of a load. The snapshot before is tried then, and this one is never asked for again.
        """

    def save(self, step: int, plain: Mapping[str, Any], collections: Mapping[str, Any]) -> Mapping[str, Any]:
        """Save the state after a step; it is durable when this returns. Gives the collections to go on with, by field.

        Parameters
        ----------
        step
            It may have a snapshot already, one that could not be restored.
        plain
            By field, values that `partitions.stage` takes together; with them, under a name that no field has, what is
            needed to make generators of random numbers again.
        collections
            Dask collections, by field.

        Raises
        ------
        StoreError
            If it could not be saved. Nothing more is saved of this loop then.
        """

    def drop(self, steps: Iterable[int]) -> None:
        """Forget snapshots, ascending; never the newest one that is complete.

        Raises
        ------
        StoreError
            If some could not be forgotten; the loop goes on.
        """
