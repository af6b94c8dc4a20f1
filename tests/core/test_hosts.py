"""The host's rules: just below and just above, and never worse than degraded."""

from __future__ import annotations

import pytest

from dask_resilient.core.faults import Class
from dask_resilient.core.health import Health
from dask_resilient.core.readings import Name
from tests.support.readings import WELL, check, reading, verdict


@pytest.mark.parametrize(
    ("name", "row", "bad", "good"),
    [
        (Name.HOST_MEMORY, "memory", 0.01, 0.02),
        (Name.HOST_DISK, "disk", 0.01, 0.02),
        (Name.HOST_FILES, "files", 0.91, 0.9),
    ],
)
def test_what_runs_out_degrades(name: Name, row: str, bad: float, good: float) -> None:
    """At the limit it does not yet."""
    check(verdict(WELL, reading(name, bad)), Class.DEGRADE, f"host.{row}")
    assert verdict(WELL, reading(name, good)).health is Health.HEALTHY


def test_a_host_that_is_well_says_nothing_about_a_gpu() -> None:
    """Of a GPU of which nothing else is known nothing is known."""
    assert verdict(reading(Name.HOST_MEMORY, 0.5)).health is Health.UNKNOWN
