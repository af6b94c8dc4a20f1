"""How long a task may wait for the background writer, and when saving gives up.

A worker keeps at most a share of its memory in staged partitions. A task that would pass it waits, but only within two
bounds, so that a store slower than the computation costs a known share of the run and not more.
"""

from __future__ import annotations

import errno

FAILURES = 3
"""Writes that may fail one after the other before saving switches itself off."""

HOPELESS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR})
"""Errors that do not pass by waiting: one is enough."""


def fits(nbytes: int, staged: int, limit: int) -> bool:
    """Say whether a partition may be staged; one alone may pass the limit, else it could never be saved."""
    return staged == 0 or staged + nbytes <= limit


def allowed_wait(task_limit: float, share: float, elapsed: float, threads: int, waited: float) -> float:
    """Give the seconds that a task may wait for room.

    Parameters
    ----------
    task_limit
        Most seconds of one task.
    share
        Most share of the run that all waits together may take.
    elapsed
        Seconds since saving began on this worker.
    threads
        Threads that run tasks; the run has ``elapsed * threads`` thread-seconds.
    waited
        Seconds that tasks have waited already.
    """
    return max(0.0, min(task_limit, share * elapsed * threads - waited))


def hopeless(failures: int, code: int | None) -> bool:
    """Say whether saving switches itself off after this many failures in a row, the last with this errno."""
    return failures >= FAILURES or code in HOPELESS
