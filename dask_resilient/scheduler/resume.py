"""What earlier runs have stored of the milestones in a graph: found out before its tasks are made.

Off the event loop: a graph with milestones waits for a listing, for a bounded time. What cannot be listed is for this
run only, and computed. Receipts are not read here; the load tasks do that.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from time import monotonic, time
from typing import TYPE_CHECKING, Any

from dask_resilient.core.explaining import RESUME, Resumption, explain, relies_on
from dask_resilient.core.fingerprints import changes
from dask_resilient.core.lineages import StoredLineage, read_lineage
from dask_resilient.core.manifest import digest, split_key
from dask_resilient.core.milestones import Description, Milestone, read_description
from dask_resilient.core.shelf import Shelf
from dask_resilient.errors import Damaged, ResilienceError
from dask_resilient.internals.materialize import listen, unlisten
from dask_resilient.internals.nodes import unwrapped
from dask_resilient.scheduler.clients import tell
from dask_resilient.scheduler.lease import renew_now
from dask_resilient.store import PosixStore
from dask_resilient.store.archive import Archive
from dask_resilient.store.guarded import within
from dask_resilient.tasks import SaveTask

if TYPE_CHECKING:
    from dask_resilient.scheduler.watch import Watch

logger = logging.getLogger("dask_resilient")

LIST_SECONDS = 10.0
"""Longest that a graph waits until it is known what is stored: 25 times what 100,000 receipts take locally."""

ROWS = 10_000
"""Collections whose rows are kept at most, the newest."""

AGAIN = 60.0
"""Seconds for which no other graph waits, after one has waited for nothing."""


@dataclass(frozen=True, slots=True)
class _Met:
    """A milestone in a graph."""

    collection: str
    described: Description
    identity: str
    milestone: str
    lineage: StoredLineage | None
    keep: bool
    quiet: bool = False
    """Whether it is a part of a loop, which tells of itself."""


class Resume:
    """Binds the collections of graphs to what is stored of them.

    Parameters
    ----------
    watch
        Of the same scheduler.
    """

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._mode = watch.settings.resume
        self._silent_until = float("-inf")
        self.rows: dict[str, Resumption] = {}
        """What was found, by collection."""
        self.on = False
        self.off = "recovery is off: resilience.recover.enabled is false, or this Dask is not supported"
        """Why nothing of other runs is reused."""

    def start(self) -> None:
        """Listen to graphs."""
        if self._mode == "off":
            self.off = "resilience.resume is off"
            return
        self.on = listen(self._watch.scheduler, self.hear)
        if not self.on:
            logger.warning("dask-resilient: this Dask has no place to look at graphs: nothing of other runs is reused")

    def stop(self) -> None:
        """Listen no more."""
        unlisten(self._watch.scheduler)
        self.on = False

    # -- in the thread that materialises graphs ------------------------------------------------------------------------

    def hear(self, graph: Mapping[Any, Any]) -> None:
        """Look for milestones in a graph, and have those bound that are known to other runs."""
        met = self._meet(graph)
        if not met or not self._watch.alive():
            return
        store = self._watch.queue.store
        found: dict[str, Shelf] = {}
        known = [each for each in met if each.milestone]
        if known and store is not None and monotonic() >= self._silent_until:
            try:
                found = within(LIST_SECONDS, lambda: self._look(store, known))
            except (OSError, ResilienceError) as e:
                self._silent_until = monotonic() + AGAIN
                names = ", ".join(sorted({each.described.name for each in known}))
                reason = str(e) or repr(e)
                logger.warning("dask-resilient: nothing of other runs is reused for %s: %s", names, reason)
        self._watch.scheduler.loop.add_callback(self._bind, met, found)

    def _meet(self, graph: Mapping[Any, Any]) -> list[_Met]:
        tickets: dict[str, Mapping[str, Any]] = {}
        lineages: dict[str, bytes] = {}
        for key, found in graph.items():
            node = unwrapped(found)
            if type(node) is not SaveTask:
                continue
            collection, _ = split_key(key)
            tickets.setdefault(collection, node.ticket)
            if lineage := node.ticket.pop("lineage", None):  # no worker needs it
                lineages[collection] = lineage
        known = {name for name, row in self.rows.copy().items() if not row.milestone}  # nothing will come of it later
        new = {n: t for n, t in tickets.items() if n not in known and not self._watch.ledger.is_bound(n)}
        return [met for name, ticket in new.items() if (met := self._one(name, ticket, lineages.get(name)))]

    def _one(self, collection: str, ticket: Mapping[str, Any], lineage: bytes | None) -> _Met | None:
        try:
            described = read_description(ticket["milestone"])
            stored = read_lineage(lineage) if lineage is not None else None
        except (Damaged, LookupError, TypeError) as e:
            logger.warning("dask-resilient: nothing is reused for %r: %s", ticket.get("name"), e)
            return None
        m = str((ticket.get("ids") or {}).get(self._mode, ""))
        identity = "run" if not m else self._mode
        if m and described.version is not None:
            identity = "version"
        quiet = bool(ticket.get("quiet"))
        return _Met(collection, described, identity, m, stored, bool(ticket.get("keep")), quiet)

    def _look(self, store: PosixStore, met: list[_Met]) -> dict[str, Shelf]:
        """Say that this run uses these milestones, then list what they have, and describe those that are new."""
        ledger = self._watch.ledger
        ledger.claimed.update(each.milestone for each in met)
        ledger.kept.update(each.milestone for each in met if each.keep)
        with _advisory("the lease of this run"):  # without it a collector may take away what is found: it is recomputed
            renew_now(store, self._watch.run, ledger)
        archive = Archive(store.url, store.token, store.calls)
        found = {}
        for each in met:
            m, described = each.milestone, each.described
            listing = archive.listing(m)
            valid = {index: g for index, g in listing.valid().items() if described.has(index)}
            shelf = Shelf.of(m, described.name, described.npartitions, valid, listing.tombstones)
            shelf.counted = not each.quiet
            found[each.collection] = shelf
            with _advisory(f"milestone {described.name!r}"):
                store.declare(Milestone(m, self._watch.run, time(), described, each.lineage))
        return found

    # -- on the loop ---------------------------------------------------------------------------------------------------

    def _bind(self, met: Iterable[_Met], found: Mapping[str, Shelf]) -> None:
        watch = self._watch
        for each in met:
            shelf = found.get(each.collection)
            if shelf is not None:
                # Of two collections that the user calls the same, both know what the other has stored meanwhile.
                shelf = watch.ledger.shelf(shelf.milestone) or shelf
                watch.ledger.bind(each.collection, shelf)
            if each.quiet:
                continue
            row = self.rows[each.collection] = _row(each, shelf)
            while len(self.rows) > ROWS:
                del self.rows[next(iter(self.rows))]
            if shelf is not None and shelf.found:
                text = explain(row)
                if each.lineage is not None and each.identity == "fingerprint":
                    text += f"\n  it relies on {relies_on(each.lineage)}; what else it reads is not seen"
                tell(watch.scheduler, text)
            watch.event("resume", **row.to_dict())
            if (store := watch.queue.store) is not None:
                watch.queue.submit(partial(self._note, store, each, row), self._noted)

    def _noted(self, noted: tuple[str, Resumption]) -> None:
        collection, row = noted
        self.rows[collection] = row
        if row.before and not row.found:  # else somebody who has changed something by accident would not know
            tell(self._watch.scheduler, explain(row))

    # -- in the thread of the store ------------------------------------------------------------------------------------

    def _note(self, store: PosixStore, met: _Met, row: Resumption) -> tuple[str, Resumption]:
        """Compare with an earlier milestone of the same name, and write down what was found."""
        if met.milestone and met.lineage is not None:
            before = self._before(Archive(store.url, store.token, store.calls), met, row)
            if before is not None:
                row = replace(row, before=before.milestone, changes=tuple(_changes(before, met)))
        with contextlib.suppress(FileExistsError, OSError):
            body = {"time": time(), **row.to_dict()}
            store.journal(self._watch.run, f"{RESUME}{digest(met.collection)[:32]}", body)
        return met.collection, row

    def _before(self, archive: Archive, met: _Met, row: Resumption) -> Milestone | None:
        """Give what to compare with: what was stored under the user's word, else the last one where nothing was."""
        if not row.found:
            return _last(archive, met)
        if row.identity == "fingerprint":
            return None
        same = archive.milestone(met.milestone)
        return same if same.run != self._watch.run and same.lineage is not None else None


