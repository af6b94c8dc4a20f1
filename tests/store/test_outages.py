"""A disk that fails or is out of sight says nothing against what lies on it, which is good when it is back."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from dask_resilient.core.manifest import Place
from dask_resilient.errors import StoreError, Unreachable
from dask_resilient.store import read_at
from dask_resilient.testing.faults import FaultyCalls, fail
from tests.support.store_life import FACTS, stage
from tests.support.store_museum import VALID, endings, make


@pytest.fixture
def store(room):
    """Give such a store."""
    return make(room / "store")


def tree(root):
    """Give everything that lies in a store."""
    return {path.relative_to(root): path.read_bytes() if path.is_file() else None for path in sorted(root.rglob("*"))}


@pytest.mark.parametrize("code", [5, 13, 116, 110, 103, 107, 112, 23, 24, 12], ids=os.strerror)
def test_failing_disk_says_nothing_against_a_copy(store, code):
    """A disk that answers every call with an error is unreachable, changed by nobody, and good when it is back."""
    before = tree(Path(store.url))
    calls = FaultyCalls()
    failing = type(store)(store.url, store.token, store.survives, calls.as_calls())
    for at in range(12):
        for place in VALID:
            calls.arm(at, fail(code), lasting=True)
            with pytest.raises(Unreachable) as caught:
                failing.read(place, "k")
            assert caught.value.errno == code
    assert tree(Path(store.url)) == before
    calls.arm(0, fail(code), lasting=True)
    assert failing.reachable()
    calls.arm(10**9, fail(code))
    assert not failing.reachable()
    assert set(endings(failing).values()) == {"good", "Damaged"}


OUTAGES = {
    "moved away": lambda root: root.rename(root.with_name("away")),
    "an empty directory": lambda root: (root.rename(root.with_name("away")), root.mkdir()),
    "another store": lambda root: (root.rename(root.with_name("away")), make(root)),
    "a file": lambda root: (root.rename(root.with_name("away")), root.write_text("")),
    "a link to nothing": lambda root: (root.rename(root.with_name("away")), root.symlink_to("nothing")),
}


@pytest.mark.parametrize("outage", OUTAGES)
def test_outage_says_nothing_against_a_copy(store, outage):
    """A root that is out of sight is unreachable whatever lies there instead, and good when it is back."""
    root, away = Path(store.url), Path(store.url).with_name("away")
    before = tree(root)
    OUTAGES[outage](root)
    if outage == "another store":  # whose copies are of another disk, and may be gone from it
        shutil.rmtree(root / "data")
        (root / "data").mkdir()
    for place in VALID:
        with pytest.raises(Unreachable):
            store.read(place, "k")
        with pytest.raises(Unreachable):
            read_at(store.url, store.token, place.receipt)
    assert store.reachable()
    assert tree(away) == before
    shutil.rmtree(root) if root.is_dir() and not root.is_symlink() else root.unlink(missing_ok=True)
    away.rename(root)
    assert not store.reachable()
    assert [endings(store)[place] for place in VALID] == ["good"] * 3


def mounted(source, point):
    """Mount a directory on another one, or say why that cannot be done here."""
    try:
        done = subprocess.run(["mount", "--bind", source, point], capture_output=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no mount command here")
    if done.returncode:
        pytest.skip(f"nothing can be mounted here: {done.stderr.decode().strip()}")


def test_real_unmount_says_nothing_against_a_copy(room):
    """Unmounted under way, a disk is unreachable, nothing is written beneath it, and mounted again all is good."""
    source, point = room / "source", room / "point"
    source.mkdir()
    point.mkdir()
    mounted(source, point)
    try:
        store = make(point / "store")
    finally:
        subprocess.run(["umount", "-l", point], check=True)
    for place in VALID:
        with pytest.raises(Unreachable):
            store.read(place, "k")
    with pytest.raises(StoreError):
        store.write(Place("m", "2", 0, "a"), stage(1), FACTS)
    with pytest.raises(StoreError):
        store.revoke(VALID[0], "absent")
    assert list(point.iterdir()) == []
    mounted(source, point)
    try:
        assert [endings(store)[place] for place in VALID] == ["good"] * 3
    finally:
        subprocess.run(["umount", "-l", point], check=True)
