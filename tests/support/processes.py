"""A cluster of real processes under nannies, with the plugin over a real store, for tests that kill with real signals.

The scheduler lives in this process, so its state can be looked at. Everything that has to be held up, in user functions
and in the plugin on the workers, is held up by files (`tests.processes.preload`), since only files reach a process that
is yet to be started. When a test ends, everything is checked: Dask's own invariants on both sides, that nothing is left
once every future is released, that nobody logged a broken invariant, and that uninstalling left no trace.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask
from distributed import Client, LocalCluster, Status

import dask_resilient as dr
from dask_resilient.internals import nvml
from dask_resilient.plugin import NAME
from dask_resilient.scheduler.members import WAITING
from tests.processes.preload import CONTROL, order
from tests.support.calls import Calls
from tests.support.leftovers import Log, children, leftovers, threads
from tests.support.waiting import wait_until

CONFIG = {
    "distributed.scheduler.validate": True,
    "distributed.worker.validate": True,
    "distributed.scheduler.work-stealing": False,  # so that who holds what stays as it was when the test looked
    "distributed.scheduler.active-memory-manager.start": False,
    "distributed.scheduler.allowed-failures": 100,
    # A worker that happens to be down again after this time is given up by LocalCluster, nanny and all.
    "distributed.deploy.lost-worker-timeout": "1 hour",
    "distributed.nanny.pre-spawn-environ.OMP_NUM_THREADS": 1,
}

BAD = (
    "Error transitioning",
    "Detected different",
    "Plugin failed",
    "could not handle",
    "AssertionError",
    "from now on",
)
"""What is in a message of the log that no test may cause."""


class Processes:
    """One cluster of worker processes, and what one test after the other does on it.

    Parameters
    ----------
    directory
        Where its files go.
    workers, threads
        Size of the cluster.
    config
        Dask's configuration beside `CONFIG`.
    """

    def __init__(self, directory: Path, workers: int, threads: int = 1, config: dict[str, Any] | None = None) -> None:
        self.before = children()
        self.directory = directory
        self.control = directory / "control"
        self.control.mkdir()
        (directory / "loads").mkdir()
        self.n = workers
        self.log = Log()
        self.worn = False
        """Whether a worker is gone for good: the next test needs another cluster."""
        self.config = {**CONFIG, CONTROL: str(self.control), **(config or {})}
        with dask.config.set(self.config):
            self.cluster = self.make(workers, threads)
            self.client = Client(self.cluster)
        self.scheduler = self.cluster.scheduler
        self.where = directory
        self.handle: Any = None

    def make(self, workers: int, threads: int) -> Any:
        """Start the cluster."""
        return LocalCluster(
            n_workers=workers,
            threads_per_worker=threads,
            processes=True,
            host="127.0.0.1",
            dashboard_address=":0",
            silence_logs=False,
            preload=["tests.processes.preload"],
            memory_limit="2 GiB",
        )

    # -- one test ----------------------------------------------------------------------------------------------------

    def begin(self, where: Path) -> None:
        """Begin a test: empty directories, all workers there."""
        self.where = where
        self.store = where / "store"
        for name in ("calls", "gates"):
            (where / name).mkdir()
        self.calls = Calls(where / "calls")
        self.load_log = self.directory / "loads"
        for file in (*self.load_log.iterdir(), *self.control.iterdir()):
            file.unlink()
        self.log.messages.clear()
        self.handle = None
        self.whole()

    def install(self, client: Client | None = None, *, probes: Any = (), **settings: Any) -> Any:
        """Install the plugin and give its handle; settings with ``__`` for a dot and ``_`` for a dash."""
        values = {f"resilience.{key.replace('__', '.').replace('_', '-')}": value for key, value in settings.items()}
        with dask.config.set(values):
            self.handle = dr.install(client or self.client, store=self.store, probes=probes)
        return self.handle

    def whole(self, n: int | None = None) -> None:
        """Wait until all workers are there, and have reported if the plugin is installed."""
        n = self.n if n is None else n

        def ready() -> bool:
            members = self.watch.members.rows() if self.watch is not None else []
            return len(self.scheduler.workers) == n and not any(row["reason"] == WAITING for row in members)

        try:
            wait_until(lambda: self.ask(ready), 60)
        except AssertionError:
            rows = self.watch.members.rows() if self.watch is not None else []
            raise AssertionError(f"not whole: {list(self.scheduler.workers.values())}, {rows}") from None

    def ask(self, question: Callable[[], Any]) -> Any:
        """Look at the scheduler's state from its own event loop, where it does not change under our hands."""

        async def answer() -> Any:
            return question()

        return self.cluster.sync(answer)

    def until(self, question: Callable[[], Any], seconds: float = 30.0, what: str = "") -> Any:
        """Wait until a question about the scheduler's state has a true answer."""
        try:
            return wait_until(lambda: self.ask(question), seconds)
        except AssertionError:
            states = self.ask(lambda: {str(key): ts.state for key, ts in self.scheduler.tasks.items()})
            raise AssertionError(f"not within {seconds:g} s: {what}; {states}") from None

    @property
    def plugin(self) -> Any:
        """The registered plugin, None if there is none."""
        return self.scheduler.plugins.get(NAME)

    @property
    def watch(self) -> Any:
        """The scheduler's side, None if the plugin is not installed."""
        return None if self.plugin is None else self.plugin._watch

    def addresses(self) -> list[str]:
        """Give the addresses of the workers, by name."""
        return self.ask(
            lambda: [ws.address for ws in sorted(self.scheduler.workers.values(), key=lambda ws: str(ws.name))]
        )

    def name(self, address: str) -> str:
        """Give the name of a worker."""
        return str(self.ask(lambda: self.scheduler.workers[address].name))

    def loads(self) -> list[str]:
        """Give the keys whose load has begun, each as often as it did."""
        return sorted(Calls(self.load_log).counts().elements())

    def incidents(self) -> list[dict[str, Any]]:
        """Give the incidents once each of them is whole again."""

        def closed() -> Any:
            rows = self.handle.incidents()
            return [rows] if all(row["seconds"] is not None for row in rows) else None

        return wait_until(closed, 20, "every incident is whole again")[0]

    # -- faults ------------------------------------------------------------------------------------------------------

    def kill(self, *addresses: str) -> None:
        """Kill workers with SIGKILL and wait until the scheduler has noticed.

        Not before their nannies have heard that they run. A nanny looks for that word 20 times a second; if its worker
        dies in between and is started anew, the look for the old word takes the new one, so that the nanny waits for
        ever: its worker runs, but is never restarted again, nor does closing it end.
        """
        self.until(lambda: all(map(self._known_to_nanny, addresses)), what="the nannies know that their workers run")
        pids = self.ask(lambda: [self.scheduler.workers[address].pid for address in addresses])
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        self.until(lambda: not set(addresses) & set(self.scheduler.workers), what="the scheduler noticed the loss")

    def _known_to_nanny(self, address: str) -> bool:
        nannies = [nanny for nanny in self.cluster.workers.values() if nanny.worker_address == address]
        return all(nanny.process is None or nanny.process.status == Status.running for nanny in nannies) and (
            bool(nannies) or address not in self.scheduler.workers
        )

    def call(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a coroutine function of the scheduler on its event loop, and wait for it."""
        return self.cluster.sync(method, *args, **kwargs)

    def hold(self, name: str) -> None:
        """Hold up what workers do under this name, from now on."""
        order(self.control, "hold", name)

    def fail(self, name: str, code: int) -> None:
        """Let what workers do under this name fail, from now on."""
        order(self.control, "fail", name, code)

    def free(self, *names: str) -> None:
        """End the faults of these names; without names all, also those of user functions."""
        for file in (*self.control.iterdir(), *(self.where / "gates").iterdir()):
            if not names or file.name.partition(":")[2] in names:
                file.unlink(missing_ok=True)

    def gate(self, *names: str) -> None:
        """Keep user functions from going on: ``d`` all of that name, ``d-3`` one partition."""
        for name in names:
            (self.where / "gates" / name).touch()

    def open_gate(self, *names: str) -> None:
        """Let them go on."""
        for name in names:
            (self.where / "gates" / name).unlink()

    def ran(self, name: str, times: int = 1) -> None:
        """Wait until a user function has begun so many times."""
        wait_until(lambda: self.calls.counts()[name] >= times, 30, f"{name} begins: {self.calls.counts()}")

    # -- the store ---------------------------------------------------------------------------------------------------

    def durable(self, n: int) -> None:
        """Wait until so many partitions are durable."""

        def enough() -> bool:
            return sum(entry.usable for entry in self.watch.ledger.entries.values()) >= n

        try:
            self.until(enough)
        except AssertionError:
            raise AssertionError(f"not durable: {self.ask(self.watch.ledger.rows)}") from None

    def place(self, key: Any) -> Any:
        """Give the place of a key's copy."""
        return self.ask(lambda: self.watch.ledger.entries[key].place)

    def tombstones(self) -> list[Path]:
        """Give the tombstones in the store."""
        return sorted(self.store.glob("revoked/*/*.json"))

    # -- the end -----------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Check that nothing is broken, and that nothing is left when all futures and the plugin are gone."""
        self.free()
        self.ask(self.scheduler.validate_state)
        for client in list(self.ask(lambda: list(self.scheduler.clients))):
            self.ask(lambda name=client: self._release(name))
        self.until(lambda: not self.scheduler.tasks, what="the scheduler forgets every task")
        if self.watch is not None:
            self.until(self._nothing_left, what="the plugin forgets every task")
            assert self.handle.uninstall(wait=10)
        if not self.worn:
            self.whole()
            self._workers_are_clean()
        self.check_undone()
        logs = [line for lines in self.client.get_worker_logs().values() for _, line in lines]
        assert not [line for line in (*logs, *self.log.messages) if any(bad in line for bad in BAD)]

    def _workers_are_clean(self) -> None:
        left: dict[str, Any] = {}

        def clean() -> bool:
            left.clear()
            left.update(self.client.run(leftovers))
            return not any(left.values())

        try:
            wait_until(clean, 20)
        except AssertionError:
            raise AssertionError(f"left on workers: {left}") from None

    def _release(self, client: str) -> None:
        keys = [ts.key for ts in self.scheduler.clients[client].wants_what]
        self.scheduler.client_releases_keys(keys=keys, client=client, stimulus_id="test-end")

    def _nothing_left(self) -> bool:
        watch = self.watch
        lives = watch.ledger.entries or watch.ledger._lives
        return not (watch.detour.parked or lives or watch.copies._reader or watch.book.counting)

    def check_undone(self) -> None:
        """Check that the scheduler has no trace of the plugin, and this process no thread of it."""
        scheduler = self.scheduler
        assert NAME not in scheduler.plugins
        assert NAME not in scheduler.handlers
        assert NAME not in scheduler.worker_plugins
        assert "_TRANSITIONS_TABLE" not in scheduler.__dict__
        assert "_generate_taskstates" not in scheduler.__dict__
        assert not nvml._stand_in
        wait_until(lambda: not threads(), 10, f"every thread ends: {threads()}")

    def close(self) -> None:
        """Close everything, and check that no process is left over."""
        self.free()
        self.client.close()
        self.cluster.close()
        wait_until(lambda: not children() - self.before, 20, f"every process ends: {children() - self.before}")
