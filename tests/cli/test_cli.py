"""``dask resilience ls | verify | gc | rm``: what they show, what they delete, and how they say that they cannot."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import click
import pytest

from dask_resilient import cli
from dask_resilient.cli import stores
from dask_resilient.core.explaining import Resumption
from dask_resilient.store import garbage as garbage_module
from tests.store.collecting import age

COMMANDS = ("ls", "verify", "explain", "gc", "rm")


@pytest.fixture(autouse=True)
def eager(monkeypatch):
    """Nobody waits for the rests between deletions."""
    monkeypatch.setattr(garbage_module.Collector.__init__, "__kwdefaults__", {"idle": 0.0, "sleep": lambda _: None})


# -- help and wrong calls ----------------------------------------------------------------------------------------------


def test_every_command_has_help(call):
    """The group says what a STORE is; every command and every option says what it does."""
    out, _ = call("--help")
    assert "STORE is the path or file:// URL" in " ".join(out)
    assert set(cli.resilience.commands) == {*COMMANDS, "doctor"}
    for name, command in cli.resilience.commands.items():
        out, _ = call(name, "--help")
        assert "STORE" in out[0]
        assert command.help
        assert all(option.help for option in command.params if isinstance(option, click.Option))


def test_every_command_is_in_the_docs():
    """The page on the tools has every command and every option of it."""
    page = (Path(__file__).parents[2] / "docs" / "tools.md").read_text()
    for name, command in cli.resilience.commands.items():
        assert f"dask resilience {name} " in page
        for option in command.params:
            if isinstance(option, click.Option):
                assert option.opts[0] in page, option.opts


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("as_json", [True, False])
@pytest.mark.parametrize("where", ["typo", "", "file", "empty", "s3://bucket/x", "damaged"])
def test_wrong_path(tmp_path, call, command, as_json, where):
    """A path that is no store is one line on stderr and exit code 2; nothing is made there."""
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "store.json").write_text("{")
    before = sorted(tmp_path.rglob("*"))
    path = where if ":" in where or not where else tmp_path / where
    out, err = call(command, path, *["x"] * (command in ("rm", "explain")), *["--json"] * as_json, code=2)
    assert out == []
    assert len(err) == 1
    assert err[0].startswith("Error: ")
    assert (where or "store=''") in err[0]
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("command", ["verify", "rm"])
def test_wrong_milestone(shop, call, command):
    """A name that is not there is one line, with those that are there."""
    _, err = call(command, shop.url, "cleen", code=2)
    assert err == [f"Error: {shop.url!r} has no milestone 'cleen'; it has none"]
    shop.milestone("m")
    shop.milestone("n", "dirty")
    _, err = call(command, shop.url, "clean", "cleen", code=2)
    assert err == [f"Error: {shop.url!r} has no milestone 'cleen'; it has clean, dirty"]


@pytest.mark.parametrize("grace", ["soon", "-1", "-5h", "nan", "inf", "1e999", "", "5 parsecs", "1h2m"])
def test_wrong_grace(shop, call, grace):
    """A grace period that is no time is one line that says what one is; nothing is deleted."""
    shop.milestone("m")
    before = shop.files()
    _, err = call("gc", shop.url, "--grace", grace, "--delete", code=2)
    assert err == [f"Error: --grace {grace!r} must be a time such as '24h' or a number of seconds; the default is 24h"]
    assert shop.files() == before


@pytest.mark.parametrize(("grace", "seconds"), [("24h", 86400), ("90", 90), ("7d", 604800), ("0", 0), ("1.5 m", 90)])
def test_grace(grace, seconds):
    """A grace period is a time with a unit, or seconds."""
    assert stores._seconds(grace) == seconds


@pytest.mark.parametrize("args", [[], ["dance"], ["ls"], ["rm", "x"], ["gc", "x", "y"], ["ls", "x", "--delete"]])
def test_wrong_call(call, args):
    """Arguments that do not fit are exit code 2, with the usage."""
    _, err = call(*args, code=2)
    assert err[0].startswith("Usage:")


# -- explain -----------------------------------------------------------------------------------------------------------


def found(shop, run, time, **facts):
    """Let a run have met a milestone."""
    row = Resumption("clean", "m", 20, "fingerprint", **facts)
    shop.store.journal(run, f"resume-{len(list(shop.root.rglob('resume-*')))}", {"time": time, **row.to_dict()})


def test_explain(shop, call, ask):
    """What the last run that met the name has reused, a line a milestone; as JSON what all runs have."""
    found(shop, "one", 10.0)
    found(shop, "two", 20.0, found=13)
    found(shop, "two", 21.0, variable="x", found=20)
    assert call("explain", shop.url, "clean")[0] == [
        "clean: reused 13 of 20; 7 not reused: not stored (run two, 1970-01-01 00:00:20 UTC)",
        "clean / x: reused 20 of 20 (run two, 1970-01-01 00:00:21 UTC)",
    ]
    rows = ask("explain", shop.url, "clean")
    assert [(row["run"], row["found"]) for row in rows] == [("one", 0), ("two", 13), ("two", 20)]
    assert rows[0]["text"] == "clean: reused 0 of 20; 20 not reused: nothing of this name was stored"


def test_explain_of_a_name_that_nobody_met(shop, call):
    """One line, with the names that were met; what cannot be read in a journal is passed over."""
    found(shop, "one", 10.0)
    (shop.root / "runs" / "one" / "resume-x.json").write_text("{")
    (shop.root / "runs" / "one" / "resume-y.json").write_text('{"time": "soon"}')
    _, err = call("explain", shop.url, "cleen", code=2)
    assert err == [f"Error: no run has met a milestone 'cleen' in {shop.url!r}; they met clean"]


# -- ls ----------------------------------------------------------------------------------------------------------------


def test_ls(shop, call, ask):
    """Every milestone has a row: what it is, how much is stored, when it was made, how its run stands."""
    shop.milestone("m1", made=1.0, indices="0")
    shop.milestone("m2", run="live", made=2.0, keep=True)
    shop.milestone("m3", "weather", run="done", made=86400.0, variable="t", group=("g", 1))
    shop.run("live", ended=False)
    shop.run("done", complete=True)
    before = shop.files()
    out, err = call("ls", shop.url)
    assert err == []
    assert [line.split() for line in out[:-1]] == [
        ["name", "m", "kind", "stored", "size", "made", "(UTC)", "run"],
        ["clean", "m1", "frame", "1/2", "116", "B", "1970-01-01", "00:00:01", "ended"],
        ["clean", "m2", "frame", "2/2", "232", "B", "1970-01-01", "00:00:02", "live,", "kept"],
        ["weather", "/", "t", "m3", "array", "2/2", "232", "B", "1970-01-02", "00:00:00", "complete"],
    ]
    assert out[-1] == f"3 milestones in {shop.url}"
    rows = ask("ls", shop.url)
    assert [(row["milestone"], row["stored"], row["run_state"], row["keep"]) for row in rows] == [
        ("m1", 1, "ended", False),
        ("m2", 2, "live", True),
        ("m3", 2, "complete", False),
    ]
    inside = {path: when for path, when in shop.files().items() if path != shop.url}
    assert inside == before


def test_ls_of_nothing(shop, call, ask):
    """An empty store has no rows."""
    assert call("ls", shop.url)[0] == [f"0 milestones in {shop.url}"]
    assert ask("ls", shop.url) == []


def test_ls_shows_what_cannot_be_read(shop, call, ask):
    """A damaged description has a row with the reason; the others are shown."""
    shop.milestone("m")
    shop.milestone("n")
    (shop.root / "milestones/n.json").write_text("{")
    out, _ = call("ls", shop.url)
    assert out[1].startswith("clean")
    assert out[2].split()[:2] == ["?", "n"]
    assert "cannot be read" in out[2]
    assert [row["name"] for row in ask("ls", shop.url)] == ["clean", None]


def test_names_are_shown_as_they_are(shop, call):
    """A name that looks like mark-up of the terminal's, or would be obeyed by it, is shown and does nothing."""
    for m, variable in (("a", "[/bold]"), ("b", "[red]x"), ("c", ":smile:"), ("d", "\x1b[2J"), ("e", "\ud800")):
        shop.milestone(m, "ds", variable=variable, group=(m, 1))
    out = "\n".join(call("ls", shop.url)[0])
    for shown in ("ds / [/bold]", "ds / [red]x", "ds / :smile:", r"ds / '\x1b[2J'", r"ds / '\ud800'"):
        assert shown in out


