"""Collecting garbage on a real store: what goes, what stays, races, stops, and the clock that counts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dask_resilient.core.garbage import EXPIRY, GRACE, Why
from dask_resilient.core.manifest import Place
from dask_resilient.errors import Damaged, StoreError
from dask_resilient.store.leases import clock
from tests.store.collecting import age, collect, finish, make
from tests.support.garbage import EMPTY, collector, declare, endings, files, write
from tests.support.listings import damage
from tests.support.store_life import Impatient


@pytest.fixture
def root(store):
    """Give the directory of the store."""
    return Path(store.url)


# -- what goes and what stays -----------------------------------------------------------------------------------------


def test_complete_milestone_goes_whole(store, root):
    """A milestone whose run was marked complete goes, with everything that lies under its m, directories too."""
    make(store.url, "m", "run")
    finish(store.url, "run")
    assert not collect(store.url)
    age(store.url)
    gone = collect(store.url)
    assert gone[-1] == "milestones/m.json"
    assert files(root) == EMPTY
    assert not collect(store.url)


@pytest.mark.parametrize("keep", [True, False])
def test_failed_run_and_keep(store, root, keep):
    """A milestone of a run that was not marked complete stays, and so does one that is to be kept."""
    declare(store, "m", keep=keep)
    write(store, "m", "0")
    finish(store.url, "run", complete=keep)
    before = files(root)
    age(store.url)
    assert not collect(store.url)
    assert files(root) == before


def test_only_leftovers_of_a_failed_run_go(store, root):
    """Of a milestone that stays, revoked copies, abandoned attempts and drafts go; what is good stays good."""
    make(store.url, "m", "run")
    finish(store.url, "run", complete=False)
    age(store.url)
    gone = collect(store.url)
    assert sorted(gone) == ["commit/m/." + f"1.0.json.{'0' * 32}", "commit/m/0.0.json", "data/m/1-lost"]
    assert not (root / "data/m/0-a").exists()
    assert (root / "revoked/m/0.0.json").exists()
    assert endings(store) == {"good"}
    assert len(list(root.glob("commit/m/*.json"))) == 20
    with pytest.raises(FileExistsError):
        write(store, "m", "0", generation=1, attempt="c")


@pytest.mark.parametrize(
    ("lease_age", "ended", "goes"),
    [(0, False, False), (EXPIRY - 5, False, False), (EXPIRY + 5, False, True), (0, True, True)],
)
def test_copies_for_a_run_only(store, root, lease_age, ended, goes):
    """They go when the lease of their run has expired, or says that it has ended."""
    write(store, "m", "0", temporary=True)
    age(store.url)
    store.journal("run", "run", {})
    store.renew("run", [], ended=ended)
    then = clock(Impatient(), store.url) - lease_age
    os.utime(root / "runs/run/lease.json", (then, then))
    assert bool(collect(store.url)) is goes
    assert (root / "data/m").exists() is not goes


def test_leased_milestone_survives(store, root):
    """What the lease of a live run names stays whole, leftovers included, whoever has made it."""
    make(store.url, "m", "run")
    finish(store.url, "run")
    before = files(root)
    age(store.url)
    store.journal("later", "run", {})
    store.renew("later", ["m"], ended=False)
    assert not collect(store.url, 0.0)
    assert files(root) == before
    store.renew("later", ["m"], ended=True)
    assert not [path for path in collect(store.url, 0.0) if path == "milestones/m.json"]
    store.journal("later", "complete", {})
    collect(store.url, 0.0)
    assert files(root) == EMPTY


def test_lease_that_cannot_be_read_protects_everything(store, root):
    """A live run that does not say what it uses may use anything."""
    make(store.url, "m", "run")
    finish(store.url, "run")
    age(store.url)
    store.journal("later", "run", {})
    (root / "runs/later/lease.json").write_text("{")
    assert not collect(store.url)


@pytest.mark.parametrize("how", ["empty", "cut", "other", "link", "directory", "pipe"])
def test_damaged_description_never_deletes_the_milestone(store, root, how):
    """Whatever is wrong with a description, the good partitions of the milestone stay."""
    make(store.url, "m", "run")
    finish(store.url, "run")
    damage(root / "milestones/m.json", how)
    age(store.url)
    collect(store.url)
    assert len(list(root.glob("commit/m/*.json"))) == 20
    assert all(store.read(Place("m", f"{i}", 0, "a"), "k") for i in range(1, 20))


@pytest.mark.parametrize("how", ["empty", "cut", "other", "link", "directory", "pipe"])
def test_unreadable_receipt_keeps_the_attempts_of_its_index(store, root, how):
    """Which attempt a receipt names that cannot be read, nobody knows: all of its index stay."""
    for index in ("1", "10"):
        write(store, "m", index)
        (root / f"data/m/{index}-lost").mkdir()
    path = root / "commit/m/1.0.json"
    path.write_bytes(path.read_bytes().replace(b"run", b"clean"))
    damage(path, how)
    age(store.url)
    assert collect(store.url) == ["data/m/10-lost"]


def test_unreadable_disk_keeps(store, root):
    """A receipt that cannot be read for the moment is no missing receipt."""

    class Bad(Impatient):
        def open(self, path):
            if "/commit/" in path:
                raise OSError(5, "Input/output error", path)
            return super().open(path)

    make(store.url, "m", "run")
    age(store.url)
    found = [each.path for each in collector(store, calls=Bad()).collect("m", GRACE)]
    assert all(path.startswith("commit/m/") for path in found), "no attempt goes"
    assert len(list(root.glob("data/m/*"))) == 22


def test_drafts_and_probes_go_and_nothing_else(store, root):
    """In the root and beside the journals only what has the name of a draft or a probe goes."""
    store.journal("run", "run", {})
    tail = "0123456789abcdef" * 2
    ours = {f"probe-{tail}", f".store.json.{tail}", f"milestones/.m.json.{tail}", f"runs/run/.lease.json.{tail}"}
    theirs = {".git", ".nfs00001", "notes", "probe-results", "milestones/.DS_Store", "runs/run/.x", "runs/notes.txt"}
    directory = f"probe-{tail[::-1]}"
    for path in ours | theirs:
        (root / path).touch()
    (root / directory).mkdir()
    assert not collect(store.url)
    age(store.url)
    assert set(collect(store.url)) == ours
    assert all((root / path).exists() for path in theirs | {directory})


def test_strange_files_among_attempts_stay(store, root):
    """What no name of the layout fits is left alone, also under a milestone that goes."""
    make(store.url, "m", "run")
    finish(store.url, "run")
    for path in ("data/m/README", "data/m/.nfs0001", "commit/m/notes.json", "revoked/m/old"):
        (root / path).touch()
    age(store.url)
    collect(store.url)
    strange = {"data/m", "data/m/README", "data/m/.nfs0001", "commit/m", "commit/m/notes.json"}
    assert files(root) == EMPTY | strange | {"revoked/m", "revoked/m/old"}


def test_remove(store, root):
    """A milestone is removed whatever its age, and refused while a live run uses it or its maker lives."""
    for run, named in (("run", []), ("user", ["m"])):
        store.journal(run, "run", {})
        store.renew(run, named, ended=False)
    make(store.url, "m", "run")
    for run in ("user", "run"):
        with pytest.raises(StoreError, match=r"is in use by run '(run|user)', which lives"):
            list(collector(store).remove("m"))
        store.renew(run, [], ended=True)
    found = list(collector(store, delete=False).remove("m"))
    assert files(root) > EMPTY
    assert list(collector(store).remove("m")) == found
    assert {each.why for each in found} == {Why.REMOVED}
    assert files(root) == EMPTY
    assert not list(collector(store).remove("m"))


# -- links -------------------------------------------------------------------------------------------------------------


def outside(tmp_path, store, m="m"):
    """Give a directory beside the store that looks like attempts of it."""
    path = tmp_path / "outside"
    for name in ("0-a", "0-lost"):
        (path / name).mkdir(parents=True)
        (path / name / "zarr.json").touch()
    return path


def test_linked_attempt_is_never_followed(store, root, tmp_path):
    """An attempt that is a symbolic link goes as a link: what it leads to stays."""
    out = outside(tmp_path, store)
    declare(store, "m")
    finish(store.url, "run")
    write(store, "m", "0", attempt="x")
    for attempt in ("0-lost", "0-a"):
        (root / "data/m" / attempt).symlink_to(out / attempt)
    before = sorted(tmp_path.glob("outside/**/*"))
    age(store.url)
    collect(store.url)
    assert files(root) == EMPTY
    assert sorted(tmp_path.glob("outside/**/*")) == before


def test_link_inside_an_attempt_is_never_followed(store, root, tmp_path):
    """What lies in an attempt goes by its name; a directory below it that nobody made stays."""
    out = outside(tmp_path, store)
    (root / "data/m").mkdir()
    (root / "data/m/0-a").mkdir()
    (root / "data/m/0-a/c").symlink_to(out)
    (root / "data/m/1-a/deep/er").mkdir(parents=True)
    before = sorted(tmp_path.glob("outside/**/*"))
    age(store.url)
    collect(store.url)
    assert sorted(tmp_path.glob("outside/**/*")) == before
    assert files(root) == EMPTY | {"data/m", "data/m/1-a", "data/m/1-a/deep", "data/m/1-a/deep/er"}


@pytest.mark.parametrize("kind", ["data", "commit", "revoked", "milestones", "runs"])
@pytest.mark.parametrize("level", ["kind", "m"])
def test_linked_directories_are_never_followed(store, root, tmp_path, kind, level):
    """A directory of the store that is a symbolic link is refused, or left alone; nothing behind it goes."""
    make(store.url, "m", "run")
    finish(store.url, "run")
    age(store.url)
    path = root / kind if level == "kind" else root / kind / ("run" if kind == "runs" else "m")
    if not path.exists():
        path = path.with_suffix(".json")
    out = tmp_path / "outside"
    path.rename(out)
    path.symlink_to(out)
    before = {str(p): p.lstat().st_mtime for p in (out, *out.rglob("*"))}
    try:
        collect(store.url)
    except Damaged as e:
        assert "symbolic link" in str(e)  # noqa: PT017 - both endings are right
    assert {str(p): p.lstat().st_mtime for p in (out, *out.rglob("*"))} == before
