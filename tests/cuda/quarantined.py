"""What tests of quarantine on fake GPUs share: a job under way, workers started by hand, what is seen of devices."""

from __future__ import annotations

import copy
from typing import Any

from distributed import futures_of, get_worker, wait

from tests.cuda.device_job import DeviceJob
from tests.support.fakegpu import uuid

FAST = {"probe__interval": 0.5}
N = 8
SICK, SOUND = uuid(0), uuid(1)


def here(_: object = None) -> str:
    """Give the name of the worker that this runs on."""
    return str(get_worker().name)


def install(x: Any, **settings: Any) -> None:
    """Install the plugin and wait until both devices are known and healthy."""
    x.install(**FAST, **settings)
    x.known()
    x.until(lambda: {row["health"] for row in x.watch.members.rows()} == {"healthy"}, what="both are healthy")


def phase(x: Any, device: str = SICK) -> str:
    """Give the phase of a device, on the scheduler's loop."""
    return str(x.watch.keeper.book.phase(device))


def until_phase(x: Any, name: str, seconds: float = 20.0, device: str = SICK) -> None:
    """Wait until a device is in a phase."""
    try:
        x.until(lambda: phase(x, device) == name, seconds)
    except AssertionError:
        raise AssertionError(f"{device} is not {name}: {x.handle.workers()}, {x.watch.keeper.audit.rows}") from None


def decided(x: Any, device: str = SICK, kind: str = "decision") -> list[dict[str, Any]]:
    """Give the rows of what was decided about a device, or declined."""
    return [row for row in x.handle.incidents() if row["kind"] == kind and row["device"] == device]


def row_of(x: Any, device: str = SICK) -> dict[str, Any]:
    """Give the row of the worker of a device, on the scheduler's loop."""
    return next(row for row in x.watch.members.rows() if row["device"] == device)


def closed(x: Any, name: int = 0) -> bool:
    """Say whether the nanny of that name is closed, and its process gone."""
    nanny = x.cluster.workers[name]
    return nanny.status.name in ("closed", "failed") and (nanny.process is None or not nanny.process.is_alive())


def start(x: Any, name: Any, **options: Any) -> Any:
    """Start another nanny for the GPU 0, as an operator would by hand, and give it."""
    spec = x.cluster.worker_spec[0]
    wanted = {**copy.deepcopy(spec["options"]), "name": name, **options}

    async def begin() -> Any:
        return await spec["cls"](x.scheduler.address, **wanted)

    return x.cluster.sync(begin)


def rejoin(x: Any) -> None:
    """Have the cluster start the workers again whose nannies were closed, or are being closed."""
    for name, device in ((0, SICK), (1, SOUND)):
        if phase(x, device) == "quarantined" and not any(r["name"] == str(name) for r in x.handle.workers()):
            x.until(lambda name=name: closed(x, name), what="its nanny is closed")
    for name in [name for name in x.cluster.workers if closed(x, name)]:
        del x.cluster.workers[name]
    x.cluster.sync(x.cluster._correct_state)


def only_on(x: Any, names: set[str], n: int = 20) -> None:
    """Check that tasks given now run on these workers only, and on each of them."""
    later = x.client.map(here, range(n), pure=False)
    wait(later, timeout=60)
    assert set(x.client.gather(later)) == names


class UnderWay:
    """A device job: a milestone that is durable, a step on it that is not saved, and one that waits on both devices."""

    def __init__(self, x: Any) -> None:
        self.x = x
        self.job = DeviceJob(x, N)
        self.milestone = self.job.milestone.persist()
        self.plain = self.job.then(self.milestone, "d").persist()
        wait([self.milestone, self.plain], timeout=60)
        x.durable(N)
        x.gate("c")
        self.held = self.job.then(self.milestone, "c").persist()
        # As the scheduler knows: it takes back what a device that is out of service does not execute by its last word.
        # (What has ended since stands there too.)
        keys = {future.key for future in futures_of(self.held)}
        at_it = lambda ws: any(ts.key in keys for ts in ws.executing)  # noqa: E731
        x.until(lambda: all(map(at_it, x.scheduler.workers.values())), what="both devices are at it")

    def goes_on(self, without: str = "0") -> None:
        """Let it go on, and check that no task starts on that worker any more."""
        later = self.x.client.map(here, range(20), pure=False)
        self.x.open_gate("c")
        wait(later, timeout=60)
        assert without not in self.x.client.gather(later)

    def right(self) -> None:
        """Check every result, whatever it was made of."""
        wait([self.milestone, self.plain, self.held], timeout=60)
        for index in (0, 1):  # this process takes what it gathers to a device too
            self.x.gpus.gpu(index, cuda=None, cuda_hang=None)
        self.job.right(self.held, "abc")
        self.job.right(self.plain, "abd")
        self.job.right(self.milestone, "ab")

    def again(self, names: str) -> int:
        """Give how many runs there were of these functions beyond the first of each partition."""
        return sum(n - 1 for name, n in self.x.calls.counts().items() if name[0] in names)
