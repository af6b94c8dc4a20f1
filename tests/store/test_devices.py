"""Entries about devices on a real file system: appended whole, read back whatever else lies there, left alone."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from dask_resilient.cli import resilience
from dask_resilient.core.manifest import seal
from dask_resilient.core.remembered import MOST_BYTES, MOST_N, QUARANTINED, RELEASED, TRIED, folder_of, state
from dask_resilient.errors import Damaged, StoreError
from dask_resilient.store import devices
from dask_resilient.store.devices import append, read_all
from dask_resilient.testing.faults import FaultyCalls
from tests.store.collecting import age, collect, finish, make
from tests.support.hostile import everything
from tests.support.remembered import CALLS, GPU, MIG, entry, numbers, put, where
from tests.support.store_changes import CHANGES
from tests.support.store_life import Impatient

# -- appending and reading ---------------------------------------------------------------------------------------------


def test_what_is_appended_is_read(tmp_path):
    """Entries of several devices come back as they were, in their order; the directory is made where it is missing."""
    root = tmp_path / "a" / "b"
    assert put(root, TRIED, TRIED) == [0, 1]
    assert put(root, QUARANTINED, device=MIG) == [0]
    found, reasons = read_all(CALLS, str(root))
    assert reasons == []
    assert found[GPU] == [entry(TRIED) | {"n": 0}, entry(TRIED) | {"n": 1}]
    assert found[MIG] == [entry(device=MIG) | {"n": 0}]
    assert state(found[MIG]).out
    assert sorted(path.name for path in (root / "devices").iterdir()) == sorted([GPU, folder_of(MIG)])
    assert not [path for path in root.rglob("*") if path.name.startswith(".")]


def test_nothing_was_ever_written(tmp_path):
    """Where there is nothing yet, nothing is remembered, and reading makes nothing."""
    assert read_all(CALLS, str(tmp_path / "none")) == ({}, [])
    assert not (tmp_path / "none").exists()


def test_nothing_older_than_what_decides_is_read(tmp_path):
    """However long a history is, a start reads what settles how the device stands."""
    assert put(tmp_path, QUARANTINED, RELEASED, QUARANTINED, TRIED, TRIED) == [0, 1, 2, 3, 4]
    assert numbers(tmp_path) == [2, 3, 4]


def test_only_the_newest_entries_are_looked_at(tmp_path):
    """At most a hundred of one device; numbers need not follow one another."""
    put(tmp_path, TRIED)
    for n in range(7, 3007, 10):
        where(tmp_path, n).write_bytes(seal(entry(TRIED) | {"n": n}))
    assert numbers(tmp_path) == list(range(2007, 3007, 10))
    assert put(tmp_path, TRIED) == [2998]


def test_a_gpu_that_is_no_gpu_is_refused(tmp_path):
    """The devices of CPU workers are names, which say nothing in another run."""
    with pytest.raises(StoreError, match="no GPU"):
        append(CALLS, str(tmp_path), "host:node7/0", entry(device="host:node7/0"), make=True)
    with pytest.raises(StoreError, match="about 'GPU-1'"):
        append(CALLS, str(tmp_path), GPU, entry(device="GPU-1"), make=True)
    assert read_all(CALLS, str(tmp_path)) == ({}, [])


@pytest.mark.parametrize("change", [{"host": ""}, {"evidence": []}, {"failed": -1}, {"until_released": None}])
def test_what_would_be_ignored_is_not_written(tmp_path, change):
    """An entry that could not count is an error when it is written, not in the next run."""
    with pytest.raises(StoreError, match="is not written"):
        append(CALLS, str(tmp_path), GPU, entry() | change, make=True)
    assert not where(tmp_path).exists()


def test_a_store_that_was_removed_stays_removed(store):
    """The root of a store is never made by an entry."""
    shutil.rmtree(store.url)
    with pytest.raises(FileNotFoundError):
        append(CALLS, store.url, GPU, entry())
    assert not Path(store.url).exists()


def test_many_devices(tmp_path, monkeypatch):
    """Beyond some number of devices the rest is left out, and so is what takes too long; both are told."""
    for n in range(5):
        put(tmp_path, QUARANTINED, device=f"GPU-{n}")
    monkeypatch.setattr(devices, "MOST_DEVICES", 3)
    found, reasons = read_all(CALLS, str(tmp_path))
    assert len(found) == 3
    assert reasons == ["2 of 5 devices were left out, as there are too many or it takes too long"]
    found, reasons = read_all(CALLS, str(tmp_path), seconds=-1.0)
    assert found == {}
    assert reasons == ["5 of 5 devices were left out, as there are too many or it takes too long"]


# -- what else may lie there -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("change", [name for name in CHANGES if name != "lost"])
def test_a_changed_entry_is_ignored(tmp_path, change):
    """Whatever has become of a file, it is told, and the entries before it count."""
    put(tmp_path, QUARANTINED, RELEASED)
    CHANGES[change](where(tmp_path, 1))
    found, reasons = read_all(CALLS, str(tmp_path))
    assert state(found[GPU]).out
    assert len(reasons) == 1
    assert "1.json' is ignored: " in reasons[0]
    assert put(tmp_path, RELEASED) == [2]
    assert not state(read_all(CALLS, str(tmp_path))[0][GPU]).out


def test_a_lost_entry(tmp_path):
    """A number that is gone is no reason to stop."""
    put(tmp_path, TRIED, TRIED, TRIED)
    where(tmp_path, 1).unlink()
    assert numbers(tmp_path) == [0, 2]


def test_an_entry_that_is_taken_back_meanwhile(tmp_path):
    """One that is gone between the listing and the look was never promised, so there is nothing to tell."""

    class Behind(Impatient):
        def names(self, path):
            return [*super().names(path), "5.json"] if GPU in path else super().names(path)

    put(tmp_path, QUARANTINED)
    found, reasons = read_all(Behind(), str(tmp_path))
    assert [each["n"] for each in found[GPU]] == [0]
    assert reasons == []


def test_no_byte_of_a_huge_file_is_read(tmp_path):
    """Its size is enough to ignore it."""
    put(tmp_path, QUARANTINED)
    os.truncate(where(tmp_path), 10 << 20)
    calls = FaultyCalls(Impatient())
    assert read_all(calls.as_calls(), str(tmp_path))[0] == {}
    assert "read" not in {name for name, _ in calls.log}


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\x80\xff" * 2000,
        b"[" * (MOST_BYTES - 1),
        b'{"a":' * 20_000,
        b" " * (MOST_BYTES + 1),
        b" " * (20 << 20),
        b'{"n": ' + b"9" * 5000 + b"}",
        seal(entry() | {"n": 7, "format": 2}),
        seal(entry() | {"n": 7, "host": ""}),
        seal(entry() | {"n": 8}),
        seal(entry(device="GPU-1") | {"n": 7}),
        seal(entry(device="host:node7/0") | {"n": 7}),
    ],
    ids=range(12),
)
def test_strange_entries_are_ignored(tmp_path, raw):
    """Torn, huge, deep, foreign, of another format or without what makes one count: a sentence each, nothing more."""
    put(tmp_path, QUARANTINED)
    where(tmp_path, 7).write_bytes(raw)
    found, reasons = read_all(CALLS, str(tmp_path))
    assert [each["n"] for each in found[GPU]] == [0]
    assert len(reasons) == 1
    assert len(reasons[0]) < 500
    assert put(tmp_path, QUARANTINED) == [8]


def test_a_folder_under_another_name_is_ignored(tmp_path):
    """What was copied or moved from one device to another takes nobody out of service."""
    put(tmp_path, QUARANTINED)
    where(tmp_path).parent.rename(tmp_path / "devices" / folder_of(MIG))
    found, reasons = read_all(CALLS, str(tmp_path))
    assert found == {}
    assert len(reasons) == 1


def test_names_of_other_people(tmp_path):
    """Drafts and notes are left alone, folders that are none and numbers that nobody counts to are told."""
    put(tmp_path, QUARANTINED)
    folder = where(tmp_path).parent
    for name in (".1.json." + "0" * 32, "README", "01.json", "-1.json", "1.json.bak", "x.json"):
        (folder / name).write_text("x")
    (tmp_path / "devices" / ".DS_Store").write_text("x")
    assert numbers(tmp_path) == [0]
    (folder / f"{MOST_N + 1}.json").write_text("x")
    (folder / f"{'9' * 200}.json").write_text("x")
    (tmp_path / "devices" / "note").write_text("x")
    (tmp_path / "devices" / "link").symlink_to(folder)
    (tmp_path / "devices" / os.fsdecode(b"\xff")).mkdir()
    found, reasons = read_all(CALLS, str(tmp_path))
    assert list(found) == [GPU]
    assert len(reasons) == 3
    assert put(tmp_path, QUARANTINED) == [1]


def test_no_number_is_left(tmp_path):
    """A file with the last number ends the list, in one sentence, and not by going round."""
    put(tmp_path, QUARANTINED)
    where(tmp_path, MOST_N).write_text("x")
    with pytest.raises(StoreError, match="is not written"):
        put(tmp_path, RELEASED)
    assert read_all(CALLS, str(tmp_path))[0][GPU]


OUTAGES = {
    "a file": lambda root: root.write_text(""),
    "a link to nothing below": lambda root: (root.mkdir(), (root / "devices").symlink_to("nothing")),
    "a link elsewhere below": lambda root: (root.mkdir(), (root / "devices").symlink_to(root.parent)),
    "a file below": lambda root: (root.mkdir(), (root / "devices").write_text("")),
}


@pytest.mark.parametrize("outage", OUTAGES)
def test_a_root_that_cannot_be_used(tmp_path, outage):
    """What is no directory of directories is an error, and is left as it is."""
    OUTAGES[outage](tmp_path / "root")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises((Damaged, OSError)):
        read_all(CALLS, str(tmp_path / "root"))
    with pytest.raises((Damaged, OSError)):
        put(tmp_path / "root", QUARANTINED)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("change", ["a link out of the store", "a file", "a pipe"])
def test_a_folder_that_cannot_be_used(tmp_path, change):
    """What has the name of a device's folder and is none is told, and nothing is written through it."""
    put(tmp_path, QUARANTINED, device=MIG)
    folder = where(tmp_path).parent
    made = {"a file": folder.touch, "a pipe": lambda: os.mkfifo(folder)}
    made.get(change, lambda: folder.symlink_to(where(tmp_path, device=MIG).parent))()
    before = sorted(tmp_path.rglob("*"))
    found, reasons = read_all(CALLS, str(tmp_path))
    assert list(found) == [MIG]
    assert len(reasons) == 1
    with pytest.raises(Damaged, match="no directory"):
        put(tmp_path, QUARANTINED)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.fixture
