"""The power fails, on a real file system: what a disk holds at some moment is mounted anew, without what memory held.

The disk is a file behind a loop device. A copy of that file, taken while the file system is mounted, is what the disk
would have after a power cut at that moment; mounting it lets the file system repair itself as after a real one.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from dask_resilient.core.manifest import Place
from dask_resilient.errors import ResilienceError
from dask_resilient.store import Calls, open_store
from tests.support.store_life import FACTS, Impatient, content, stage

logger = logging.getLogger(__name__)

pytestmark = pytest.mark.slow

SIZE = 16 << 20


@pytest.fixture
def disk(room):
    """Give a file that holds an empty ext4 file system, or say why there can be none."""
    if shutil.which("mkfs.ext4") is None or shutil.which("mount") is None:
        pytest.skip("nothing can be mounted here: mkfs.ext4 or mount is not installed")
    image = room / "disk"
    with image.open("wb") as f:
        f.truncate(SIZE)
    subprocess.run(["mkfs.ext4", "-q", "-F", image], check=True, capture_output=True)
    return image


@contextlib.contextmanager
def mounted(image, point):
    """Mount a file system."""
    point.mkdir(exist_ok=True)
    done = subprocess.run(["mount", "-o", "loop", image, point], capture_output=True, check=False)
    if done.returncode:
        pytest.skip(f"nothing can be mounted here: {done.stderr.decode().strip()}")
    try:
        yield point
    finally:
        subprocess.run(["umount", point], check=True)


def cut(image, copied):
    """Copy a disk at one moment: again, if something was written to it meanwhile."""
    for _ in range(20):
        before = image.stat().st_mtime_ns
        shutil.copyfile(image, copied)
        if image.stat().st_mtime_ns == before and copied.read_bytes() == image.read_bytes():
            return
    pytest.fail("the disk never comes to rest")


def survivors(image, point, promised, waited=True):
    """Mount what a power cut left, and give how many of the promised partitions are there; none may be wrong.

    Where the writer waited for the disk, every receipt that is there must be sound. Where it did not, the journal may
    hold the name of a receipt whose bytes never came.
    """
    with mounted(image, point):
        try:
            store = open_store(point / "store", create=False)
        except ResilienceError:
            return 0
        count = 0
        for place, expected in promised.items():
            try:
                assert store.read(place, "k")[1].tobytes() == expected
                count += 1
            except ResilienceError:
                continue
        for receipt in Path(store.url).glob("commit/m/*.json"):
            if waited and not receipt.name.startswith("."):
                store.read(Place("m", receipt.name.split(".")[0], 0, "a"), "k")
        again = Place("m", "again", 0, "a")
        store.write(again, stage(5), FACTS)
        assert store.read(again, "k")[1].tobytes() == content(stage(5))
        return count


class Cutting(Calls):
    """The calls of a store whose power is cut before every few of them."""

    def __init__(self, every, cut):
        self._every, self._cut, self._count = every, cut, 0

    def _tick(self):
        self._count += 1
        if self._count % self._every == 0:
            self._cut()

    def fdatasync(self, fd):
        self._tick()
        super().fdatasync(fd)

    def link(self, source, target):
        super().link(source, target)
        self._tick()

    def fsync_directory(self, path):
        super().fsync_directory(path)
        self._tick()


def test_no_promised_partition_is_lost(disk, room):
    """Of 69 acknowledged partitions none is lost by a power cut, at whichever step of a save it comes."""
    promised = {}
    cuts = 0
    copied = room / "copied"

    def judge():
        nonlocal cuts
        cut(disk, copied)
        assert survivors(copied, room / "after", promised) == len(promised)
        cuts += 1

    with mounted(disk, room / "before") as point:
        open_store(point / "store", create=True)
        store = open_store(point / "store", create=False, calls=Cutting(7, judge))
        for n in range(69):
            place = replace(Place("m", "0", 0, "a"), index=f"{n}")
            staged = stage(n, rows=40 * (1 + n % 5), chunks=(1, 2, 4, 5)[n % 4])
            store.write(place, staged, FACTS)
            promised[place] = content(staged)
        judge()
    logger.info("%d power cuts", cuts)
    assert cuts > 60


def test_partitions_that_nobody_waited_for_are_lost(disk, room):
    """Without waiting for the disk the same power cut loses them, so the test above can fail."""
    promised = {}
    with mounted(disk, room / "before") as point:
        open_store(point / "store", create=True)
        store = open_store(point / "store", create=False, calls=Impatient())
        for n in range(69):
            place = replace(Place("m", "0", 0, "a"), index=f"{n}")
            store.write(place, stage(n), FACTS)
            promised[place] = content(stage(n))
        cut(disk, room / "copied")
    left = survivors(room / "copied", room / "after", promised, waited=False)
    logger.info("%d of 69 are left", left)
    assert left < 69
