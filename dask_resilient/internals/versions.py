"""Which Dask the detour is known to be right on.

The rows and attributes that it uses are private. Outside the tested range, or where one of them is missing, partitions
are saved and reported, and recovery is left to Dask.
"""

from __future__ import annotations

from typing import Any

TESTED = ("2026.7.1", "2026.8.0")
"""Oldest and newest distributed release that the contract tests and the fuzzer ran on."""

_ROWS = (
    ("released", "waiting"),
    ("waiting", "released"),
    ("queued", "released"),
    ("no-worker", "released"),
    ("processing", "released"),
    ("processing", "memory"),
    ("processing", "erred"),
    ("no-worker", "erred"),
    ("queued", "erred"),
    ("memory", "released"),
    ("memory", "erred"),
    ("released", "erred"),
)


def _tuple(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("+", 1)[0].split(".")[:3] if part.isdigit())


def out_of_range() -> str | None:
    """Say that the Dask of this process is outside of the tested range, or None if it is not."""
    import distributed

    version = distributed.__version__
    if not _tuple(TESTED[0]) <= _tuple(version) <= _tuple(TESTED[1]):
        return f"distributed {version} is outside of the tested range {TESTED[0]} to {TESTED[1]}"
    return None


def unsupported(scheduler: Any) -> str | None:
    """Say why the detour cannot be used on this scheduler, or None if it can."""
    import distributed

    version = distributed.__version__
    if (reason := out_of_range()) is not None:
        return reason
    table = getattr(scheduler, "_TRANSITIONS_TABLE", {})
    missing = [f"{start} -> {finish}" for start, finish in _ROWS if (start, finish) not in table]
    if missing:
        return f"distributed {version} has no transition {missing[0]}"
    if not hasattr(scheduler, "_generate_taskstates"):
        return f"distributed {version} has no Scheduler._generate_taskstates"
    return None
