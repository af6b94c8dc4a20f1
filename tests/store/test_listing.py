"""What lies in a store, as it is listed: milestones, what of them is missing, runs, and what fits no name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dask_resilient.core.manifest import Place
from dask_resilient.core.milestones import MAX_PARTITIONS, Description
from dask_resilient.errors import Damaged, StoreError
from dask_resilient.store import archive as archives
from dask_resilient.store import open_archive
from dask_resilient.store.leases import leases
from dask_resilient.store.listing import attempt_names, directories, is_draft, is_leftover, listing, milestone_ids
from dask_resilient.store.survey import milestone_rows, partition_rows
from tests.support.listings import FRAME, damage, declare, save
from tests.support.store_life import Impatient


@pytest.fixture
def root(store):
    """Give the directory of the store."""
    return Path(store.url)


@pytest.fixture
def look(store):
    """Give a function that opens the store for reading, as another process would."""
    return lambda: open_archive(store.url, Impatient())


def test_valid_generation(store):
    """The valid receipt of a partition is the highest generation without tombstone; one revoked throughout has none."""
    save(store, "m", "0", "1", "2")
    for index in "12":
        store.revoke(Place("m", index, 0, "a0"), "differs")
    save(store, "m", "1", generation=1)
    found = listing(Impatient(), store.url, "m")
    assert found.receipts == {"0": {0}, "1": {0, 1}, "2": {0}}
    assert found.tombstones == {"1": {0}, "2": {0}}
    assert found.valid() == {"0": 0, "1": 1}


def test_what_fits_no_name_is_left_out(store, root):
    """Other files that lie in a store are no part of it."""
    save(store, "m", "0")
    declare(store, "m")
    for path in ("commit/m/x.json", "commit/m/0.00.json", "commit/m/1.0.json.bak", "commit/m/.2.0.json.tmp"):
        (root / path).touch()
    for path in ("milestones/README", "milestones/.x.json", "milestones/A.json", "data/notes.txt", "runs/x.log"):
        (root / path).touch()
    for path in ("data/m/.nfs0001", "data/m/lost+found", "data/m/zero", "data/m/0-A"):
        (root / path).touch()
    (root / "data" / "link").symlink_to(root / "data" / "m")
    calls = Impatient()
    assert listing(calls, store.url, "m").valid() == {"0": 0}
    assert milestone_ids(calls, store.url) == ["m"]
    assert directories(calls, store.url, "data") == ["m"]
    assert directories(calls, store.url, "runs") == []
    assert attempt_names(calls, store.url, "m") == ["0-a0"]
    assert leases(calls, store.url, 0.0) == {}


@pytest.mark.parametrize(
    ("name", "draft", "leftover"),
    [
        (f".0.0.json.{'a' * 32}", True, True),
        (f".store.json.{'0' * 32}", True, True),
        (f"probe-{'0' * 32}", False, True),
        (f".probe-{'0' * 32}.{'1' * 32}", True, True),
        ("probe-results", False, False),
        (".snapshot", False, False),
        (".git", False, False),
        (".nfs000000000000a1", False, False),
        (f"x.{'a' * 32}", False, False),
        ("store.json", False, False),
    ],
)
def test_drafts_and_probes_have_names_of_their_own(name, draft, leftover):
    """Only what this package names so is taken for a leftover of it."""
    assert is_draft(name) is draft
    assert is_leftover(name) is leftover


def test_nothing_there(tmp_path, store, look):
    """An empty store has no milestones; a directory that is none, or is absent, is refused in one line."""
    assert look().milestones() == []
    assert listing(Impatient(), store.url, "m").valid() == {}
    with pytest.raises(StoreError, match="has no milestone 'm'"):
        look().milestone("m")
    for path in (tmp_path, tmp_path / "typo"):
        with pytest.raises(StoreError, match="is no store that this process can see"):
            open_archive(path)


@pytest.mark.parametrize("m", ["../m", "/m", "a..b", "", "A", "x" * 129, "m/../m", ".m"])
def test_odd_m_is_refused(look, m):
    """An m that is no file name is refused, and reads nothing."""
    with pytest.raises(StoreError, match="is no m of a milestone"):
        look().milestone(m)


def test_milestones_are_listed_by_age(store, look):
    """Milestones come oldest first."""
    for m, made in (("b", 3.0), ("a", 2.0), ("c", 1.0)):
        declare(store, m, made=made)
    archive = look()
    assert [each.milestone for each in archive.milestones()] == ["c", "a", "b"]
    assert archive.unreadable == {}


@pytest.mark.parametrize("how", ["empty", "cut", "other", "link", "directory", "pipe"])
def test_one_bad_description_hides_no_other(store, root, look, how):
    """A description that cannot be used is told, with the reason; the others are listed."""
    declare(store, "a")
    declare(store, "b")
    damage(root / "milestones" / "a.json", how)
    archive = look()
    assert [each.milestone for each in archive.milestones()] == ["b"]
    assert set(archive.unreadable) == {"a"}
    rows = milestone_rows(look(), 0.0)
    assert [(row["name"], row["milestone"], bool(row["reason"])) for row in rows] == [
        ("clean", "b", False),
        (None, "a", True),
    ]


def test_unreadable_disk_under_one_description(store, look):
    """An I/O error under one description is told with that one."""

    class Bad(Impatient):
        def open(self, path):
            if path.endswith("a.json"):
                raise OSError(5, "Input/output error", path)
            return super().open(path)

    declare(store, "a")
    declare(store, "b")
    archive = open_archive(store.url, Bad())
    assert [each.milestone for each in archive.milestones()] == ["b"]
    assert "Input/output" in archive.unreadable["a"]


def test_description_that_is_collected_meanwhile(store, root, look):
    """A milestone that goes between the list and the look is none."""

    class Slow(Impatient):
        def names(self, path):
            found = super().names(path)
            for file in root.glob("milestones/a.json"):
                file.unlink()
            return found

    declare(store, "a")
    declare(store, "b")
    archive = open_archive(store.url, Slow())
    assert [each.milestone for each in archive.milestones()] == ["b"]
    assert archive.unreadable == {}


def test_what_is_missing(store, look):
    """Partitions without a valid receipt are counted and named, in their order; a surplus receipt is none of them."""
    declare(store, "m", Description("x", "array", 6, numblocks=(2, 3)))
    save(store, "m", "0.0", "1.2", "0.1", "7.7", "0")
    store.revoke(Place("m", "0.1", 0, "a0"), "differs")
    archive = look()
    missing = archive.missing(archive.milestone("m"))
    assert (missing.count, missing.first) == (4, ("0.1", "0.2", "1.0", "1.1"))
    save(store, "m", "0.2", "1.0", "1.1")
    save(store, "m", "0.1", generation=1)
    archive = look()
    assert archive.missing(archive.milestone("m")) == archives.Missing(0, ())


def test_what_is_missing_of_an_unknown_collection(store, look):
    """Of a collection whose partitions nobody can number, they are counted only."""
    declare(store, "m", Description("x", "other", 2))
    save(store, "m", "x0123")
    archive = look()
    assert archive.missing(archive.milestone("m")) == archives.Missing(1, ())
    save(store, "m", "x4567")
    archive = look()
    assert archive.missing(archive.milestone("m")).count == 0


def test_missing_partitions_without_end(store, look, monkeypatch):
    """A description that names millions of partitions costs no memory: the first are named, the rest counted."""
    monkeypatch.setattr(archives, "NAMED", 3)
    declare(store, "m", replace(FRAME, npartitions=MAX_PARTITIONS))
    save(store, "m", "1")
    archive = look()
    (milestone,) = archive.milestones()
    assert archive.missing(milestone) == archives.Missing(MAX_PARTITIONS - 1, ("0", "2", "3"))
    rows = list(partition_rows(archive, [milestone]))
    assert [row["ending"] for row in rows] == ["good", *["missing"] * 4]
    assert rows[-1]["reason"] == f"{MAX_PARTITIONS - 4:,} more have no valid receipt"


VARIABLE = Description("ds", "array", 1, numblocks=(1,), variable="t", group=("g", 2))


def test_variables_of_one_object_stand_together(store, look):
    """Variables that share object and run make a group; the same object in another run is another one."""
    for m, variable, run, made in (("a", "t", "r1", 1), ("b", "u", "r1", 2), ("c", "t", "r2", 3), ("d", "u", "r2", 4)):
        declare(store, m, replace(VARIABLE, variable=variable), run, float(made))
    declare(store, "e", Description("ds", "frame", 1), "r1", 2.5)
    declare(store, "f", Description("other", "frame", 1), "r1")
    assert [[each.milestone for each in group] for group in look().groups("ds")] == [["a", "b"], ["e"], ["c", "d"]]


@pytest.mark.parametrize(("complete", "chosen"), [("", "c"), ("a", "a"), ("c", "c"), ("ac", "c")])
def test_variable_that_was_made_twice(store, look, complete, chosen):
    """Of a variable that one run made twice the newest complete one counts, without any the newest."""
    for m, variable, made in (("a", "t", 1.0), ("b", "u", 2.0), ("c", "t", 3.0)):
        declare(store, m, replace(VARIABLE, variable=variable), made=made)
    for m in complete:
        save(store, m, "0")
    (group,) = look().groups("ds")
    assert {each.description.variable: each.milestone for each in group} == {"t": chosen, "u": "b"}


def test_receipts_that_cannot_be_used(store, root, look):
    """A listing of receipts gives the error in the place of one that cannot be used."""
    save(store, "m", "0", "1", "2")
    (root / "commit/m/1.0.json").write_bytes((root / "commit/m/0.0.json").read_bytes())
    (root / "commit/m/2.0.json").write_text("{")
    found = dict(look().receipts("m"))
    assert found["commit/m/0.0.json"].place == Place("m", "0", 0, "a0")
    assert "holds the receipt 'commit/m/0.0.json'" in str(found["commit/m/1.0.json"])
    assert isinstance(found["commit/m/2.0.json"], Damaged)