def test_ls_is_not_cut_short(shop, call, monkeypatch):
    """However narrow the terminal, names and m can be copied."""
    monkeypatch.setenv("COLUMNS", "20")
    shop.milestone("0123456789abcdef" * 2, "a-long-name-of-a-milestone" * 3)
    (line,) = (line for line in call("ls", shop.url)[0] if "a-long-name" in line)
    assert "a-long-name-of-a-milestone" * 3 in line
    assert "0123456789abcdef" * 2 in line


def test_ls_of_a_store_that_cannot_be_written(shop, ask, monkeypatch):
    """Where no file can be made for the store's clock, the newest renewal stands for it."""
    shop.milestone("m", run="live")
    shop.run("live", ended=False)

    def refuse(*args):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(stores, "clock", refuse)
    assert ask("ls", shop.url)[0]["run_state"] == "live"


# -- verify ------------------------------------------------------------------------------------------------------------


def test_verify(shop, call, ask):
    """A store of which every byte is right is good: exit code 0, nothing written."""
    shop.milestone("m")
    shop.milestone("n", "other")
    before = shop.files()
    assert call("verify", shop.url)[0] == ["4 partitions good (464 B), 0 not"]
    assert ask("verify", shop.url) == {"good": 4, "nbytes": 464, "bad": []}
    assert ask("verify", shop.url, "other", "m") == {"good": 4, "nbytes": 464, "bad": []}
    assert ask("verify", shop.url, "clean", "clean", "m")["good"] == 2
    assert shop.files() == before


