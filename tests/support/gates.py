"""What tests of the gate have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from distributed import Worker

from tests.support.in_process import Cluster
from tests.support.waiting import until

MANY = {f"K{i}": [] for i in range(8)}


async def ended(x: Cluster) -> None:
    """Check both sides, release everything, and see it forgotten everywhere."""
    x.free()
    x.scheduler.validate_state()
    live = [w for w in x.workers if w.address in x.scheduler.workers]
    for worker in live:
        worker.validate_state()
    for cs in list(x.scheduler.clients.values()):
        keys = [ts.key for ts in cs.wants_what]
        x.scheduler.client_releases_keys(keys=keys, client=cs.client_key, stimulus_id="test-end")
    await until(lambda: not x.scheduler.tasks, what="the scheduler forgets every task")
    await until(lambda: not any(w.state.tasks for w in live), what="the workers forget every task")
    assert not x.log.bad()


def sent(worker: Worker) -> Callable[[], int]:
    """Count the tasks that a worker is sent from now on."""
    count = 0
    original = worker.stream_handlers["compute-task"]

    def handler(**msg: Any) -> Any:
        nonlocal count
        count += 1
        return original(**msg)

    worker.stream_handlers["compute-task"] = handler
    return lambda: count


async def executing(x: Cluster, worker: Worker, *keys: str) -> None:
    """Wait until the scheduler has heard that a worker executes something."""
    ws = x.scheduler.workers[worker.address]
    await until(lambda: set(keys) <= {ts.key for ts in ws.executing}, what=f"{keys} are heard of")
