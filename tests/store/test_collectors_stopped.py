"""Collectors of garbage beside others and beside writers, and stopped at any point: what is left is good."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dask_resilient.core.garbage import GRACE
from dask_resilient.core.manifest import Place
from dask_resilient.store import garbage as garbage_module
from dask_resilient.store import open_archive, open_store
from dask_resilient.store.reading import verify_partition
from dask_resilient.testing.crashes import crashes
from tests.store.collecting import age, collect, finish, make
from tests.support.garbage import EMPTY, collector, declare, endings, files, write
from tests.support.store_life import Impatient, Life, Stopped


@pytest.fixture
def root(store):
    """Give the directory of the store."""
    return Path(store.url)


class Counting(Impatient):
    """Calls that do something else just before the n-th of them."""

    CHANGING = ("create", "write", "unlink", "rmdir", "lstat", "names", "open", "fsync_directory")

    def __init__(self, at, then):
        self.left = at
        self._then = then

    def __getattribute__(self, name):
        if name in Counting.CHANGING:
            self.left -= 1
            if self.left == 0:
                self._then()
        return super().__getattribute__(name)


def garden(store):
    """Give a store a little of every kind of garbage, beside what stays."""
    for m, run in (("m", "done"), ("f", "failed")):
        make(store.url, m, run, 2)
        finish(store.url, run, complete=run == "done")
    make(store.url, "t", "gone", 2, temporary=True)
    age(store.url)


def every_call(tmp_path, then, after, step):
    """Do something before each call of a collection in turn, until one gets through; give how many calls there were."""
    for n in range(1, 10_000, step):
        store = open_store(tmp_path / f"{n}", create=True, calls=Impatient())
        garden(store)
        calls = Counting(n, lambda store=store: then(store))
        try:
            one = collector(store, calls=calls)
            for m in one.milestones():
                list(one.collect(m, GRACE))
            list(one.sweep_root(GRACE))
        except Stopped:
            pass
        after(store)
        if calls.left > 0:
            return n
    raise AssertionError("it never ends")


def left_is_right(store):
    """What stays is good, and once it is old a collection leaves nothing but that."""
    assert endings(store) <= {"good"}
    age(store.url)
    collect(store.url)
    root = Path(store.url)
    assert endings(store) == {"good"}
    assert {p.name for p in root.glob("commit/*/*")} == {"0.1.json", "1.0.json"}
    assert {p.name for p in root.glob("data/*/*")} == {"0-b", "1-a"}
    assert {p.name for p in root.glob("milestones/*")} == {"f.json"}
    assert {p.name for p in root.glob("data/*")} == {"f"}
    assert not [p for p in root.iterdir() if p.name not in EMPTY | {"runs"}]


def test_receipts_are_gone_for_good_before_their_data(store, root, monkeypatch):
    """No data goes before the disk has confirmed that its receipt is gone: none comes back without its data."""
    monkeypatch.setattr(garbage_module, "TOGETHER", 3)
    unsure, order = set(), []

    class Noted(Impatient):
        def unlink(self, path):
            super().unlink(path)
            kind, _, name = path.removeprefix(f"{root}/").rpartition("/")
            if kind == "commit/m":
                unsure.add(name)
            if kind.startswith("data/m/"):
                assert not unsure, f"{path} goes before {unsure} is gone for good"
            order.append(kind)

        def fsync_directory(self, path):
            super().fsync_directory(path)
            if path == f"{root}/commit/m":
                unsure.clear()

    make(store.url, "m", "run", 10)
    finish(store.url, "run")
    age(store.url)
    assert list(collector(store, calls=Noted()).collect("m", GRACE))
    assert order.count("commit/m") == 12
    assert "data/m/9-a" in order
    assert order[-1] == "milestones"
    assert files(root) == EMPTY


def test_power_cut_while_collecting(room):
    """Whatever of a collection a power cut keeps: each receipt that is there is good, and no revoked one is back."""
    (room / "life").mkdir()
    life = Life(room / "life")
    store = life.open()
    declare(store, "m", partitions=3)
    for index in "012":
        write(store, "m", index)
    store.revoke(Place("m", "0", 0, "a"), "differs")
    write(store, "m", "0", generation=1, attempt="b")
    store.journal("run", "run", {})
    store.journal("run", "complete", {})
    begun = len(life.recorder.log)
    gone = list(collector(store, calls=life.recorder).collect("m", -1.0))
    assert len(gone) == 6
    count, seen = 0, set()
    for crash in crashes(life.recorder.log, subsets=30, start=begun):
        shutil.rmtree(room / "after", ignore_errors=True)
        (room / "after").mkdir()
        crash.materialise(room / "after")
        left = open_archive(room / "after" / "disk" / "store", Impatient())
        valid = left.listing("m").valid()
        assert valid.get("0", 1) == 1, "the revoked copy is back"
        for _, receipt in left.receipts("m"):
            verify_partition(left.calls, left.root, left.token, receipt.place)
        count += 1
        seen.add(len(valid))
    assert seen == {0, 1, 2, 3}
    assert count > 200


STEPS = [11, pytest.param(1, marks=pytest.mark.slow)]


@pytest.mark.parametrize("step", STEPS)
def test_another_collector_at_every_call(room, step):
    """Another collector that does all the work between any two calls of this one is no error."""
    assert every_call(room, lambda store: collect(store.url), left_is_right, step) > 200


@pytest.mark.parametrize("step", STEPS)
def test_stop_at_every_call(room, step):
    """A collector that dies between any two of its calls leaves nothing that looks good and is not."""

    def stop(store):
        raise Stopped

    assert every_call(room, stop, left_is_right, step) > 200


def test_directory_that_goes_while_it_is_empty(store, root):
    """A writer whose empty directory a collector takes away makes it again."""

    class Beside(Impatient):
        seen = ()

        def mkdir(self, path):
            super().mkdir(path)
            if path.endswith(("/data/m", "/commit/m")) and path not in self.seen:
                self.seen += (path,)
                Path(path).rmdir()

    calls = Beside()
    writer = open_store(store.url, create=False, calls=calls)
    write(writer, "m", "0")
    assert len(calls.seen) == 2
    assert store.read(Place("m", "0", 0, "a"), "k")


def program(*args):
    """Run the program of the collectors, and give its verdicts."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.store.collecting", *map(str, args)],
        stdout=subprocess.PIPE,
        text=True,
        timeout=300,
        check=True,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("rounds", [8, pytest.param(100, marks=pytest.mark.slow)])