def become_nobody():
    """Give a function that gives up the rights of root, for whom no directory is closed."""
    before = os.geteuid()
    yield lambda: None if before else os.seteuid(65534)
    os.seteuid(before)


def test_closed_directories(room, become_nobody):
    """A read-only list is read and not written; where one folder is closed, the others are still read."""
    root = room / "root"
    put(root, QUARANTINED)
    put(root, QUARANTINED, device=MIG)
    where(root).parent.chmod(0)
    (root / "devices").chmod(0o555)
    room.chmod(0o755)
    become_nobody()
    found, reasons = read_all(CALLS, str(root))
    assert list(found) == [MIG]
    assert len(reasons) == 1
    assert "Permission denied" in reasons[0]
    with pytest.raises(PermissionError):
        put(root, QUARANTINED, device="GPU-1")


# -- the rest of the store ---------------------------------------------------------------------------------------------


def test_tools_leave_devices_alone(store):
    """Collecting garbage, listing, verifying and opening a store change nothing that is remembered, however old."""
    root = Path(store.url)
    for event in (QUARANTINED, TRIED):
        append(CALLS, store.url, GPU, entry(event))
    append(CALLS, store.url, MIG, entry(device=MIG))
    make(store.url, "m", "run")
    finish(store.url, "run")
    where(root, 9).write_text("torn")
    age(store.url)
    before = {path: path.lstat().st_mtime_ns for path in (root / "devices").rglob("*")}
    assert len(before) == 6
    for command in ("ls", "verify", "gc"):
        result = CliRunner().invoke(resilience, [command, store.url, "--json"])
        assert result.exit_code == 0, result.output
        assert "devices" not in result.output
    assert collect(store.url, 0.0)
    everything(root)
    CliRunner().invoke(resilience, ["gc", store.url, "--delete", "--grace", "0"])
    assert {path: path.lstat().st_mtime_ns for path in (root / "devices").rglob("*")} == before
    assert not list(root.glob("commit/*"))
    assert set(read_all(CALLS, store.url)[0]) == {GPU, MIG}
