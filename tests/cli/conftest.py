"""A store with a bit of everything, and a way to run the commands on it."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from dask_resilient.cli import resilience
from dask_resilient.core.manifest import Place
from dask_resilient.core.milestones import Description, Milestone
from dask_resilient.store import open_store
from tests.support.store_life import Impatient, stage


class Shop:
    """A store, and what is put into it."""

    def __init__(self, path):
        self.store = open_store(path, create=True, calls=Impatient())
        self.root = path
        self.url = str(path)

    def milestone(self, m, name="clean", run="run", indices="01", made=1.0, **facts):
        """Describe a milestone of two partitions, and save some of them."""
        kind = "array" if "group" in facts else "frame"
        more = {"numblocks": (2,)} if kind == "array" else {}
        self.store.declare(Milestone(m, run, made, Description(name, kind, 2, **more, **facts)))
        for index in indices:
            self.store.write(Place(m, index, 0, "a"), stage(int(index), rows=2), {"key": "k", "run": run})

    def run(self, run, *, complete=False, ended=True, uses=()):
        """Let there be a run."""
        self.store.journal(run, "run", {})
        if complete:
            self.store.journal(run, "complete", {})
        self.store.renew(run, uses, ended=ended)

    def files(self):
        """Give every path, and when it was changed."""
        return {str(p): p.lstat().st_mtime_ns for p in self.root.rglob("*")}


@pytest.fixture
def shop(tmp_path):
    """Give a store that was just made."""
    return Shop(tmp_path / "store")


@pytest.fixture
def call():
    """Give a function that runs a command: exit code, lines of its output, lines of errors."""

    def call(*args, code=0):
        result = CliRunner().invoke(resilience, list(map(str, args)))
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        assert result.exit_code == code, result.output
        return result.stdout.splitlines(), result.stderr.splitlines()

    return call


@pytest.fixture
def ask(call):
    """Give a function that runs a command with ``--json`` and gives what it says."""

    def ask(*args, code=0):
        out, err = call(*args, "--json", code=code)
        assert err == []
        return json.loads("\n".join(out))

    return ask
