"""One cluster in this process, with the real plugin over a real store; `tests.support.cluster` makes tests of it."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from distributed import Client, Future, Scheduler, Worker
from distributed.core import Status

from dask_resilient.plugin import NAME, Resilience
from dask_resilient.scheduler.entries import Tally
from dask_resilient.scheduler.ledger import Ledger
from dask_resilient.scheduler.watch import Watch
from tests.support.log import Log
from tests.support.waiting import until
from tests.support.world import HELD, Spec, World, enter, expected, persist


class Cluster:
    """One scheduler, its workers, a client and the plugin.

    Parameters
    ----------
    store
        Directory of the store.
    threads
        Threads of a worker.
    """

    def __init__(self, store: Path, threads: int = 1) -> None:
        self.store = store
        self.threads = threads
        self.world = World()
        self.number = enter(self.world)
        self.log = Log()
        self.scheduler: Scheduler
        self.client: Client
        self.plugin: Resilience
        self.workers: list[Worker] = []
        self._stack = AsyncExitStack()
        self._events: list[threading.Event] = []

    # -- the cluster -------------------------------------------------------------------------------------------------

    async def start(self, workers: int, install: bool) -> None:
        """Bring everything up; with `install`, every worker has reported."""
        self.scheduler = await self._stack.enter_async_context(
            Scheduler(host="127.0.0.1", port=0, dashboard_address=":0", dashboard=False, transition_counter_max=50_000)
        )
        for _ in range(workers):
            await self.join()
        self.client = await self.connect()
        if install:
            await self.install()

    async def connect(self) -> Client:
        """Give another client."""
        client = Client(self.scheduler.address, asynchronous=True, set_as_default=False)
        return await self._stack.enter_async_context(client)

    async def join(self, *, ready: bool = False, **kwargs: Any) -> Worker:
        """Add a worker; with `ready`, wait until its side has reported."""
        options = {"nthreads": self.threads, "transition_counter_max": 50_000, **kwargs}
        worker = Worker(self.scheduler.address, host="127.0.0.1", dashboard_address=":0", **options)
        self.workers.append(await self._stack.enter_async_context(worker))
        running = self.scheduler.running
        await until(lambda: self.scheduler.workers.get(worker.address) in running, what="the new worker runs")
        if ready:
            await until(lambda: self.is_ready(worker), what="the new worker reports")
        return worker

    async def install(self, **kwargs: Any) -> None:
        """Register the plugin and wait until every worker has reported."""
        await self.client.register_plugin(Resilience(self.store, **kwargs))
        self.plugin = self.scheduler.plugins[NAME]
        here = [w for w in self.workers if w.address in self.scheduler.workers]
        await until(lambda: all(map(self.is_ready, here)), what="every worker reports")

    def is_ready(self, worker: Worker) -> bool:
        """Say whether loads may go to a worker."""
        member = self.watch.members.get(worker.address)
        return member is not None and member.ready

    async def lose(self, address: str) -> None:
        """Lose a worker as if it had died: nothing is expected, nobody is asked."""
        await self.scheduler.remove_worker(address, stimulus_id="test-loss")

    @property
    def watch(self) -> Watch:
        """The scheduler's side."""
        assert self.plugin._watch is not None
        return self.plugin._watch

    @property
    def parked(self) -> dict[Any, Any]:
        """The keys on the detour."""
        return self.watch.detour.parked

    def side(self, worker: Worker) -> Any:
        """Give the plugin's side on a worker."""
        return worker.plugins[NAME].side  # type: ignore[attr-defined]

    def events(self, action: str) -> list[dict[str, Any]]:
        """Give the structured events of one kind."""
        return [event for _, event in self.scheduler.get_events("resilience") if event["action"] == action]

    # -- graphs ------------------------------------------------------------------------------------------------------

    def persist(self, spec: Spec, *keys: str, client: Client | None = None, **annotations: Any) -> list[Future]:
        """Submit what the keys need and give their futures."""
        return persist(client or self.client, self.number, spec, keys, **annotations)

    def mark(self, *keys: str) -> None:
        """Let the functions of these keys save their values."""
        self.world.marked = frozenset(keys).__contains__

    async def durable(self, *keys: str) -> None:
        """Wait until copies of all these keys may be loaded."""

        entries = self.watch.ledger.entries
        await until(lambda: all(key in entries and entries[key].usable for key in keys), what=f"{keys} are durable")

    async def saved(self, spec: Spec, *keys: str) -> list[Future]:
        """Compute and save keys, and give their futures."""
        self.mark(*keys)
        futures = self.persist(spec, *keys)
        await self.done(*futures)
        await self.durable(*keys)
        return futures

    async def stored(self, spec: Spec, *keys: str) -> None:
        """Save copies of keys, then release their values: known to the scheduler, in memory nowhere.

        A task of its own keeps each key known; it has run, its result is kept, and what it was computed from is not.
        """
        keepers = {**spec, **{f"keep-{key}": [key] for key in keys}}
        self.mark(*keys)
        futures = self.persist(keepers, *(f"keep-{key}" for key in keys))
        await self.done(*futures)
        await self.durable(*keys)
        self._keepers = futures
        await until(lambda: not any(self.scheduler.tasks[k].who_has for k in spec), what="the values are let go")
        self.world.runs.clear()
        self.mark()

    def task(self, key: str) -> Any:
        """Give the scheduler's task."""
        return self.scheduler.tasks[key]

    def holder(self, key: str) -> str:
        """Give the address of the only worker that holds a key."""
        (ws,) = self.task(key).who_has
        return str(ws.address)

    def runner(self, key: str) -> str:
        """Give the address of the worker that a key was sent to."""
        return str(self.task(key).processing_on.address)

    async def done(self, *futures: Future) -> None:
        """Wait until futures are finished or erred."""
        await until(lambda: all(future.done() for future in futures), what=f"{futures} are done")

    async def runs(self, key: str, times: int = 1) -> None:
        """Wait until the function of a key has begun."""
        await until(lambda: self.world.ran(key) >= times, what=f"{key} runs {times} times")

    async def loads(self, key: str, times: int = 1) -> None:
        """Wait until a load of a key has begun."""
        await until(lambda: self.world.loaded(key) >= times, what=f"{key} loads {times} times")

    async def told(self, key: str) -> None:
        """Wait until the worker that a key was sent to last has taken that in."""
        await until(lambda: self.task(key).processing_on, what=f"{key} is sent to a worker")
        address, run_id = self.runner(key), self.task(key).run_id
        (worker,) = (w for w in self.workers if w.address == address)
        await until(
            lambda: key in worker.state.tasks and worker.state.tasks[key].run_id == run_id,
            what=f"the worker is told of run {run_id} of {key}",
        )

    async def value(self, future: Future) -> int:
        """Wait for a future and give what its value is filled with."""
        value = await asyncio.wait_for(future.result(), 15)
        assert len(set(value.tolist())) == 1
        return int(value[0])

    async def right(self, spec: Spec, *futures: Future) -> None:
        """Check the values of some futures."""
        for future in futures:
            assert await self.value(future) == expected(spec, future.key), future.key

    # -- faults ------------------------------------------------------------------------------------------------------

    def hold_writes(self) -> threading.Event:
        """Keep every worker's saver from writing until the event is set."""
        return self._hold("write", *(self.side(w).store for w in self.workers))

    def hold_reads(self) -> threading.Event:
        """Keep every store, the scheduler's too, from being read until the event is set."""
        return self._hold("read", *(self.side(w).store for w in self.workers), self.plugin._queue.store)

    def _hold(self, method: str, *stores: Any) -> threading.Event:
        event = threading.Event()
        self._events.append(event)

        def held(call: Callable[..., Any], *args: Any) -> Any:
            event.wait(HELD)
            return call(*args)

        for store in stores:
            setattr(store, method, functools.partial(held, getattr(store, method)))
        return event

    def drop(self, key: str) -> None:
        """Take a value out of memory everywhere without losing a worker."""
        self.scheduler.transitions({key: "released"}, "test-drop")

    def pause(self, *workers: Worker, paused: bool = True) -> None:
        """Let the scheduler send no task to some workers, or send them again."""
        for worker in workers:
            ws = self.scheduler.workers[worker.address]
            status = "paused" if paused else "running"
            self.scheduler.handle_worker_status_change(status, ws, "test-pause")

    # -- the store ---------------------------------------------------------------------------------------------------

    def place(self, key: str) -> Any:
        """Give the place of a key's copy."""
        return self.watch.ledger.entries[key].place

    def receipt(self, key: str) -> Path:
        """Give the receipt of a key's copy."""
        return self.store / self.place(key).receipt

    def chunk(self, key: str) -> Path:
        """Give the first chunk file of a key's copy."""
        return self.store / self.place(key).data / "0"

    def tombstones(self) -> list[str]:
        """Give the names of all tombstones."""
        return sorted(str(p.relative_to(self.store)) for p in self.store.glob("revoked/*/*.json"))

    def free(self) -> None:
        """Let everything go on that the test holds up."""
        self.world.free()
        for event in self._events:
            event.set()

    def story(self) -> str:
        """Tell where every task stands on scheduler and workers, for a test that hangs."""
        tasks = {
            key: (ts.state, ts.worker_restrictions, str(ts.processing_on)) for key, ts in self.scheduler.tasks.items()
        }
        workers = {w.address: (w.status, {k: ts.state for k, ts in w.state.tasks.items()}) for w in self.workers}
        return f"{tasks=} {workers=} loads={self.world.loads} runs={self.world.runs}"

    # -- the end -----------------------------------------------------------------------------------------------------

    async def check(self) -> None:
        """Release everything and check that nothing is left anywhere."""
        self.free()
        if self.plugin._watch is not None:
            check_tally(self.watch.ledger)
        live = [w for w in self.workers if w.address in self.scheduler.workers]
        self.scheduler.validate_state()
        for worker in live:
            worker.validate_state()
        for cs in list(self.scheduler.clients.values()):
            keys = [ts.key for ts in cs.wants_what]
            self.scheduler.client_releases_keys(keys=keys, client=cs.client_key, stimulus_id="test-end")
        await until(lambda: not self.scheduler.tasks, what="the scheduler forgets every task")
        if self.plugin._watch is not None:
            watch = self.watch
            assert not watch.detour.parked
            # What other runs know is saved to the end, also when nobody here wants it any more.
            await until(lambda: not watch.ledger.entries, what="no save is under way")
            assert not watch.ledger._lives
            assert not watch.copies._reader
            assert not watch.book.counting
        await until(lambda: not any(w.state.tasks for w in live), what="the workers forget every task")
        await self.plugin.uninstall(wait=5)
        await self.check_undone()

    async def check_undone(self) -> None:
        """Check that uninstalling left no trace."""
        scheduler = self.scheduler
        assert NAME not in scheduler.plugins
        assert NAME not in scheduler.handlers
        assert NAME not in scheduler.worker_plugins
        assert "_TRANSITIONS_TABLE" not in scheduler.__dict__
        assert "_generate_taskstates" not in scheduler.__dict__
        for worker in self.workers:
            # One that was lost may still be closing.
            await until(lambda: NAME not in worker.plugins, what="the worker's side leaves")  # noqa: B023
            if worker.status in (Status.closing, Status.closed):
                continue  # it keeps what lets it handle what was on its way
            assert "Unlink" not in getattr(worker.stream_handlers["compute-task"], "__qualname__", "")
        await until(lambda: not threads(), what=f"every thread ends: {threads()}")

    async def stop(self) -> None:
        """Close everything."""
        self.free()
        await self._stack.aclose()


def threads() -> list[str]:
    """Give the names of the package's threads."""
    return [t.name for t in threading.enumerate() if t.name.startswith("dask-resilient")]


def check_tally(ledger: Ledger) -> None:
    """Count the entries anew, and check that the tally says the same."""
    fresh = Tally()
    for entry in ledger.entries.values():
        tally, standing = entry.tally, entry.standing
        entry.tally = entry.standing = None
        fresh.take(entry)
        entry.tally, entry.standing = tally, standing
    assert fresh.durable == ledger.tally.durable
    counts = {name: +counter for name, counter in ledger.tally.counts.items() if +counter}
    now = {name: +counter for name, counter in fresh.counts.items() if +counter}
    assert now == counts
