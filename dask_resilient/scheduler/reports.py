"""What workers say of themselves: that their side is up, which device they have, that they protect no more."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from time import time
from typing import TYPE_CHECKING, Any

from dask_resilient.core.cuda_errors import TaskFault
from dask_resilient.core.faults import Class
from dask_resilient.core.outcome import Ending, SaveState
from dask_resilient.scheduler.members import Member

if TYPE_CHECKING:
    from dask_resilient.scheduler.watch import Watch

logger = logging.getLogger("dask_resilient")


class Reports:
    """Takes in what workers report; every method handles one message."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    def member(self, address: str) -> Member | None:
        """Give a worker that sends a message; one that joined while the plugin was being registered had no hook."""
        watch = self._watch
        member = watch.members.get(address)
        if member is None and address in watch.scheduler.workers:
            watch.added(address)
            member = watch.members.get(address)
        return member

    def hello(self, worker: str, msg: Mapping[str, Any]) -> None:
        """Hear that a worker's side is up, and whether it protects."""
        watch, member = self._watch, self.member(worker)
        if member is None:
            return
        # Loads on a worker without the store would end as unreachable, and three of them pause reloading everywhere.
        member.side, member.ready = True, msg["token"] is not None
        watch.members.named(member, str(msg.get("host", member.host)))
        watch.keeper.joined(member)
        member.protected, member.reason = bool(msg["protected"]), str(msg["reason"])
        if not member.protected:
            self._unprotected(worker, member.reason)
        for problem in msg.get("problems", ()):
            logger.warning("dask-resilient: worker %s: %s", worker, problem)
            watch.event("codec-missing", worker=worker, reason=problem)
        watch.keeper.hello(worker)
        watch.detour.renew()
        # Where every worker was lost, the next one finds keys that could not be loaded when they were asked for.
        watch.detour.reconsider(list(watch.ledger.entries), "loader")

    def device(self, worker: str, msg: Mapping[str, Any]) -> None:
        """Hear which GPU a worker computes on."""
        member = self.member(worker)
        if member is not None:
            member.identify(msg)
            self._watch.keeper.joined(member)

    def fault(self, worker: str, msg: Mapping[str, Any]) -> None:
        """Hear that a task met an error of CUDA."""
        watch = self._watch
        sick = TaskFault.from_dict(msg["fault"]).cls.rank >= Class.KILL.rank
        watch.keeper.tries.during(msg["key"], worker, sick, lambda: watch.care.blame.fault(worker, msg))
        if msg["key"] not in watch.scheduler.tasks:
            watch.care.blame.forget(msg["key"])  # nobody will say later that it is gone

    def failed(self, worker: str, msg: Mapping[str, Any]) -> None:
        """Hear that a worker's side could not be set up: it gets no loads and saves nothing."""
        member = self.member(worker)
        if member is not None:
            member.reason = str(msg["reason"])
            self._unprotected(worker, member.reason)
            self._watch.keeper.enact.without_side(worker)

    def saving_off(self, worker: str, msg: Mapping[str, Any]) -> None:
        """Hear that a worker saves nothing more."""
        member = self._watch.members.get(worker)
        if member is not None:
            member.protected, member.reason = False, str(msg["reason"])
            self._watch.copies.saves_lost(worker, member.reason)
            self._unprotected(worker, member.reason)

    def _unprotected(self, worker: str, reason: str) -> None:
        logger.warning("dask-resilient: worker %s is unprotected: %s", worker, reason)
        self._watch.event("unprotected", worker=worker, reason=reason)

    def loaded(self, worker: str, msg: Mapping[str, Any]) -> None:  # noqa: ARG002
        """Hear that a load brought the value, and how long it took."""
        watch = self._watch
        watch.copies.endings[str(Ending.GOOD)] += 1
        watch.costs = watch.costs.observe(int(msg["nbytes"]), float(msg["seconds"]))
        watch.chronicle.totals.loaded(int(msg["nbytes"]))
        watch.reloading = watch.reloading.after(Ending.GOOD, time())
        entry = watch.ledger.entries.get(msg["key"])
        if entry is not None and entry.shelf is not None and entry.state is SaveState.DURABLE and not entry.late:
            entry.nbytes = entry.shelf.sizes[entry.index] = int(msg["nbytes"])
