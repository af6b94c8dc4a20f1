"""What an address means, whose store lies there, and what every refusal says."""

from __future__ import annotations

import errno
import json
import os
import re
from pathlib import Path

import pytest

from dask_resilient.errors import SettingError, StoreError
from dask_resilient.store import Calls, open_store, opening, resolve


@pytest.mark.parametrize(
    ("url", "path"),
    [
        (None, "{here}/dask-resilient-store"),
        ("a/b", "{here}/a/b"),
        ("/x/../y/", "/y"),
        ("~/runs", "{home}/runs"),
        (Path("a"), "{here}/a"),
        ("file:///x/y%20z", "/x/y z"),
        ("FILE://localhost/x#1?2", "/x#1?2"),
        ("odd:name", "{here}/odd:name"),
    ],
)
def test_addresses(url, path, tmp_path, monkeypatch):
    """An address becomes an absolute path, by the directory of this process, and then stays as it is."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/me")
    expected = path.format(here=tmp_path, home="/home/me")
    assert resolve(url) == expected
    assert resolve(expected) == expected


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("s3://bucket/run", "s3 is not supported yet"),
        ("gs://bucket", "gs is not supported yet"),
        ("", "give a path"),
        ("  ", "give a path"),
        ("/a\0b", "give a path"),
        ("file:///a%00b", "give a path"),
        ("file://host/x", "no other host"),
        ("file://", "absolute path"),
        (7, "give a path"),
    ],
)
def test_no_address(url, says):
    """What is no address of a directory is refused with what to do instead."""
    with pytest.raises(SettingError, match=says):
        resolve(url)


def test_scheduler_makes_the_store(tmp_path):
    """The scheduler makes root and parents, once; later schedulers find the same store."""
    store = open_store(tmp_path / "a" / "b", create=True)
    assert json.loads((tmp_path / "a/b/store.json").read_text())["token"] == store.token
    assert {p.name for p in (tmp_path / "a/b").iterdir()} == {"store.json", *opening.KINDS}
    assert open_store(tmp_path / "a/b", create=True).token == store.token
    assert open_store(tmp_path / "a/b", create=False).token == store.token
    assert store.url == str(tmp_path / "a/b")
    assert repr(store.url) in repr(store)


def test_two_stores_have_two_tokens(tmp_path):
    """A worker that reads another token is told that it sees another disk."""
    one, two = (open_store(tmp_path / name, create=True) for name in "ab")
    with pytest.raises(StoreError, match=f"reads token '{two.token}', the scheduler reads '{one.token}': another disk"):
        open_store(two.url, create=False, token=one.token)


@pytest.mark.parametrize("make", [lambda path: None, Path.mkdir])
def test_worker_does_not_see_the_store(tmp_path, make):
    """A worker without the store, or without its mount, is told so and makes nothing."""
    make(tmp_path / "store")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(StoreError, match="is no store that this process can see") as caught:
        open_store(tmp_path / "store", create=False, token="x")
    assert caught.value.errno == errno.ENOENT
    assert sorted(tmp_path.rglob("*")) == before


def test_directory_of_others_is_refused(tmp_path):
    """A directory with somebody's files is not turned into a store."""
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(StoreError, match=r"not empty \(it has 'thesis.tex'\); choose an empty or a new directory"):
        open_store(tmp_path, create=True)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]


def test_top_of_a_fresh_disk_is_taken(tmp_path):
    """What stands in any fresh file system, or is left of a scheduler that died just here, is no obstacle."""
    (tmp_path / "lost+found").mkdir()
    (tmp_path / ".store.json.0123").touch()
    assert open_store(tmp_path, create=True).token


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        ("", "cannot be read"),
        ("{", "cannot be read"),
        ("[]", "cannot be read"),
        ("{}", "cannot be read"),
        ("[" * 100_000, "cannot be read"),
        ('{"format": 2, "token": "x"}', "has format 2"),
        ('{"format": 1, "token": 7}', "has format 1"),
    ],
)
@pytest.mark.parametrize("create", [True, False])
def test_unknown_store_is_refused(tmp_path, raw, says, create):
    """A store of another version, or what only looks like one, is refused and left alone."""
    (tmp_path / "store.json").write_text(raw)
    with pytest.raises(StoreError, match=says):
        open_store(tmp_path, create=create)
    assert [p.name for p in tmp_path.iterdir()] == ["store.json"]


@pytest.mark.parametrize("create", [True, False])
@pytest.mark.parametrize("where", ["file", "file/below", "/proc/dask-resilient", "/dev/null", "x" * 300])
def test_impossible_places(tmp_path, where, create):
    """Where no directory can be, one clear line says so."""
    (tmp_path / "file").touch()
    with pytest.raises(StoreError) as caught:
        open_store(tmp_path / where, create=create)
    assert caught.value.errno
    assert "\n" not in str(caught.value)
    assert repr(str(tmp_path / where)) in str(caught.value)


def test_read_only_is_refused(tmp_path):
    """A worker that can read the store and not write it is told so."""

    class ReadOnly(Calls):
        def create(self, path):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)

    open_store(tmp_path, create=True)
    with pytest.raises(StoreError, match="can be written") as caught:
        open_store(tmp_path, create=False, calls=ReadOnly())
    assert caught.value.errno == errno.EROFS


@pytest.mark.parametrize(
    ("link", "says"),
    [(os.replace, "twice"), (lambda *_: (_ for _ in ()).throw(PermissionError(errno.EPERM, "no links")), "no links")],
)
def test_file_system_without_links(tmp_path, link, says):
    """A file system that overwrites instead of refusing, or has no links, is no store; nothing is left of the trial."""

    class Odd(Calls):
        def link(self, source, target):
            link(source, target)

    open_store(tmp_path, create=True)
    with pytest.raises(StoreError, match=says):
        open_store(tmp_path, create=False, calls=Odd())
    assert {p.name for p in tmp_path.iterdir()} == {"store.json", *opening.KINDS}


def test_describe_says_what_it_survives(tmp_path, monkeypatch):
    """A local path is not said to survive its machine; a shared file system is."""
    store = open_store(tmp_path, create=True)
    assert re.fullmatch(
        r"local path \(\w+\); create-if-absent works; survives the loss of a worker, not of this machine",
        store.describe(),
    )
    monkeypatch.setattr(opening, "_file_system", lambda root: "lustre")
    shared = open_store(tmp_path, create=False)
    assert "shared file system (lustre)" in shared.describe()
    assert "and of this machine" in shared.survives


MOUNTS = r"""/dev/vda / ext4 rw 0 0
server:/a /data nfs4 rw 0 0
tmpfs /data/local tmpfs rw 0 0
nas /with\040space fuse.sshfs rw 0 0
over /data/local lustre rw 0 0
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/x", "ext4"),
        ("/data", "nfs4"),
        ("/data2/x", "ext4"),
        ("/data/local/y", "lustre"),
        ("/with space/x", "fuse.sshfs"),
    ],
)
def test_file_system_of_a_path(path, kind, monkeypatch):
    """The longest mount point above a path counts, and the latest where several share it."""
    monkeypatch.setattr(Path, "read_text", lambda *_: MOUNTS)
    assert opening._file_system(path) == kind