def test_collector_that_is_killed(room, rounds):
    """Collectors that are killed at any time leave only what is good, and what a later one collects."""
    store = open_store(room / "store", create=True, calls=Impatient())
    codes = [verdict["code"] for verdict in program("killed", store.url, rounds, 7)]
    assert len(codes) == rounds
    assert -9 in codes, "none was killed in time"
    assert endings(store) <= {"good"}
    age(store.url)
    collect(store.url)
    assert files(Path(store.url)) == EMPTY


def test_collectors_together(room):
    """Several collectors of the same garbage do not disturb one another."""
    store = open_store(room / "store", create=True, calls=Impatient())
    for n in range(10):
        make(store.url, f"m{n}", "run")
    make(store.url, "f", "failed")
    finish(store.url, "run")
    age(store.url)
    (verdict,) = program("together", store.url, 4)
    assert verdict["codes"] == [0] * 4
    root = Path(store.url)
    assert {p.name for p in root.glob("*/*")} - {"f", "f.json"} == {"run"}
    assert len(list(root.glob("data/f/*"))) == 20
    assert endings(store) == {"good"}


@pytest.mark.parametrize("partitions", [100, pytest.param(2000, marks=pytest.mark.slow)])
def test_collectors_beside_writers(room, partitions):
    """No partition that was saved is lost to collectors that work beside, with no grace at all, while its run lives."""
    store = open_store(room / "store", create=True, calls=Impatient())
    for n in range(10):
        make(store.url, f"m{n}", "run")
    finish(store.url, "run")
    age(store.url)
    verdicts = program("beside", store.url, 2, 2, partitions)
    assert verdicts[-1] == {"wrote": [0, 0], "collected": [0, 0]}
    saved = [verdict["saved"] for verdict in verdicts[:-1]]
    assert len(saved) == 2 * partitions
    for m, index in saved:
        assert store.read(Place(m, index, 0, "a"), "k")
    assert not list(Path(store.url).glob("data/m*")), "meanwhile the garbage was collected"
