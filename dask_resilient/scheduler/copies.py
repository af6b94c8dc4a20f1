"""The life of copies: granted, committed, doubted, judged. Every method handles one message or one event."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from time import time
from typing import TYPE_CHECKING, Any

from dask_resilient.core.outcome import Ending, SaveState
from dask_resilient.internals.p2p import is_inner_part
from dask_resilient.scheduler.distrust import Distrust
from dask_resilient.scheduler.entries import Entry
from dask_resilient.store.guarded import verify_and_revoke

if TYPE_CHECKING:
    from dask_resilient.scheduler.watch import Watch

logger = logging.getLogger("dask_resilient")

OP = "resilience"

INNER_PART = "an inner part of a P2P shuffle: its value is a side effect"


class Copies:
    """Answers what workers say about their attempts."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self.endings: Counter[str] = Counter()
        """How the loads of this run ended."""
        self._warned: set[str] = set()
        self.distrust = Distrust(watch)
        self._reader: dict[Any, tuple[str | None, str]] = {}
        """Who reads a suspect copy a second time, a worker, or None for the scheduler; and who read it first."""

    def _send(self, worker: str, do: str, **fields: Any) -> None:
        if worker in self._watch.scheduler.stream_comms:
            self._watch.scheduler.worker_send(worker, {"op": OP, "do": do, "run": self._watch.run, **fields})

    # -- saving ------------------------------------------------------------------------------------------------------

    def _known(self, worker: str, msg: Mapping[str, Any]) -> Entry | None:
        """Give the entry of a message out of a save task, None if that run of the task no longer counts."""
        ts = self._watch.scheduler.tasks.get(msg["key"])
        if ts is None or ts.run_id != msg["run_id"] or ts.processing_on is None or ts.processing_on.address != worker:
            return None
        return self._watch.ledger.entry(ts, msg["name"], int(msg["npartitions"]))

    def _late(self, worker: str, msg: Mapping[str, Any]) -> None:
        """Grant an attempt that was asked for late, if the value is still that of the run which was asked for."""
        ts = self._watch.scheduler.tasks.get(msg["key"])
        there = ts is not None and ts.run_id == msg["run_id"] and worker in {ws.address for ws in ts.who_has or ()}
        entry = self._watch.ledger.late(ts) if there else None
        # A copy that looked damaged, or was: whoever reads it again has to see the same generation.
        if entry is None or entry.attempt is not None or entry.place is not None or entry.generation:
            self._send(worker, "drop", attempt=msg["attempt"])
            self._watch.keeper.enact.drains.not_saved(worker, msg["key"], "it changed meanwhile, or is saved already")
        else:
            self._watch.ledger.grant_late(entry)
            self._grant(entry, worker, msg["attempt"], int(msg["nbytes"]))

    def staged(self, worker: str, msg: Mapping[str, Any]) -> None:
        """Grant an attempt its place, or have it dropped."""
        if msg.get("late"):
            self._late(worker, msg)
            return
        entry = self._known(worker, msg)
        refused = "" if entry is None else self._refused(entry)
        if entry is None or refused or _has_one(entry):
            # Superseded; or another attempt is being written (the value was let go and computed again before that
            # ended); or the copy is there already (recomputing was cheaper, or it was out of reach).
            self._send(worker, "drop", attempt=msg["attempt"])
            if entry is not None:
                entry.not_wanted(refused)
        elif entry.suspect:
            # The save waits for the second read: intact = dropped, damaged = tombstone, then the next generation.
            if entry.held is not None:
                self._send(entry.held[0], "drop", attempt=entry.held[1])
            entry.held = (worker, msg["attempt"], int(msg["nbytes"]))
        else:
            if entry.late:  # a copy for this run only makes way for that of the milestone
                entry.late, entry.place = False, None
            self._grant(entry, worker, msg["attempt"], int(msg["nbytes"]))

    def _refused(self, entry: Entry) -> str:
        """Say why a partition must not be stored, empty if it may."""
        return INNER_PART if is_inner_part(entry.task) else self.distrust.refuses(entry)

    def _grant(self, entry: Entry, worker: str, attempt: str, nbytes: int) -> None:
        entry.state, entry.reason = SaveState.SAVING, ""
        entry.attempt, entry.worker, entry.nbytes = attempt, worker, nbytes
        self._send(worker, "write", key=entry.key, attempt=attempt, place=entry.where(attempt).to_dict())

    def committed(self, worker: str, msg: Mapping[str, Any]) -> None:
        """Take in that a receipt is durable; a key that waits for its lineage is loaded instead."""
        entry = self._watch.ledger.entries.get(msg["key"])
        if entry is None or entry.attempt != msg["attempt"]:
            return
        entry.place = entry.where(msg["stored_attempt"])
        entry.attempt, entry.worker = None, worker
        entry.state, entry.reason = SaveState.DURABLE, ""
        entry.bad_loads, entry.refused = 0, False
        entry.avoid.clear()
        member = self._watch.members.get(worker)
        entry.device, entry.made = "" if member is None else member.device, time()
        entry.nbytes, entry.stored_nbytes = int(msg["nbytes"]), int(msg["stored_nbytes"])
        entry.seconds = float(msg["seconds"])
        self._watch.chronicle.totals.wrote(entry.stored_nbytes, entry.seconds, entry.made)
        if entry.shelf is not None and not entry.late:
            ours = entry.made if msg["stored_attempt"] == msg["attempt"] else None
            entry.shelf.put(entry.index, entry.generation, entry.nbytes, ours)
            if ours is not None:
                self.distrust.committed(entry, msg["attempt"])
        self._watch.ledger.settle(entry)
        self._watch.detour.reconsider([entry.key], "committed")

    def not_saved(self, worker: str, msg: Mapping[str, Any]) -> None:
        """Take in that a partition was not saved, and why."""
        if msg.get("late"):
            self._watch.keeper.enact.drains.not_saved(worker, msg["key"], str(msg["reason"]))
        if msg["attempt"] is None:
            entry = None if msg.get("late") else self._known(worker, msg)
        else:
            entry = self._watch.ledger.entries.get(msg["key"])
            if entry is not None and entry.attempt != msg["attempt"]:
                return
        if entry is None or entry.place is not None:
            return
        entry.attempt, entry.worker = None, worker
        entry.state = SaveState.FAILED if msg["failed"] else SaveState.NOT_SAVED
        entry.reason = str(msg["reason"])
        if entry.name not in self._warned:
            # Once a milestone: with a plain `compute` its keys are gone before anybody can look at the rows.
            self._warned.add(entry.name)
            logger.warning("dask-resilient: a partition of %r is not saved: %s", entry.name, entry.reason)
            self._watch.event("not-saved", name=entry.name, reason=entry.reason)
        self._watch.ledger.settle(entry)

    def forget(self, key: Any) -> None:
        """Let go of a forgotten key; a save that has not begun is dropped."""
        entry = self._watch.ledger.forget(key)
        if entry is None:
            return  # what is under way for it goes on
        self._reader.pop(key, None)
        if entry.attempt is not None:
            self._send(entry.worker, "drop", attempt=entry.attempt)
        if entry.held is not None:
            self._send(entry.held[0], "drop", attempt=entry.held[1])

    def worker_lost(self, address: str) -> None:
        """Take in that saves and second reads on a worker will never end."""
        self.saves_lost(address, "its worker was lost before it was saved")
        for key, (reader, first) in list(self._reader.items()):
            if reader == address:
                self._judge(self._watch.ledger.entries[key], first)

    def saves_lost(self, address: str, reason: str) -> None:
        """Take in that nothing more will be heard of the saves on a worker: it is gone, or a write of it hangs."""
        for entry in list(self._watch.ledger.entries.values()):
            if entry.attempt is not None and entry.worker == address:
                entry.attempt = None
                entry.state, entry.reason = SaveState.FAILED, reason
            if entry.held is not None and entry.held[0] == address:
                entry.held = None
            self._watch.ledger.settle(entry)

    # -- loading -----------------------------------------------------------------------------------------------------

    def loading(self, worker: str, msg: Mapping[str, Any]) -> None:
        """Take in that a worker has begun a load: if it is lost now, the copy may be why."""
        entry = self._watch.ledger.entries.get(msg["key"])
        if entry is None or entry.place is None or entry.place.attempt != msg["attempt"]:
            return
        on = None if entry.task is None else entry.task.processing_on
        if on is not None and on.address == worker:
            entry.loading = worker

    def load_ended(self, worker: str, msg: Mapping[str, Any]) -> None:
        """Take in a load that brought nothing; it names the attempt, since the key alone may mean a newer copy."""
        watch = self._watch
        entry = watch.ledger.entries.get(msg["key"])
        if entry is None or entry.place is None or entry.place.attempt != msg["attempt"]:
            return
        ending = Ending(msg["ending"])
        on = None if entry.task is None else entry.task.processing_on
        entry.ended = on is not None and on.address == worker
        self.endings[str(ending)] += 1
        watch.event("load-ended", key=str(entry.key), worker=worker, ending=str(ending), reason=msg["reason"])
        paused = watch.reloading.paused(time())
        watch.reloading = watch.reloading.after(ending, time())
        entry.reason = f"{ending} to {worker}: {msg['reason']}" if ending is Ending.UNREACHABLE else msg["reason"]
        if ending is Ending.UNREACHABLE:
            entry.avoid.add(worker)
            if not paused and watch.reloading.paused(time()):
                logger.warning("dask-resilient: the store cannot be reached: reloading pauses, Dask recomputes")
                watch.event("reloading-paused", reason=msg["reason"])
                # Loads under way or waiting for a thread would each wait for the store as these three did.
                watch.detour.poke(list(watch.detour.parked), "paused")
        elif ending is Ending.FOREIGN:
            entry.refuse(f"foreign: {msg['reason']}")
        elif ending is Ending.DAMAGED and not entry.suspect:
            entry.suspect = True
            self._judge(entry, worker)

    def _judge(self, entry: Entry, first: str) -> None:
        """Have a suspect copy read by another process, on another host where there is one."""
        watch, place, timeout = self._watch, entry.place, self._watch.settings.recover_timeout
        assert place is not None
        reader = watch.members.second_reader(first)
        self._reader[entry.key] = (reader, first)
        key = entry.digest_of_key
        if reader is not None:
            self._send(reader, "verify", key=entry.key, place=place.to_dict(), digest_of_key=key)
            return

        def then(result: tuple[Ending, str]) -> None:
            msg = {"key": entry.key, "attempt": place.attempt, "ending": str(result[0]), "reason": result[1]}
            self.verified("", msg)

        watch.queue.submit(lambda: verify_and_revoke(watch.queue.store, place, key, timeout), then)

    def verified(self, worker: str, msg: Mapping[str, Any]) -> None:  # noqa: ARG002
        """Take in the second read: use the copy again, or let the next generation be written."""
        entry = self._watch.ledger.entries.get(msg["key"])
        if entry is None or not entry.suspect or entry.place is None or entry.place.attempt != msg["attempt"]:
            return
        ending = Ending(msg["ending"])
        self._watch.event("second-read", key=str(entry.key), ending=str(ending), reason=msg["reason"])
        if ending is Ending.DAMAGED:
            self.withdraw(entry, str(msg["reason"]))
            return
        held = self._judged(entry)
        if ending is Ending.GOOD:
            entry.reason = ""
        else:
            entry.refuse(f"second read {ending}: {msg['reason']}")
        if held is not None:
            self._send(held[0], "drop", attempt=held[1])
        self._watch.ledger.settle(entry)

    def _judged(self, entry: Entry) -> tuple[str, str, int] | None:
        """Take in that no second read is waited for any more; gives the attempt that did."""
        self._reader.pop(entry.key, None)
        entry.suspect = False
        held, entry.held = entry.held, None
        return held

    def withdraw(self, entry: Entry, reason: str) -> None:
        """Use a copy no more, and let the next generation be written; somebody else revokes it in the store."""
        held = self._judged(entry)
        entry.state, entry.reason, entry.place = SaveState.REVOKED, reason, None
        if entry.shelf is not None and not entry.late:
            entry.shelf.take(entry.index, entry.generation)
        entry.generation += not entry.late  # a late copy lies beside the milestone, whose generations are its own
        entry.late = False
        if held is not None and self.distrust.refuses(entry):
            self._send(held[0], "drop", attempt=held[1])
        elif held is not None:
            self._grant(entry, *held)
        self._watch.ledger.settle(entry)


def _has_one(entry: Entry) -> bool:
    """Say whether a copy is there or being written, so that another one is not wanted."""
    return entry.attempt is not None or (entry.place is not None and not (entry.suspect or entry.late))
