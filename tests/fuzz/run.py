"""Runs one case on a cluster in this process, with the real plugin over a real store, and judges it."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random
from time import monotonic
from typing import Any

import dask
from distributed import Future, Status, Worker

from dask_resilient.plugin import NAME
from tests.fuzz.around import Outcome, config, left_threads, quick
from tests.fuzz.case import Case
from tests.fuzz.faults import soon
from tests.fuzz.faults_plugin import FAULTS
from tests.fuzz.judge import Judge
from tests.fuzz.log import Log
from tests.fuzz.play import Gate, Play, submit
from tests.support.cluster import Cluster
from tests.support.waiting import until
from tests.support.world import UserError, lineage

SECONDS = 15.0
"""Longest that everything may take to come true once the faults are over."""

BOUND = 90.0
"""Longest that one run may take in all."""

DONE = ("memory", "erred")

STUMBLED = "assertion of Dask's own"
"""A run that ended so tells nothing more: the scheduler's state is broken, and we are not there."""

RESOURCES = {"R": 2}


class Run:
    """One case while it runs."""

    def __init__(self, case: Case, store: Path) -> None:
        self.case = case
        self.x = Cluster(store, case.threads)
        self.play = Play(case)
        self.gate = Gate()
        self.judge: Judge
        self.futures: dict[str, Future] = {}
        self.closing: list[asyncio.Future[Any]] = []
        self.gone: set[str] = set()
        """Workers that were lost or are about to be."""
        self.faults: Counter[str] = Counter()

    # -- for the faults ----------------------------------------------------------------------------------------------

    def live(self) -> list[Worker]:
        """Give the workers that can still be lost."""
        here = self.x.scheduler.workers
        ok = (Status.running, Status.paused)
        return [w for w in self.x.workers if w.address in here and w.address not in self.gone and w.status in ok]

    async def join(self) -> None:
        """Add a worker."""
        await self.x.join(resources=RESOURCES)

    def parked_tasks(self) -> list[Any]:
        """Give the tasks that are loaded now."""
        watch = self.judge.watch
        return [parked.ts for parked in watch.detour.parked.values()] if watch is not None else []

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        """Do something a little later, whatever happens meanwhile."""
        asyncio.get_running_loop().call_later(seconds, call)

    def submit(self, keys: Iterable[str], rng: Random) -> None:
        """Submit what some keys need, and hold their futures."""
        case = self.case
        options: dict[str, Any] = {}
        if case.retries:
            options["retries"] = case.retries
        if case.priorities:
            options["priority"] = rng.randint(-5, 5)
        if case.resources:
            needing = frozenset(case.resources)
            options["resources"] = lambda key: {"R": 1} if key in needing else None
        if case.pinned and self.live():
            pinned, address = frozenset(case.pinned), self.live()[0].address
            options["workers"] = lambda key: [address] if key in pinned else None
        self.futures.update((f.key, f) for f in submit(self.x.client, self.play, keys, **options))

    # -- the run -----------------------------------------------------------------------------------------------------

    async def main(self) -> None:
        """Run the graph and the faults, then look at everything."""
        for _ in range(self.case.workers):
            await self.join()
        await self.x.install()
        self.judge = Judge(self.x.scheduler, self.play)
        self.submit(self.case.outputs, Random(0))
        if self.case.settled:
            await self._settle()
        for wait, name, seed in self.case.steps:
            await asyncio.sleep(wait)
            done = await FAULTS[name](self, Random(seed))
            self.faults[name if done else f"({name})"] += 1
        await self._calm()
        await self._results()
        self.judge.count()
        await self._leftovers()

    async def _settle(self) -> None:
        """Wait until the first graph is done and what it marked is saved."""
        await until(lambda: all(f.done() for f in self.futures.values()), what="the first graph is done")
        await until(lambda: not self.x.watch.ledger.saving(), what="its copies are durable")

    async def _calm(self) -> None:
        """Let everything go on, with two workers that can."""
        self.play.free()
        self.gate.free()
        for closing in self.closing:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(closing, 5)
        while len(self.live()) < 2:
            await self.join()

    async def _results(self) -> None:
        """Everything that is held comes true, or errs as it has to."""
        deadline = monotonic() + SECONDS
        tasks = self.x.scheduler.tasks

        def true() -> bool:
            # A client hears of a loss a moment after the scheduler, and believes the value to be there until then.
            return all(f.done() and k in tasks and tasks[k].state in DONE for k, f in self._hopeful().items())

        while not true() and monotonic() < deadline:
            self._lift_pins()
            await asyncio.sleep(0.005)
        self.faults["hang of Dask's own"] += len(self.futures) - len(self._hopeful())
        for key, future in self._hopeful().items():
            # A value that is lost while others are fetched comes back too.
            def there(key: str = key, future: Future = future) -> bool:
                return future.done() and key in tasks and tasks[key].state in DONE

            if not await soon(there, max(0.1, deadline - monotonic())):
                self.judge.problem("HANG", f"{key}: {self._story()}"[:3000])
                return
            await self._result(key, future)

    def _hopeful(self) -> dict[str, Future]:
        """Give the futures that can come true: Dask brings nothing back that is lost after one of its inputs erred.

        Where such a key has a copy, though, it has to be loaded, and counts.
        """
        watch = self.judge.watch
        entries = watch.ledger.entries if watch is not None else {}

        def stuck(ts: Any) -> bool:
            covered = (entry := entries.get(ts.key)) is not None and entry.usable
            return ts.state == "released" and not covered and any(dep.state == "erred" for dep in ts.dependencies)

        lost = {ts.key for ts in self.x.scheduler.tasks.values() if (ts.who_wants or ts.waiters) and stuck(ts)}
        if not lost:
            return self.futures
        return {key: f for key, f in self.futures.items() if not lost & set(lineage(self.play.spec, [key]))}

    async def _result(self, key: str, future: Future) -> None:
        if future.status == "error":
            error = await future.exception()
            causes = lineage(self.play.spec, [key])
            if not (isinstance(error, UserError) and error.args[0] in causes and error.args[0] in self.play.erring):
                self.judge.problem("ERROR", f"{key}: {error!r}"[:300])
            return
        try:
            value = await asyncio.wait_for(future.result(), 10)
        except UserError:
            return  # lost while it was being fetched, and its function erred then
        except BaseException as e:
            self.judge.problem("RESULT", f"{key} {future.status}: {e!r}"[:300])
            return
        if value.tolist() != [self.play.expected(key)] * len(value):
            self.judge.problem("WRONG", f"{key} is {value[0]}, not {self.play.expected(key)}")

    def _lift_pins(self) -> None:
        """Lift pins to workers that are gone, as a user would have to; not of loads, which must not hang on them."""
        scheduler = self.x.scheduler
        parked = {ts.key for ts in self.parked_tasks()}
        for ts in list(scheduler.unrunnable) if self.case.pinned else ():
            pins = ts.worker_restrictions
            if ts.key not in parked and ts.key in self.case.pinned and pins and not pins & set(scheduler.workers):
                ts.worker_restrictions = None
                scheduler.transitions({ts.key: "released"}, "fuzz-lift")

    def _story(self) -> str:
        active = ("waiting", "queued", "no-worker", "processing")
        tasks = {
            ts.key: (ts.state, ts.processing_on and ts.processing_on.address, ts.worker_restrictions)
            for ts in self.x.scheduler.tasks.values()
            if ts.state in active
        }
        on = {w.address: {k: t.state for k, t in w.state.tasks.items() if t.state != "memory"} for w in self.live()}
        # What does not arrive is under way from somebody, who may be gone or closing.
        flight = {w.address: {k: t.coming_from for k, t in w.state.tasks.items() if t.coming_from} for w in self.live()}
        at = {w.address: (w.status.name, w.address in self.gone) for w in self.x.workers}
        return f"{tasks} parked={[ts.key for ts in self.parked_tasks()]} workers={on} {flight=} {at=}"

    async def _leftovers(self) -> None:
        """Release everything, take the plugin out, and find nothing left."""
        for future in self.futures.values():
            future.release()
        self.futures.clear()
        await until(lambda: all(t.done() for t in self.closing), what="workers close")
        # A plugin that comes to a worker that closes is not taken away again; it has to do nothing there.
        self.x.workers[:] = [w for w in self.x.workers if w.status != Status.closed]
        if self.x.scheduler.plugins.get(NAME) is not self.x.plugin:
            # Taken out of Dask's table, it leaves when it next hears anything; here nothing may come any more.
            await self.x.plugin.uninstall(wait=5)
        await self.x.check()


