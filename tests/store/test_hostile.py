"""A store that a hostile hand has written: a clear error, nothing outside the root, no memory without end, no hang.

Whoever can write to a store can also seal what is in it, so every checksum here is right.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

import dask_resilient as dr
from dask_resilient import partitions
from dask_resilient.core.garbage import GRACE
from dask_resilient.core.milestones import Milestone
from dask_resilient.errors import Damaged, Foreign, LoadError, StoreError
from dask_resilient.store import open_archive, open_store, read_at
from dask_resilient.store.garbage import Collector
from tests.store.collecting import age
from tests.support.hostile import KIND, PLACE, collect, everything, receipt
from tests.support.store_life import FACTS, Impatient, stage


@pytest.fixture
def root(store):
    """Give the directory of a store with one milestone of one partition."""
    store.declare(Milestone("m", "r", 1.0, KIND))
    store.write(PLACE, partitions.stage(np.arange(8.0)), FACTS)
    return Path(store.url)


# -- names -------------------------------------------------------------------------------------------------------------

ODD_NAMES = [
    "..",
    "../x",
    "/etc/passwd",
    "a/b",
    "a/../b",
    "",
    ".",
    ".hidden",
    "A",
    "x" * 200,
    "a\0b",
    "a\nb",
    7,
    None,
    [],
]


@pytest.mark.parametrize("part", ["milestone", "index", "attempt"])
@pytest.mark.parametrize("name", ODD_NAMES, ids=repr)
def test_odd_names_in_a_receipt(root, part, name):
    """A receipt that names a path, or anything but a plain name, is foreign: nothing it names is looked at."""
    receipt(root, place={part: name})
    with pytest.raises((Foreign, Damaged)):
        read_at(str(root), open_archive(root).token, PLACE.receipt)
    everything(root)


@pytest.mark.parametrize("generation", [-1, "0", 1.5, None, 10**30, True], ids=repr)
def test_odd_generations_in_a_receipt(root, generation):
    """A generation that is none is refused; one that is not that of the file's name is foreign."""
    receipt(root, place={"generation": generation})
    with pytest.raises((Foreign, Damaged)):
        read_at(str(root), open_archive(root).token, PLACE.receipt)