def test_verify_tells_what_is_not(shop, call, ask):
    """Damage, absence and a description that cannot be read are told: exit code 1."""
    shop.milestone("m", indices="0")
    shop.milestone("n", "other")
    shop.milestone("o")
    chunk = next((shop.root / "data/n/1-a").glob("0*"))
    chunk.write_bytes(chunk.read_bytes()[:-1])
    (shop.root / "milestones/o.json").write_text("{")
    out, _ = call("verify", shop.url, code=1)
    assert out[-1] == "2 partitions good (232 B), 3 not"
    said = ask("verify", shop.url, code=1)
    assert said["good"] == 2
    assert [(row["milestone"], row["ending"]) for row in said["bad"]] == [
        ("m", "missing"),
        ("n", "damaged"),
        ("o", "damaged"),
    ]
    assert all(row["reason"] for row in said["bad"])
    assert [row["ending"] for row in ask("verify", shop.url, "m", code=1)["bad"]] == ["missing"]
    assert [row["milestone"] for row in ask("verify", shop.url, "o", code=1)["bad"]] == ["o"]


# -- gc ----------------------------------------------------------------------------------------------------------------


@dataclass
class Garden:
    """What goes and what stays."""

    goes: set[str]
    stays: set[str]


@pytest.fixture
def garden(shop):
    """Give a store with garbage beside what is none."""
    shop.milestone("done", run="done")
    shop.milestone("kept", run="done", keep=True)
    shop.milestone("failed", run="failed")
    (shop.root / "data/failed/0-lost").mkdir()
    shop.run("done", complete=True)
    shop.run("failed")
    age(shop.url)
    return Garden({"milestones/done.json", "data/failed/0-lost"}, {"milestones/kept.json", "milestones/failed.json"})


def test_gc_only_says(shop, garden, call, ask):
    """Without --delete, nothing is deleted: that is said, with what would be."""
    before = shop.files()
    out, _ = call("gc", shop.url)
    assert out[-1].startswith("4 things, ")
    assert out[-1].endswith(", would be deleted; --delete does it")
    assert {line.split()[0] for line in out[1:-1]} == {"done", "failed"}
    said = ask("gc", shop.url)
    assert said["deleted"] is False
    assert garden.goes <= {each["path"] for each in said["removed"]}
    assert {path for path, when in before.items() if shop.files().get(path) != when} <= {shop.url}


def test_gc_deletes(shop, garden, call, ask):
    """With --delete what was said goes, and nothing else; a second time there is nothing."""
    said = ask("gc", shop.url)["removed"]
    done = ask("gc", shop.url, "--delete")
    assert done == {"deleted": True, "removed": said}
    assert {each["why"] for each in said} == {"its run was marked complete", "it never got a receipt"}
    assert all((shop.root / path).exists() for path in garden.stays)
    assert not any((shop.root / path).exists() for path in garden.goes)
    assert call("gc", shop.url, "--delete")[0] == [
        "0 things, 0 B, nothing may go: what is young, kept, in use, or of a run that was not complete stays"
    ]
    assert call("verify", shop.url)[0][0].startswith("4 partitions good")


def test_gc_grace(shop, call, ask):
    """What is younger than the grace period stays; a shorter one can be said."""
    shop.milestone("done", run="done")
    shop.run("done", complete=True)
    age(shop.url, 3600)
    assert ask("gc", shop.url, "--delete")["removed"] == []
    assert ask("gc", shop.url, "--delete", "--grace", "2h")["removed"] == []
    assert ask("gc", shop.url, "--delete", "--grace", "30m")["removed"]


def test_gc_beside_a_live_run(shop, call, ask):
    """What a live run uses stays, whatever the grace period."""
    shop.milestone("done", run="done")
    shop.run("done", complete=True)
    age(shop.url)
    shop.run("live", ended=False, uses=["done"])
    assert ask("gc", shop.url, "--delete", "--grace", "0")["removed"] == []


# -- rm ----------------------------------------------------------------------------------------------------------------


