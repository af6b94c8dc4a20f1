"""Judges one run: after every batch of scheduler transitions, and at its end.

How re-runs are judged. A function may start only for an assignment that Dask made for it (``-> processing`` with the
user's function, not with a load), so there are at most as many starts as assignments. An assignment follows from the
one decision ``released -> waiting``. At that decision the value must be in memory nowhere, and the key must have no
copy that could be loaded; from then on, after every batch, a key that only waits must have none either (a copy that
turns up has to be used). And every active task must be needed: wanted by a client, or waited for by an active task that
is no load, since a load waits for nothing. By induction a function runs again only for something that is wanted, is
lost or was interrupted, and is covered by no intact copy. And no key is assigned and given up in one batch, for then it
runs for nothing. `tests.fuzz.faults_exact` compares the outcome, too.

That a copy is not used has to have a reason which the judge knows by itself, from the faults of the run, and not from
what the package says of it.
"""

from __future__ import annotations

from collections import Counter
from time import time
from typing import Any

from distributed.diagnostics.plugin import SchedulerPlugin

from dask_resilient.core.recovery import ATTEMPTS
from dask_resilient.plugin import NAME
from tests.fuzz.faults import ACTIVE
from tests.fuzz.play import Play, compute

ROUNDS = 3
"""Batches that a task may stay active after the last that needed it: Dask takes a message round or two."""


