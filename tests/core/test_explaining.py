"""Why partitions were reused or not, in words; and what a store keeps of a fingerprint."""

from __future__ import annotations

import json
import zlib
from dataclasses import replace

import pytest

from dask_resilient.core.explaining import Resumption, explain, relies_on
from dask_resilient.core.fingerprints import Fact, Fingerprint, changes, milestone_of
from dask_resilient.core.lineages import MAX_UNPACKED, MOST_INPUTS, StoredLineage, dump_lineage, read_lineage
from dask_resilient.errors import Damaged

ROW = Resumption("clean", "m", 12_000, "fingerprint")
TEXTS = {
    "all": (replace(ROW, found=12_000), "clean: reused 12,000 of 12,000"),
    "some": (replace(ROW, found=11_980), "clean: reused 11,980 of 12,000; 20 not reused: not stored"),
    "the first run": (ROW, "clean: reused 0 of 12,000; 12,000 not reused: nothing of this name was stored"),
    "an edit": (
        replace(ROW, before="n", changes=("function etl.clean changed (line 12)", "value etl.K changed from 3 to 4")),
        (
            "clean: reused 0 of 12,000; 12,000 not reused: function etl.clean changed (line 12); "
            "value etl.K changed from 3 to 4"
        ),
    ),
    "other partitions": (
        replace(ROW, before="n"),
        "clean: reused 0 of 12,000; 12,000 not reused: its partitions are cut otherwise, or have other types",
    ),
    "this run only": (
        replace(ROW, identity="run", milestone="", reasons=("random numbers without a seed",)),
        "clean: reused 0 of 12,000; it is for this run only: random numbers without a seed",
    ),
    "switched off": (
        replace(ROW, identity="run", milestone=""),
        "clean: reused 0 of 12,000; it is for this run only: resume is switched off",
    ),
    "the user's word": (
        replace(ROW, identity="version", version="2", found=12_000, changes=("function etl.clean changed (line 12)",)),
        "clean: reused 12,000 of 12,000, on your word (version '2'), although function etl.clean changed (line 12)",
    ),
    "a name": (
        replace(ROW, identity="name", found=1, npartitions=1, changes=("function f changed (line 1)",)),
        "clean: reused 1 of 1, on your word (its name), although function f changed (line 1)",
    ),
    "a variable": (replace(ROW, variable="wind", found=12_000), "clean / wind: reused 12,000 of 12,000"),
    "many changes": (
        replace(ROW, before="n", npartitions=1, changes=tuple(f"c{i}" for i in range(12))),
        "clean: reused 0 of 1; 1 not reused: c0; c1; c2; c3; c4; c5; c6; c7; c8; c9; and 2 more",
    ),
}


@pytest.mark.parametrize(("row", "text"), TEXTS.values(), ids=TEXTS)
def test_a_line_says_what_was_reused_and_why_not_the_rest(row, text):
    assert explain(row) == text


@pytest.mark.parametrize("row", [row for row, _ in TEXTS.values()], ids=TEXTS)
def test_a_row_comes_back_through_json(row):
    assert Resumption.from_dict(json.loads(json.dumps(row.to_dict()))) == row


def test_a_hostile_name_stays_in_its_line():
    assert "\n" not in explain(replace(ROW, name="clean\n\x1b[2J", found=1))


def test_what_a_milestone_relies_on_is_named_by_kind():
    facts = {
        "etl.clean": Fact("function", "1", "line 3"),
        "etl.K": Fact("value", "1", "3"),
        "etl.clean(0)": Fact("argument", "1"),
        "pandas": Fact("package", "1", "3.0.1"),
        "python": Fact("python", "1", "3.11"),
        **{f"/data/{i}.csv": Fact("input", "1", "5 bytes") for i in range(7)},
    }
    assert relies_on(Fingerprint("s", facts)) == (
        "functions etl.clean; values etl.K; inputs /data/0.csv, /data/1.csv, /data/2.csv, /data/3.csv, /data/4.csv "
        "and 2 more; pandas 3.0.1, python 3.11"
    )
    assert relies_on(Fingerprint("s")) == "nothing but its arguments"


# -- m -----------------------------------------------------------------------------------------------------------------


def test_m_depends_on_name_shape_and_what_identifies_it():
    given = {"name": "clean", "shape": "s", "fingerprint": "f"}
    words = [given | each for each in ({}, {"name": "x"}, {"shape": "t"}, {"fingerprint": "g"})]
    words += [{"name": "clean", "shape": "s", "version": version} for version in (None, "2", 2, "None", "f")]
    assert len({milestone_of(**each) for each in words}) == len(words)


# -- what is kept ------------------------------------------------------------------------------------------------------


def test_a_lineage_comes_back_as_it_was():
    given = Fingerprint("s", {"etl.clean": Fact("function", "1", "line 3")}, ("why",))
    kept = read_lineage(dump_lineage(given))
    assert (kept.structure, kept.facts, kept.reasons) == ("s", given.facts, ("why",))
    assert kept.digest == given.digest
    assert StoredLineage.from_dict(json.loads(json.dumps(kept.to_dict()))) == kept
    assert changes(kept, given) == []


def test_very_many_files_of_a_directory_are_kept_as_one():
    def read(changed):
        files = {
            f"/data/{i}.parquet": Fact("input", f"{i}{changed * (i == 7)}", "5 bytes") for i in range(MOST_INPUTS + 1)
        }
        return read_lineage(dump_lineage(Fingerprint("s", {"/other/x.csv": Fact("input", "1"), **files})))

    assert len(read("").facts) == 2
    assert changes(read(""), read("!")) == [f"input /data/* changed ({MOST_INPUTS + 1} files)"]


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"nothing",
        zlib.compress(b"[]"),
        zlib.compress(b"{}"),
        zlib.compress(b'{"structure": 1, "digest": "", "facts": {}, "reasons": []}'),
        zlib.compress(b'{"structure": "", "digest": "", "facts": {"f": [1, 2, 3]}, "reasons": []}'),
        zlib.compress(b'{"structure": "", "digest": "", "facts": {"f": []}, "reasons": []}'),
        zlib.compress(b" " * (MAX_UNPACKED + 1)),
        zlib.compress(b"[" * 100_000),
    ],
    ids=range(9),
)
def test_what_is_no_lineage_is_refused(raw):
    with pytest.raises(Damaged, match="lineage"):
        read_lineage(raw)