def test_rm_only_says(shop, call, ask):
    """Without --delete a milestone stays."""
    shop.milestone("m")
    before = shop.files()
    out, _ = call("rm", shop.url, "clean")
    assert "would be deleted; --delete does it" in out[-1]
    assert len(ask("rm", shop.url, "m")["removed"]) == 3
    assert {path for path, when in before.items() if shop.files().get(path) != when} <= {shop.url}


def test_rm_deletes(shop, call, ask):
    """A milestone is removed by name or by m, however young, and others are not."""
    shop.milestone("m")
    shop.milestone("n", "other")
    shop.milestone("o", "third")
    assert ask("rm", shop.url, "clean", "n", "--delete")["deleted"]
    assert [row["milestone"] for row in ask("ls", shop.url)] == ["o"]
    assert not list(shop.root.glob("*/[mn]"))
    _, err = call("rm", shop.url, "clean", "--delete", code=2)
    assert "has no milestone 'clean'; it has third" in err[0]


def test_rm_of_one_in_use(shop, call):
    """A milestone that a live run uses is not removed."""
    shop.milestone("m")
    shop.run("live", ended=False, uses=["m"])
    _, err = call("rm", shop.url, "clean", "--delete", code=2)
    assert err == ["Error: milestone 'm' is in use by run 'live', which lives; end that run first"]
    assert (shop.root / "milestones/m.json").exists()


def test_rm_is_refused_before_anything_is_gone(shop, call):
    """Where one of several milestones is in use, none is removed."""
    shop.milestone("a", "free")
    shop.milestone("m")
    shop.run("live", ended=False, uses=["m"])
    _, err = call("rm", shop.url, "free", "clean", "--delete", code=2)
    assert "'m' is in use" in err[0]
    assert call("verify", shop.url)[0][0].startswith("4 partitions good")


def test_rm_of_several(shop, call, ask):
    """Of several milestones of one name it must be said which, or that all are meant."""
    shop.milestone("m")
    shop.milestone("n")
    _, err = call("rm", shop.url, "clean", "--delete", code=2)
    assert err == ["Error: several milestones are named 'clean'; say which by their m, or take them --all"]
    assert ask("rm", shop.url, "m", "--delete")["deleted"]
    shop.milestone("o")
    assert ask("rm", shop.url, "clean", "--all", "--delete")["deleted"]
    assert ask("ls", shop.url) == []


def test_rm_of_an_xarray_object(shop, call, ask):
    """The variables of one object go together; two objects of one name are two."""
    for m, run, variable in (("a", "r1", "t"), ("b", "r1", "u"), ("c", "r2", "t")):
        shop.milestone(m, "weather", run=run, variable=variable, group=("g", 2))
    _, err = call("rm", shop.url, "weather", code=2)
    assert "several milestones are named 'weather'" in err[0]
    assert ask("rm", shop.url, "c", "--delete")["deleted"]
    assert {each["milestone"] for each in ask("rm", shop.url, "weather", "--delete")["removed"]} == {"a", "b"}


def test_rm_of_one_that_cannot_be_read(shop, call, ask):
    """A milestone whose description is damaged has no name any more, and can be removed by its m."""
    shop.milestone("m")
    (shop.root / "milestones/m.json").write_text("{")
    assert ask("rm", shop.url, "m", "--delete")["deleted"]
    assert not list(shop.root.glob("*/m*"))


# -- the real command --------------------------------------------------------------------------------------------------


def test_progress_goes_to_stderr(shop, monkeypatch, capfd):
    """Where somebody looks, a progress bar is shown, on stderr: stdout stays JSON."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    shop.milestone("m")
    with pytest.raises(SystemExit):
        cli.resilience(["verify", shop.url, "--json"])
    assert json.loads(capfd.readouterr().out)["good"] == 2


def test_entry_point_is_named():
    """Dask finds the command by the entry point that the distribution names."""
    body = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    assert body["project"]["entry-points"]["dask_cli"] == {"resilience": "dask_resilient.cli:resilience"}
    assert cli.resilience.name == "resilience"


def test_real_command(shop, require):
    """``dask resilience ls`` of the installed distribution shows a store, from any directory."""
    try:
        installed = distribution("dask-resilient").entry_points.select(group="dask_cli")
    except PackageNotFoundError:
        installed = ()
    if not installed:
        require("dask_resilient_as_an_installed_distribution")
    shop.milestone("m")
    program = shutil.which("dask", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    assert program
    done = subprocess.run(
        [program, "resilience", "ls", "store", "--json"],
        cwd=shop.root.parent,
        capture_output=True,
        text=True,
        check=True,
    )
    assert [row["milestone"] for row in json.loads(done.stdout)] == ["m"]
    failed = subprocess.run([program, "resilience", "ls", "typo"], capture_output=True, text=True, check=False)
    assert failed.returncode == 2
    assert failed.stderr.count("\n") == 1