def _changes(before: Milestone, met: _Met) -> list[str]:
    """Say what is different: first what the user has said, then how it is cut, then what it is made of."""
    old, new = before.description, met.described
    if old.version != new.version:
        return [f"version {old.version!r} is now {new.version!r}"]
    cut = (old.npartitions, old.numblocks, old.chunks) != (new.npartitions, new.numblocks, new.chunks)
    said = ["the number or sizes of its partitions changed"] if cut else []
    if before.lineage is None or met.lineage is None:
        return said or ["what is stored under this name does not say what it was made of"]
    return said + changes(before.lineage, met.lineage)


@contextlib.contextmanager
def _advisory(what: str) -> Iterator[None]:
    """Go on without what could not be written: nothing that is read depends on it."""
    try:
        yield
    except OSError as e:
        logger.warning("dask-resilient: %s is not written down: %s", what, e)


def _row(met: _Met, shelf: Shelf | None) -> Resumption:
    described = met.described
    identity, reasons = met.identity, described.reasons or ()
    if met.milestone and shelf is None:
        identity, reasons = "run", ("the store could not be listed",)
    return Resumption(
        name=described.name,
        milestone=met.milestone,
        npartitions=described.npartitions,
        identity=identity,
        found=0 if shelf is None else shelf.found,
        variable=described.variable,
        version=described.version,
        reasons=reasons,
    )


def _last(archive: Archive, met: _Met) -> Milestone | None:
    """Give the milestone of that name to compare with: the one used last, of those that have something stored."""
    found = [
        each
        for each in archive.milestones()
        if each.description.name == met.described.name
        and each.description.variable == met.described.variable
        and each.milestone != met.milestone
    ]
    stored = [each for each in found if each.lineage is not None and archive.listing(each.milestone).receipts]
    groups = archive.by_use([[each] for each in stored or found])
    return groups[-1][0] if groups else None
