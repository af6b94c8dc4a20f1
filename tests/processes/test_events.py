"""The table of events, each on real processes: right values, exactly the expected re-runs, nothing left over."""

from __future__ import annotations

import pytest
from distributed import wait

from tests.processes.jobs import Job
from tests.processes.table import ROWS, Stand
from tests.support.waiting import wait_until


def arrange(job, stand):
    """Bring a job to where its event finds it."""
    {
        Stand.HELD: job.hold_milestone,
        Stand.CONSUMED: job.hold_consumers,
        Stand.QUEUED: job.hold_sources,
        Stand.DONE: job.finish,
    }[stand]()


@pytest.mark.parametrize(
    "row", [pytest.param(row, id=row.event, marks=[pytest.mark.slow] if row.slow else []) for row in ROWS]
)
def test_event(x, row, monkeypatch):
    """An event costs exactly what its row says."""
    monkeypatch.setattr(x.scheduler, "WORKER_SATURATION", row.saturation)
    x.worn = row.worn
    x.install(resume=row.resume)
    job = Job(x, 9)
    arrange(job, row.stand)
    row.cause(x, job)
    x.free()
    wait(job.futures(), 40)
    assert job.lost or row.worn, "the event lost nothing: it cannot show anything"

    expected = {name: set(partitions) for name, partitions in job.begun.items()}
    for name in job.below:
        expected.setdefault(name, set()).update(row.below.of(job))
    for name in job.above:
        expected.setdefault(name, set()).update(row.above.of(job))
    again = job.repeated()
    assert {name: again.get(name, set()) for name in expected} == expected
    assert set(again) <= set(expected)

    job.right()
    most = len(row.reloaded.of(job)) + job.first_lost
    assert sum(incident["reloaded"] for incident in x.incidents()) == most
    # The second read that writes them may still be under way.
    expected_tombstones = len(row.tombstones.of(job))
    wait_until(lambda: len(x.tombstones()) >= expected_tombstones, what="tombstones")
    assert len(x.tombstones()) == expected_tombstones
