"""Which milestone `dask_resilient.open` gives, and what it refuses with which words."""

from __future__ import annotations

import shutil
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import dask.array as da
import numpy as np
import pytest

import dask_resilient as dr
from dask_resilient import partitions
from dask_resilient.core.manifest import Place
from dask_resilient.core.milestones import Description, Milestone, read_description
from dask_resilient.errors import Damaged, NotStored, ResilienceWarning, SettingError, StoreError, Unreachable
from dask_resilient.graph import describe as describe_module
from dask_resilient.graph.milestone import Mark
from dask_resilient.store import open_store
from tests.support.keeper import PLAIN, array, dataset, dr_archive, frame, same

# -- which milestone ---------------------------------------------------------------------------------------------------


def test_newest_complete_one(keeper, path):
    """Of several of one name the newest complete one is given, and a warning says which; m= picks another."""
    old = keeper.keep(array(), version=1)
    keeper.run, keeper.made = "second", 3.0
    new = keeper.keep(array() + 1, version=2)
    keeper.run, keeper.made, keeper.skip = "third", 5.0, {"1.1"}
    keeper.keep(array() + 2, version=3)
    first, second, third = (each.milestone for each in dr_archive(path).milestones())
    with pytest.warns(
        ResilienceWarning, match=rf"3 milestones named 'clean': opened {second}, made 1970-01-01 00:00:03"
    ):
        found = dr.open(path, "clean")
    same(found.compute(scheduler="sync"), new)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        same(dr.open(path, m=first).compute(scheduler="sync"), old)
        with pytest.raises(NotStored, match=rf"\({third}\).* not complete: of 6 partitions 1 is missing: 1\.1;"):
            dr.open(path, m=third)


def test_warning_points_at_the_caller(keeper, path):
    """The warning stands at the line that opened the milestone."""
    keeper.keep(array())
    keeper.run = "second"
    keeper.keep(array())
    with pytest.warns(ResilienceWarning, match="2 milestones") as caught:
        dr.open(path, "clean")
    assert caught[0].filename == __file__


def test_only_incomplete_ones(keeper, path):
    """Where no milestone of a name is complete, the newest says what is missing."""
    keeper.skip = {str(i) for i in range(12)}
    keeper.keep(da.arange(20, chunks=1))
    keeper.run, keeper.made = "second", 2.0
    keeper.keep(da.arange(20, chunks=1))
    newest = dr_archive(path).milestones()[-1].milestone
    with pytest.raises(NotStored) as caught:
        dr.open(path, "clean")
    assert f"'clean' ({newest}) in {path!r} is not complete: of 20 partitions 12 are missing" in str(caught.value)
    assert "0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 2 more; run the script" in str(caught.value)


def test_revoked_partition_is_missing(keeper, path):
    """A partition whose copy was revoked is missing; the next generation counts."""
    value = keeper.keep(frame())
    place = next(p for p in keeper.places if p.index == "1")
    keeper.store.revoke(place, "differs")
    with pytest.raises(NotStored, match="1 is missing: 1;"):
        dr.open(path, "clean")
    keeper.store.write(
        replace(place, generation=1, attempt="b"), partitions.stage(PLAIN.iloc[7:14]), {"key": "k", "run": "r"}
    )
    same(dr.open(path, "clean").compute(scheduler="sync"), value)


def test_collection_of_a_kind_of_its_own(keeper, path):
    """A collection that nobody can put together is refused with what to mark instead."""
    keeper.store.declare(Milestone("m", "run", 1.0, Description("odd", "other", 1)))
    keeper.store.write(Place("m", "x0", 0, "a"), partitions.stage(np.zeros(3)), {"key": "k", "run": "r"})
    with pytest.raises(NotStored, match="mark the arrays, frames or bags inside"):
        dr.open(path, "odd")


def test_description_that_would_contradict_itself_is_of_no_kind():
    """What Dask says of a collection and cannot be is left out: it is kept, and nobody opens it."""
    raw = describe_module.describe(Mark("clean", None, False), "array", 3, numblocks=(2, 2)).raw
    assert read_description(raw).kind == "other"


def test_object_of_xarray_where_xarray_is_not_installed(keeper, path, monkeypatch):
    """One line says what to install."""
    keeper.keep(dataset())
    monkeypatch.setitem(sys.modules, "xarray", None)
    with pytest.raises(NotStored, match="xarray is not installed here: pip install xarray"):
        dr.open(path, "clean")


# -- what is refused ---------------------------------------------------------------------------------------------------


def test_wrong_name(keeper, path):
    """A name that is not there is refused with those that are."""
    with pytest.raises(NotStored, match="has no milestone named 'cleen'; it has none at all"):
        dr.open(path, "cleen")
    keeper.keep(array())
    keeper.keep(frame(), "table")
    with pytest.raises(NotStored, match=r"has no milestone named 'cleen'; it has 'clean', 'table'$"):
        dr.open(path, "cleen")
    with pytest.raises(LookupError):
        dr.open(path, "cleen")


def test_wrong_arguments(keeper, path):
    """Either a name or an m says which milestone; an m that is none is refused."""
    keeper.keep(array())
    for args in ({}, {"name": "clean", "m": "x"}):
        with pytest.raises(NotStored, match="say which milestone"):
            dr.open(path, **args)
    for m in ("0123", "../x", ""):
        with pytest.raises(StoreError, match=r"has no milestone '0123'|is no m of a milestone"):
            dr.open(path, m=m)