@pytest.mark.parametrize(
    "path",
    [
        "../outside/commit/m/0.0.json",
        "commit/../../outside/commit/m/0.0.json",
        "commit/m/../../../outside/commit/m/0.0.json",
        "/etc/passwd",
        "commit//m/0.0.json",
        "./commit/m/0.0.json",
        "",
    ],
)
def test_odd_paths_in_a_ticket(root, tmp_path, path):
    """A path that leads out of the store is not followed, whatever lies there."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "commit").symlink_to(root / "commit")
    with pytest.raises(Foreign, match="is no path of a receipt"):
        read_at(str(root), open_archive(root).token, path)


@pytest.mark.parametrize("m", ["..", "../..", "a..b", "-x", "x" * 200, "UPPER", "sp ace"])
def test_odd_directories(root, m):
    """Directories that have no name of ours are left alone by collectors."""
    if m not in {"..", "../.."}:
        (root / "data" / m / "0-a").mkdir(parents=True)
    before = sorted(root.rglob("*"))
    age(str(root))
    one = Collector(open_archive(root, Impatient()), delete=True, idle=0.0)
    gone = [each.path for name in one.milestones() for each in one.collect(name, GRACE)]
    assert gone == ([f"data/{m}/0-a"] if m == "a..b" else [])
    assert {str(p) for p in before} - {str(p) for p in root.rglob("*")} <= {
        str(root / "data" / m),
        f"{root}/data/{m}/0-a",
    }


# -- links -------------------------------------------------------------------------------------------------------------

LEVELS = [
    "store.json",
    "data",
    "data/m",
    PLACE.data,
    f"{PLACE.data}/zarr.json",
    f"{PLACE.data}/0",
    "commit",
    "commit/m",
    PLACE.receipt,
    "milestones",
    "milestones/m.json",
]


@pytest.fixture
def moved(root, tmp_path):
    """Give a function that moves something out of the store and puts a symbolic link in its place."""

    def move(path):
        outside = tmp_path / "outside"
        (root / path).rename(outside)
        (root / path).symlink_to(outside)
        return outside

    return move


def state(path: Path) -> dict[str, tuple[int, int]]:
    """Give everything below a path, its time and size."""
    return {str(p): (p.lstat().st_mtime_ns, p.lstat().st_size) for p in (path, *path.rglob("*"))}


@pytest.mark.parametrize("path", LEVELS)
def test_links_are_not_read_through(root, moved, path):
    """A symbolic link at any level is refused, with what is wrong, though what it leads to is sound."""
    moved(path)
    with pytest.raises((LoadError, StoreError)) as caught:
        dr.open(root, m="m").compute(scheduler="sync")
    assert "\n" not in str(caught.value)
    everything(root)


@pytest.mark.parametrize("path", LEVELS)
def test_links_are_not_deleted_through(root, moved, path):
    """A collector, and the removal of the milestone, leave what a symbolic link leads to."""
    outside = moved(path)
    age(str(root))
    before = state(outside)
    try:
        collect(root, delete=True)
    except (Damaged, StoreError) as e:
        assert str(e)  # noqa: PT017 - both endings are right
    assert state(outside) == before


@pytest.mark.parametrize("path", ["data", "commit", "revoked", "milestones", "runs", "devices", "store.json"])
def test_links_are_not_written_through_kinds(root, moved, path):
    """A store of which a directory is a symbolic link is not opened for writing."""
    before = state(moved(path))
    with pytest.raises(StoreError, match=r"symbolic link|cannot be used|Too many levels"):
        open_store(root, create=True, calls=Impatient())
    assert state(root.parent / "outside") == before


@pytest.mark.parametrize("kind", ["data", "commit", "revoked", "runs"])
def test_links_are_not_written_through_milestones(store, tmp_path, kind):
    """A milestone's directory that is a symbolic link, put there before the first write, is not written through."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (Path(store.url) / kind / "m").symlink_to(outside)
    writes = {
        "revoked": lambda: store.revoke(PLACE, "differs"),
        "runs": lambda: store.journal("m", "run", {}),
    }
    with pytest.raises(StoreError, match="symbolic link"):
        writes.get(kind, lambda: store.write(PLACE, stage(1), FACTS))()
    assert not list(outside.iterdir())
    assert not list(Path(store.url).glob("commit/m/*.json"))


@pytest.mark.parametrize("dangling", [True, False])
def test_links_are_not_written_through_files(store, tmp_path, dangling):
    """Where a file is to be created a symbolic link counts as a name that is taken; a lease takes its place."""
    outside = tmp_path / "outside"
    if not dangling:
        outside.write_text("precious")
    root = Path(store.url)
    for directory in ("commit/m", "data/m", "runs/r"):
        (root / directory).mkdir()
    for path in (PLACE.receipt, "milestones/m.json", "runs/r/lease.json"):
        (root / path).symlink_to(outside)
    with pytest.raises(FileExistsError):
        store.write(PLACE, stage(1), FACTS)
    store.declare(Milestone("m", "r", 1.0, KIND))
    store.renew("r", [], ended=False)
    assert outside.exists() is not dangling
    assert dangling or outside.read_text() == "precious"
    assert not (root / "runs/r/lease.json").is_symlink()


# -- things that are no files ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [*LEVELS, "runs/r/lease.json"])
@pytest.mark.parametrize("thing", ["pipe", "socket", "directory", "device"])
def test_no_regular_file(root, path, thing):
    """A pipe, a socket, a directory or a device in the place of a file or directory: an error, and nobody waits."""
    target = root / path
    (root / "runs" / "r").mkdir()
    if target.is_dir():
        target.rename(root.parent / "away")
    else:
        target.unlink(missing_ok=True)
    if thing == "pipe":
        os.mkfifo(target)
    elif thing == "directory":
        target.mkdir()
    else:
        try:
            os.mknod(target, 0o666 | {"socket": 0o140000, "device": 0o020000}[thing], os.makedev(1, 5))
        except PermissionError:
            pytest.skip("only root makes devices")
    try:
        dr.open(root, m="m").compute(scheduler="sync")
    except (LoadError, StoreError, LookupError) as e:
        assert "\n" not in str(e)  # noqa: PT017
    else:
        assert path == "runs/r/lease.json"
    everything(root)