class Judge(SchedulerPlugin):
    """Looks on as a plugin of the scheduler."""

    name = "fuzz-judge"

    def __init__(self, scheduler: Any, play: Play) -> None:
        self.scheduler = scheduler
        self.play = play
        self.problems: list[str] = []
        self.assigned: Counter[str] = Counter()
        self.endings: Counter[str] = Counter()
        """How loads ended, of instances that are gone."""
        self.loads = 0
        self.spoiled: set[str] = set()
        """Attempts that were damaged, swapped, or whose load was made to err."""
        self.damaged: set[str] = set()
        """Those of them that lie damaged on disk."""
        self.exploding = False
        """Whether loads are made to err just now."""
        self._trouble = False
        """Whether the store was made to be out of reach for a while."""
        self.kills = 0
        self.left = False
        """Whether the plugin was taken out."""
        self._excused: set[str] = set()
        self._unneeded: Counter[str] = Counter()
        self._begun: set[str] = set()
        """Keys whose function was assigned in this batch."""
        self._watches: list[Any] = []
        self._depth = 0
        self.stumbled = False
        """Whether Dask broke its own state, with the plugin taken out."""
        self._erred = False
        """Whether, in this batch, a task erred because it was asked for."""
        self._transitions = scheduler._transitions
        scheduler._transitions = self._batch
        scheduler.add_plugin(self, name=self.name)

    def problem(self, kind: str, text: object) -> None:
        """Write down what is wrong."""
        line = f"{kind}: {text}"
        if len(self.problems) < 20 and line not in self.problems:
            self.problems.append(line)

    @property
    def trouble(self) -> bool:
        """Whether loads could not reach the store, be it that a busy machine was slower than they were given time."""
        slow = self.play.case.timeout < 1 and any(w.copies.endings["unreachable"] for w in self._watches)
        return self._trouble or slow

    @trouble.setter
    def trouble(self, value: bool) -> None:
        self._trouble = value

    @property
    def watch(self) -> Any:
        """The scheduler's side of the instance that is registered, if one runs."""
        watch = getattr(self.scheduler.plugins.get(NAME), "_watch", None)
        if watch is not None and watch not in self._watches:
            self._watches.append(watch)
            self._look_after_commits(watch)
        return watch

    def _look_after_commits(self, watch: Any) -> None:
        """Look when a copy turns up, too: that may be in a pause in which nothing is transitioned."""
        committed = watch.copies.committed

        def told(*args: Any) -> None:
            committed(*args)
            self.look()

        watch.copies.committed = told

    def counts(self) -> Counter[str]:
        """Give how the loads of this run ended."""
        return sum((watch.copies.endings for watch in self._watches), Counter())

    # -- hooks -------------------------------------------------------------------------------------------------------

    def transition(self, key: Any, start: str, finish: str, *args: Any, **kwargs: Any) -> None:
        """Look at one transition."""
        if finish not in ACTIVE:
            self._excused.discard(key)
            # It erred when it was asked for, by then other things had been asked for beside it; plain Dask would hang.
            self._erred |= (start, finish) == ("released", "erred")
            return
        ts = self.scheduler.tasks[key]
        is_run = getattr(ts.run_spec, "func", None) is compute
        if finish == "waiting":
            # From waiting to waiting is no decision: nobody can run it now. What spoke against the copy when it was
            # decided (a pause of reloading, a worker that is not there yet) may have ended in between.
            if start != "waiting":
                self._decided(ts, is_run)
        elif finish == "processing" and is_run:
            self.assigned[key] += 1
            self._begun.add(key)
        elif finish == "processing":
            self.loads += 1

    def _decided(self, ts: Any, is_run: bool) -> None:
        if ts.who_has:
            self.problem("RERUN", f"{ts.key} is in memory")
        if is_run:
            self._covered(ts, deciding=True)
        elif NAME not in self.scheduler.plugins:
            self.problem("GONE", f"{ts.key} is to be loaded for a plugin that is not registered")

    def _batch(self, *args: Any, **kwargs: Any) -> Any:
        self._depth += 1
        try:
            return self._transitions(*args, **kwargs)
        except AssertionError as e:
            # Without us a lost key with an erred dependency waits for ever; where it validates, Dask stumbles over it.
            alone = self.watch is None or not self.watch.detour.on
            self.stumbled |= alone and " erred>" in str(e)
            raise
        finally:
            self._depth -= 1
            if not self._depth:
                self.look()

    def look(self) -> None:
        """Look at all tasks after a batch."""
        self._look_at_begun()
        self._look_at_parked()
        for key, ts in self.scheduler.tasks.items():
            if ts.state not in ACTIVE:
                continue
            if ts.who_wants or any(x.state in ACTIVE for x in ts.waiters or ()):
                self._unneeded.pop(key, None)
            else:
                self._unneeded[key] += 1
                if self._unneeded[key] > ROUNDS:
                    self.problem("UNNEEDED", f"{key} is {ts.state}, and nobody needs it")
            if getattr(ts.run_spec, "func", None) is compute:
                self._covered(ts)

    def _look_at_begun(self) -> None:
        for key in self._begun:
            ts = self.scheduler.tasks.get(key)
            if (ts is None or ts.state == "released") and not self._erred:
                self.problem("VAIN", f"{key} was assigned, and is given up in the same batch: its worker runs it")
        self._begun.clear()
        self._erred = False

    def _look_at_parked(self) -> None:
        watch = self.watch
        for key, parked in watch.detour.parked.items() if watch is not None else ():
            ts = self.scheduler.tasks.get(key)
            if ts is not parked.ts or ts.state not in ACTIVE:
                self.problem("STALE", f"{key} is parked: {ts!r}")

    # -- copies ------------------------------------------------------------------------------------------------------

    def _covered(self, ts: Any, *, deciding: bool = False) -> None:
        """Find a task that is run though a copy of it could be loaded."""
        watch = self.watch
        entry = watch.ledger.entries.get(ts.key) if watch is not None else None
        if entry is None or entry.task is not ts or entry.place is None:
            return
        why = self._reason(watch, entry)
        if why is not None:
            # It may go on when the reason is gone: Dask is not told to stop what it has begun.
            self._excused.add(ts.key)
        elif deciding or (ts.state != "processing" and ts.key not in self._excused):
            story = [(s[1], s[2]) for s in self.scheduler.story(ts.key)[-5:]]
            self.problem("RECOMPUTE", f"{ts.key} is {ts.state} and has an intact copy: {entry} {story}"[:900])

    def _reason(self, watch: Any, entry: Any) -> str | None:
        """Give a reason why a copy is not used."""
        reasons = {
            "spoiled": entry.place.attempt in self.spoiled,
            "taken out": self.left and not watch.detour.on,
            "killed": entry.bad_loads >= ATTEMPTS and (self.kills >= ATTEMPTS or self.trouble),
            "paused": self.trouble and watch.reloading.paused(time()),
            "not read a second time": self.trouble and (entry.suspect or entry.refused),
            "nobody can load": not self._loaders(watch, entry),
        }
        return next((name for name, holds in reasons.items() if holds), None)

    def _loaders(self, watch: Any, entry: Any) -> set[str]:
        """Give who can load, or may in a moment; one whose loss is being worked off is still among the members."""
        here = set(self.scheduler.workers)
        loaders = watch.loaders(entry.key)
        return here if loaders is None else (loaders | watch.expected()) & here

    # -- the end -----------------------------------------------------------------------------------------------------

    def count(self) -> None:
        """Compare starts with assignments."""
        for key, times in self.play.runs.items():
            if times > self.assigned[key]:
                self.problem("RUNS", f"{key} began {times} times for {self.assigned[key]} assignments")
