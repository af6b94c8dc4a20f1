"""Collectors at work: what they say, how they rest, and whose clock they go by."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from dask_resilient.core.garbage import EXPIRY, GRACE, Why
from dask_resilient.store import garbage as garbage_module
from dask_resilient.store.leases import clock
from tests.store.collecting import age, finish, make
from tests.support.garbage import EMPTY, collector, endings, files, write
from tests.support.store_life import Impatient


@pytest.fixture
def root(store):
    """Give the directory of the store."""
    return Path(store.url)


# -- saying it only, and slowly ----------------------------------------------------------------------------------------


def test_dry_run_deletes_nothing(store, root):
    """Without `delete` the same is said, and nothing changes but the clock's probe that comes and goes."""
    make(store.url, "m", "run")
    make(store.url, "t", "gone", temporary=True)
    finish(store.url, "run")
    (root / f"probe-{'0' * 32}").touch()
    age(store.url)
    before = {path: (root / path).lstat().st_mtime for path in files(root)}

    def go(*, delete):
        one = collector(store, delete=delete)
        return [e for m in one.milestones() for e in one.collect(m, GRACE)] + list(one.sweep_root(GRACE))

    said = go(delete=False)
    assert {path: (root / path).lstat().st_mtime for path in files(root)} == before
    assert go(delete=True) == said
    assert files(root) == {*EMPTY, "revoked/t", "revoked/t/0.0.json"}


def test_removed_says_what_and_how_much(store, root):
    """Each thing that goes is told with its kind, its size on disk and the reason."""
    make(store.url, "m", "run", 2)
    finish(store.url, "run", complete=False)
    age(store.url)
    size = sum(path.stat().st_size for path in (root / "data/m/0-a").iterdir())
    found = {each.path: each for each in collector(store).collect("m", GRACE)}
    partition, attempt = found["commit/m/0.0.json"], found["data/m/1-lost"]
    assert (partition.milestone, partition.what, partition.nbytes, partition.why) == (
        "m",
        "partition",
        size,
        Why.REVOKED,
    )
    assert (attempt.what, attempt.nbytes, attempt.why) == ("attempt", 0, Why.ABANDONED)


@pytest.mark.parametrize("idle", [0.0, 1.0, 3.0])
def test_collecting_rests(store, monkeypatch, idle):
    """After each deletion it rests for as long as that took, times `idle`: others write meanwhile."""
    make(store.url, "m", "run", 3)
    finish(store.url, "run")
    age(store.url)
    now = 0.0

    class Slow(Impatient):
        def unlink(self, path):
            nonlocal now
            now += 1.0
            super().unlink(path)

    monkeypatch.setattr(time, "monotonic", lambda: now)
    rests = []
    one = collector(store, calls=Slow(), idle=idle, sleep=rests.append)
    found = list(one.collect("m", GRACE))
    assert 3 < len(rests) <= len(found)
    assert sum(rests) == pytest.approx(idle * (now - 1))  # the clock's probe was unlinked too
    assert not collector(store, delete=False, sleep=rests.append).milestones()


def test_dry_run_does_not_rest(store):
    """What deletes nothing has nothing to rest for."""
    make(store.url, "m", "run", 3)
    age(store.url)
    rests = []
    assert list(collector(store, delete=False, idle=1.0, sleep=rests.append).collect("m", GRACE))
    assert not rests


def test_run_that_begins_meanwhile(store, root, monkeypatch):
    """A run that begins to use a milestone while it is being deleted is seen: the rest stays."""
    monkeypatch.setattr(garbage_module, "LOOK", 0.0)
    monkeypatch.setattr(garbage_module, "TOGETHER", 1)
    make(store.url, "m", "run")
    finish(store.url, "run")
    age(store.url)
    going = collector(store).collect("m", GRACE)
    for _ in range(5):
        next(going)
    store.journal("later", "run", {})
    store.renew("later", ["m"], ended=False)
    left = len(list(root.glob("commit/m/*.json")))
    assert not list(going)
    assert left > 10
    assert len(list(root.glob("commit/m/*.json"))) == left
    assert endings(store) == {"good"}


# -- the clock ---------------------------------------------------------------------------------------------------------


class Skewed(Impatient):
    """Calls on a file server whose clock differs from that of this host."""

    def __init__(self, hours):
        self._offset = hours * 3600.0

    def _shifted(self, found):
        names = [name for name in dir(found) if name.startswith("st_")]
        fields = {name: getattr(found, name) for name in names}
        return SimpleNamespace(**{**fields, "st_mtime": found.st_mtime + self._offset})

    def lstat(self, path):
        return self._shifted(super().lstat(path))

    def fstat(self, fd):
        return self._shifted(super().fstat(fd))


@pytest.mark.parametrize("hours", [-30, -5, 0, 5, 30])
def test_only_the_clock_of_the_store_counts(store, root, monkeypatch, hours):
    """Whatever the clock of this host says: young things stay, old ones go, live runs live and dead ones do not."""
    now = time.time()
    write(store, "old", "0", run="dead", temporary=True)
    age(store.url)
    write(store, "young", "0", run="dead", temporary=True)
    write(store, "used", "0", run="live", temporary=True)
    for run in ("dead", "live"):
        store.journal(run, "run", {})
        store.renew(run, [], ended=False)
    for path in [*root.glob("*/young/*"), *root.glob("*/used/*")]:
        seconds = (GRACE - 600) if "young" in str(path) else (GRACE + 600)
        os.utime(path, (now - seconds, now - seconds))
    os.utime(root / "runs/dead/lease.json", (now - EXPIRY - 60, now - EXPIRY - 60))
    monkeypatch.setattr(time, "time", lambda: now + hours * 3600.0)  # the host
    one = collector(store, calls=Skewed(hours / 3))  # the store
    assert {each.milestone for m in one.milestones() for each in one.collect(m, GRACE)} == {"old"}


def test_clock_of_a_store(store, root):
    """The clock is what the store writes into a new file, and leaves nothing; without room for one there is none."""
    assert abs(clock(Impatient(), store.url) - time.time()) < 60
    assert clock(Skewed(5), store.url) - time.time() > 4 * 3600
    assert not list(root.glob("probe-*"))

    class ReadOnly(Impatient):
        def create(self, path):
            raise OSError(30, "Read-only file system", path)

    with pytest.raises(OSError, match="Read-only"):
        clock(ReadOnly(), store.url)
