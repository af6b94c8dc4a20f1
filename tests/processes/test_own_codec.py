"""A type of the user's: every worker registers its codec by a setting, and a fresh process opens what is stored."""

from __future__ import annotations

import subprocess
import sys

import dask.bag as db
from distributed import wait

import dask_resilient as dr

OPEN = """
import dask, dask_resilient as dr
with dask.config.set({"resilience.codecs": ["tests.support.grids"]}):
    grids = dr.open(SYS, "grids").compute(scheduler="sync")
assert [(g.cells.sum(), g.spacing) for g in grids] == [(12.0 * i, i / 7) for i in range(4)]
"""


def test_values_of_a_users_type_are_saved_reloaded_and_opened(x):
    """No module but the one of the setting is imported; a module that is missing costs one line, and nothing else."""
    x.install(codecs=["tests.support.grids", "no_such_module"])
    from tests.support.grids import make

    held = dr.checkpoint(db.from_sequence(range(4), npartitions=4).map(make), "grids").persist()
    wait(held)
    x.durable(4)
    x.kill(x.addresses()[0])
    wait(held)
    x.whole()
    assert [row["recomputed"] for row in x.incidents()] == [0]
    assert [grid.spacing for grid in held.compute()] == [i / 7 for i in range(4)]
    events = [event for _, event in x.client.get_events("resilience") if event["action"] == "codec-missing"]
    assert {event["worker"] for event in events} >= set(x.addresses())
    assert all("'no_such_module'" in event["reason"] for event in events)
    done = subprocess.run(
        [sys.executable, "-c", OPEN.replace("SYS", repr(str(x.store)))], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