@pytest.mark.parametrize("where", ["typo", "", "file", "empty"])
def test_wrong_path(keeper, tmp_path, where):
    """A path without a store is refused in one line, and nothing is made there."""
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises((StoreError, SettingError)) as caught:
        dr.open(tmp_path / where if where else "", "clean")
    assert "\n" not in str(caught.value)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", None])
def test_damaged_description(keeper, path, raw):
    """A damaged description is no milestone any more; that there is one is said."""
    keeper.keep(array())
    file = next(Path(path).glob("milestones/*.json"))
    file.write_bytes(file.read_bytes().replace(b'"clean"', b'"other"') if raw is None else raw)
    with pytest.raises(NotStored, match="it has none at all, and 1 that cannot be read"):
        dr.open(path, "clean")
    with pytest.raises(Damaged):
        dr.open(path, m=file.stem)


def test_damaged_description_of_a_newer_one(keeper, path):
    """Whoever gets a milestone while another cannot be read hears that it may not be the newest."""
    value = keeper.keep(array())
    keeper.keep(array() + 1, "other")
    newer = next(each for each in dr_archive(path).milestones() if each.description.name == "other")
    (Path(path) / "milestones" / f"{newer.milestone}.json").write_text("{")
    with pytest.warns(ResilienceWarning, match=f"{newer.milestone}' that cannot be read; it may be a newer 'clean'"):
        found = dr.open(path, "clean")
    same(found.compute(scheduler="sync"), value)


def broken(keeper, change):
    """Describe and save one milestone, with some facts changed by somebody who knows how to seal them."""
    value = np.arange(4.0)
    described = {"name": "clean", "kind": "array", "npartitions": 1, "numblocks": (1,), **change}
    keeper.store.declare(Milestone("m", "run", 1.0, Description(**described)))
    keeper.store.write(Place("m", "0", 0, "a"), partitions.stage(value), {"key": "k", "run": "r"})


@pytest.mark.parametrize(
    "change",
    [
        {"meta": {}},
        {"meta": {"codec": "nobody's", "schema": {}, "payload": ""}},
        {"meta": {"codec": "numpy", "schema": None, "payload": ""}},
        {"meta": {"codec": "numpy", "schema": {}, "payload": "no base64"}},
        {"meta": ["codec"]},
        {"meta": 7},
        {"meta": {"codec": ["numpy"], "schema": {}, "payload": ""}},
        {"kind": "frame", "numblocks": None, "divisions": {}},
        {"kind": "frame", "numblocks": None, "divisions": 7},
        {"kind": "frame", "numblocks": None, "divisions": [0, 1]},
        {"kind": "frame", "numblocks": None, "divisions": "wrong count"},
    ],
    ids=repr,
)
def test_description_that_fits_nothing(keeper, path, change):
    """A description that is sealed and makes no sense is refused with the milestone's name."""
    three = describe_module.stage_value((0, 1, 2))
    broken(keeper, {key: three if fact == "wrong count" else fact for key, fact in change.items()})
    with pytest.raises(dr.ResilienceError) as caught:
        dr.open(path, "clean").compute(scheduler="sync")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("scheduler", ["sync", "threads"])
def test_damage_is_noticed_while_computing(keeper, path, scheduler):
    """A flipped bit, or a lost file, in a partition is an error that names the partition; never a wrong number."""
    keeper.keep(array())
    place = next(p for p in keeper.places if p.index == "1.0")
    found = dr.open(path, "clean")
    file = next((Path(path) / place.data).glob("[0-9]*"))
    raw = file.read_bytes()
    file.write_bytes(raw[:5] + bytes([raw[5] ^ 4]) + raw[6:])
    with pytest.raises(Damaged, match=r"1\.0-a.* has crc32c"):
        found.compute(scheduler=scheduler)
    file.unlink()
    with pytest.raises(Damaged, match=r"1\.0-a.* is absent"):
        found.compute(scheduler=scheduler)
    (Path(path) / place.receipt).unlink()
    with pytest.raises(Damaged, match=r"1\.0\.0\.json.* is gone"):
        found.compute(scheduler=scheduler)


def test_store_that_is_gone_while_computing(keeper, path):
    """A store that is gone, or another one in its place, is unreachable: that proves no damage."""
    keeper.keep(array())
    found = dr.open(path, "clean")
    shutil.move(path, f"{path}-moved")
    with pytest.raises(Unreachable, match="it sees another disk, or none"):
        found.compute(scheduler="sync")
    open_store(path, create=True)
    with pytest.raises(Unreachable, match="it sees another disk, or none"):
        found.compute(scheduler="sync")


def test_store_that_was_moved(keeper, path):
    """A store opens under any path, and as a copy that nobody can write to."""
    value = keeper.keep(array())
    shutil.move(path, f"{path}-moved")
    for file in Path(f"{path}-moved").rglob("*"):
        file.chmod(0o555 if file.is_dir() else 0o444)
    same(dr.open(f"{path}-moved", "clean").compute(scheduler="sync"), value)
    same(dr.open(f"file://{path}-moved", "clean").compute(scheduler="sync"), value)