async def _run(case: Case, store: Path) -> Outcome:
    run = Run(case, store)
    problems = []
    with run.gate.installed():
        try:
            await run.x.start(0, install=False)
            await asyncio.wait_for(run.main(), BOUND)
        except TimeoutError:
            problems.append(f"TIMEOUT: {run._story()}"[:1500])
        except AssertionError as e:
            where = [(frame.name, frame.line) for frame in traceback.extract_tb(e.__traceback__)[-2:]]
            at = {w.address: (w.status.name, NAME in w.plugins, w.address in run.gone) for w in run.x.workers}
            problems.append(f"LEFT: {where} {e} {at}"[:1500])
        except Exception as e:
            problems.append("EXCEPTION: " + "".join(traceback.format_exception(e))[-1500:])
        finally:
            run.play.free()
            run.gate.free()
            with contextlib.suppress(Exception):  # one that failed must not leave its threads to the next
                await asyncio.wait_for(run.x.plugin.uninstall(wait=0), 10)
            await run.x.stop()
    judge = getattr(run, "judge", None)
    if judge is None:
        return Outcome(problems)
    if judge.stumbled:
        run.faults[STUMBLED] += 1
        return Outcome([], run.faults, judge.counts(), sum(run.play.runs.values()), judge.loads)
    return Outcome(judge.problems + problems, run.faults, judge.counts(), sum(run.play.runs.values()), judge.loads)


def run_case(case: Case) -> Outcome:
    """Run one case and say what came of it."""
    log = Log()
    begin = monotonic()
    with quick(log), dask.config.set(config(case)), tempfile.TemporaryDirectory(prefix="fuzz-") as directory:
        outcome = asyncio.run(_run(case, Path(directory) / "store"))
    outcome.problems.extend(left_threads())
    if not outcome.faults[STUMBLED]:
        outcome.problems.extend(f"LOG: {message}"[:1500] for message in log.bad())
    outcome.seconds = monotonic() - begin
    return outcome
