"""How runs stand by their leases, and the rows that the tools show of a store."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from dask_resilient.core.garbage import EXPIRY
from dask_resilient.errors import Damaged, StoreError
from dask_resilient.store import open_archive
from dask_resilient.store.leases import clock, leases
from dask_resilient.store.survey import milestone_rows, newest_renewal, partition_rows
from tests.support.listings import FRAME, declare, save
from tests.support.store_life import Impatient


@pytest.fixture
def root(store):
    """Give the directory of the store."""
    return Path(store.url)


@pytest.fixture
def look(store):
    """Give a function that opens the store for reading, as another process would."""
    return lambda: open_archive(store.url, Impatient())


# -- runs --------------------------------------------------------------------------------------------------------------


def test_lease_lives_by_the_clock_of_the_store(store, root):
    """A lease lives until it was not renewed for long, by the mtime of its file, or until it says that it has ended."""
    calls = Impatient()
    store.journal("r", "run", {})
    store.renew("r", {"m", "n"}, ended=False)
    now = clock(calls, store.url)
    (lease,) = leases(calls, store.url, now).values()
    assert (lease.run, lease.live, lease.complete, lease.milestones) == ("r", True, False, {"m", "n"})
    assert not list(root.glob("probe-*"))
    for age, live in ((EXPIRY - 1, True), (EXPIRY + 1, False), (-1000.0, True)):
        os.utime(root / "runs/r/lease.json", (now - age, now - age))
        assert leases(calls, store.url, now)["r"].live is live
    store.journal("r", "complete", {})
    store.renew("r", {"m"}, ended=True)
    found = leases(calls, store.url, now)["r"]
    assert (found.live, found.complete, found.milestones) == (False, True, {"m"})


def test_renewal_replaces(store, root):
    """A renewal leaves one file, with what was said last."""
    store.journal("r", "run", {})
    for milestone in "abc":
        store.renew("r", [milestone], ended=False)
    assert sorted(path.name for path in (root / "runs/r").iterdir()) == ["lease.json", "run.json"]
    assert json.loads((root / "runs/r/lease.json").read_text())["milestones"] == ["c"]


def test_run_without_lease(store):
    """A run that never wrote a lease does not live."""
    store.journal("r", "run", {})
    found = leases(Impatient(), store.url, 0.0)["r"]
    assert (found.live, found.complete, found.milestones) == (False, False, frozenset())


@pytest.mark.parametrize("raw", ["", "{", "[]", "7", "{}", '{"milestones": 7}', '{"milestones": null}', "[" * 100_000])
@pytest.mark.parametrize(("age", "live"), [(0.0, True), (EXPIRY + 1, False)])
def test_lease_that_cannot_be_read(store, root, raw, age, live):
    """It may name any milestone, and does not say whether it is complete; whether it lives its age tells."""
    store.journal("r", "run", {})
    store.journal("r", "complete", {})
    now = clock(Impatient(), store.url)
    path = root / "runs/r/lease.json"
    path.write_text(raw)
    os.utime(path, (now - age, now - age))
    found = leases(Impatient(), store.url, now)["r"]
    assert (found.live, found.complete, found.milestones) == (live, False, None)


def test_lease_behind_a_link(tmp_path, store, root):
    """A lease is not written through a symbolic link."""
    (tmp_path / "elsewhere").mkdir()
    (root / "runs/r").symlink_to(tmp_path / "elsewhere")
    with pytest.raises((StoreError, Damaged), match="symbolic link"):
        store.renew("r", [], ended=False)
    assert not list((tmp_path / "elsewhere").iterdir())


def test_newest_renewal(store, root, look):
    """Where nothing can be written, the latest time that the store is known to have passed stands for its clock."""
    assert newest_renewal(look()) == 0.0
    for run, times in (("a", (10, 20)), ("b", (15, 5))):
        store.journal(run, "run", {})
        store.renew(run, [], ended=False)
        for name, time in zip(("run.json", "lease.json"), times, strict=True):
            os.utime(root / "runs" / run / name, (time, time))
    assert newest_renewal(look()) == 20.0


# -- rows --------------------------------------------------------------------------------------------------------------


def test_rows_of_milestones(store, root, look):
    """A row says what a milestone is, how much of it is stored, and how its run stands."""
    declare(store, "m", replace(FRAME, keep=True, version=3), made=7.0)
    declare(store, "n", FRAME, "s", made=8.0)
    declare(store, "o", FRAME, "t", made=9.0)
    save(store, "m", "0", "1", "2")
    (root / "commit/m/2.0.json").write_text("{")
    for run, ended in (("s", True), ("t", False)):
        store.journal(run, "run", {})
        store.renew(run, [], ended=ended)
    store.journal("s", "complete", {})
    rows = milestone_rows(look(), clock(Impatient(), store.url))
    assert [(row["milestone"], row["run_state"], row["stored"]) for row in rows] == [
        ("m", "ended", 2),
        ("n", "complete", 0),
        ("o", "live", 0),
    ]
    size = sum(path.stat().st_size for path in root.glob("data/m/[01]-a0/0*"))
    assert rows[0] == {
        "name": "clean", "milestone": "m", "kind": "frame", "variable": None, "partitions": 3, "stored": 2,
        "unreadable": 1, "nbytes": size, "made": 7.0, "keep": True, "version": 3, "run": "r", "run_state": "ended",
        "reason": "",
    }  # fmt: skip


def test_rows_of_partitions(store, root, look):
    """Each stored partition is read whole and judged; what is missing has a row too."""
    declare(store, "m", replace(FRAME, npartitions=5))
    save(store, "m", "0", "1", "2", "3")
    chunk = next((root / "data/m/1-a0").glob("0*"))
    raw = bytearray(chunk.read_bytes())
    raw[3] ^= 1
    chunk.write_bytes(raw)
    (root / "data/m/2-a0/zarr.json").unlink()
    (root / "commit/m/3.0.json").write_bytes((root / "commit/m/0.0.json").read_bytes())
    rows = list(partition_rows(look(), look().milestones()))
    assert {row["receipt"]: row["ending"] for row in rows} == {
        "commit/m/0.0.json": "good",
        "commit/m/1.0.json": "damaged",
        "commit/m/2.0.json": "damaged",
        "commit/m/3.0.json": "foreign",
        "commit/m/4.*.json": "missing",
    }
    assert all(bool(row["reason"]) == (row["ending"] != "good") for row in rows)
    assert [row["nbytes"] > 0 for row in rows] == [True, False, False, False, False]


def test_unreachable_partition(store):
    """A partition that cannot be read now is not said to be damaged."""

    class Bad(Impatient):
        def lstat(self, path):
            if "/data/" in path:
                raise OSError(5, "Input/output error", path)
            return super().lstat(path)

    declare(store, "m", replace(FRAME, npartitions=1))
    save(store, "m", "0")
    archive = open_archive(store.url, Bad())
    (row,) = partition_rows(archive, archive.milestones())
    assert row["ending"] == "unreachable"
