"""What is said after an edit, word for word; and that a secret is kept nowhere."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

JOB = Path(__file__).with_name("edited.py")
ROOT = Path(__file__).parents[2]

ETL = '''"""Cleans."""

import helper


def clean(path, i, limit, key):
    """Give a piece."""
    with open(path) as file:
        return helper.scale(len(file.read()) + i + limit)
'''
HELPER = '''"""Helps."""

FACTOR = 3


def twice(x):
    return x * 2


def scale(x):
    return twice(x) * FACTOR
'''
LIBRARY = '''"""A library of somebody else's."""


def released(pieces):
    return sum(pieces)
'''
NOT = "clean: reused 0 of 1; 1 not reused: "


class Bench:
    """A directory with the job, what it imports, an input and a store."""

    def __init__(self, path):
        self.path = path
        shutil.copy(JOB, path / "job.py")
        self.write("etl.py", ETL)
        self.write("helper.py", HELPER)
        self.write("input.txt", "abc")
        self.limit = 5
        self.library("1.0")

    def write(self, name, text):
        """Write a file; not in place, so that its inode and time are new."""
        draft = self.path / f".{name}"
        draft.parent.mkdir(exist_ok=True)
        draft.write_text(text)
        draft.replace(self.path / name)

    def library(self, version):
        """Install a release of a library."""
        site = self.path / "site"
        shutil.rmtree(site, ignore_errors=True)
        about = site / f"somebody_elses-{version}.dist-info"
        about.mkdir(parents=True)
        (site / "library.py").write_text(LIBRARY)
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: somebody-elses\nVersion: {version}\n")
        (about / "RECORD").write_text(f"library.py,,\n{about.name}/METADATA,,\n")
        (about / "top_level.txt").write_text("library\n")

    def run(self):
        """Run the job, and give what it says of its milestone."""
        done = subprocess.run(
            [sys.executable, "job.py", "store", str(self.path / "input.txt"), str(self.limit)],
            cwd=self.path,
            env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{self.path / 'site'}", "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()


def two_calls_deep(bench):
    bench.write("helper.py", HELPER.replace("x * 2", "x + x"))
    return lambda: bench.write("helper.py", HELPER)


def constant(bench):
    bench.write("helper.py", HELPER.replace("FACTOR = 3", "FACTOR = 4"))
    return lambda: bench.write("helper.py", HELPER)


def argument(bench):
    bench.limit = 6
    return lambda: setattr(bench, "limit", 5)


def file(bench):
    before = bench.path / "before.txt"
    (bench.path / "input.txt").rename(before)
    bench.write("input.txt", "abcd")
    return lambda: before.replace(bench.path / "input.txt")


def library(bench):
    bench.library("1.1")
    return lambda: bench.library("1.0")


EDITS = {
    two_calls_deep: NOT + "function helper.twice changed (line 6)",
    constant: NOT + "value helper.FACTOR changed from 3 to 4",
    argument: NOT + "argument etl.clean(2) changed from 5 to 6",
    file: NOT + "input {path}/input.txt changed (4 bytes)",
    library: NOT + "somebody-elses 1.0 is now 1.1",
}


@pytest.mark.slow
def test_the_five_edits(tmp_path):
    """Each is named, alone, and undone all is reused; of what was handed over nothing is kept but digests."""
    bench = Bench(tmp_path)
    assert bench.run() == NOT + "nothing of this name was stored"
    for edit, said in EDITS.items():
        undo = edit(bench)
        assert bench.run() == said.format(path=tmp_path), edit.__name__
        undo()
        assert bench.run() == "clean: reused 1 of 1"
    for kept in (path for path in (tmp_path / "store").rglob("*") if path.is_file()):
        assert b"planted" not in kept.read_bytes()


@pytest.mark.slow
def test_what_changes_nothing_is_reused(tmp_path):
    """Comments, names of local variables, moved lines and docstrings."""
    bench = Bench(tmp_path)
    bench.run()
    text = ETL.replace("as file", "as f").replace("file.read", "f.read").replace("Give a piece", "A piece")
    bench.write("etl.py", text)
    bench.write("helper.py", "# A comment.\n\n" + HELPER)
    assert bench.run() == "clean: reused 1 of 1"
