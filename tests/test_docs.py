"""What is documented works: code blocks run, every setting is documented, the README's commands are those of CI."""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
from click.testing import CliRunner

from dask_resilient import partitions
from dask_resilient.cli import resilience
from dask_resilient.core.cuda_errors import CudaRow
from dask_resilient.core.explaining import Resumption
from dask_resilient.core.manifest import Place
from dask_resilient.core.milestones import Description, Milestone
from dask_resilient.core.xid import XidRow
from dask_resilient.store import open_store

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^(?P<before>[^\n]*)\n```(?P<language>\w+)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
NOT_RUN = re.compile(r"<!-- not run: .+ -->")


def blocks(language):
    """Give the fenced blocks of all pages that are not marked as not run."""
    found = []
    for page in PAGES:
        text = page.read_text()
        for match in FENCE.finditer(text):
            if match["language"] == language and not NOT_RUN.fullmatch(match["before"]):
                line = text[: match.start("code")].count("\n") + 1
                found.append(pytest.param(match["code"], id=f"{page.relative_to(ROOT)}:{line}"))
    return found


def commands(page):
    """Give the lines of a page's shell blocks."""
    return [
        line
        for match in FENCE.finditer(page.read_text())
        if match["language"] == "sh"
        for line in match["code"].splitlines()
    ]


def run_script(script, folder):
    """Run a script in a folder, on a wide terminal, with the package of this checkout."""
    return subprocess.run(
        [sys.executable, script],
        cwd=folder,
        env={**os.environ, "COLUMNS": "160", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=290,
        check=False,
    )


@pytest.mark.parametrize("code", blocks("python"))
def test_python_block_runs(code, tmp_path):
    """A Python block on a page runs as a script, in an empty directory, without a warning of its own."""
    script = tmp_path / "block.py"
    script.write_text(code)
    done = run_script(script, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "ResilienceWarning" not in done.stderr


def test_every_fence_is_understood():
    """No fence is left open or written in a way that the tests above would pass over."""
    for page in PAGES:
        text = page.read_text()
        fences = re.findall(r"^```.*$", text, re.MULTILINE)
        assert len(fences) % 2 == 0, page
        known = len(FENCE.findall(text)) + len(re.findall(r"^```\n(?!```)(?:(?!^```).*\n)*?```$", text, re.MULTILINE))
        assert known >= sum(fence != "```" for fence in fences), page
        assert not re.search(r"^ +```|^```(py|Python|pycon)\b", text, re.MULTILINE), page


def test_links_between_pages_lead_somewhere():
    """A relative link on a page names a file that exists."""
    for page in PAGES:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.relative_to(ROOT)} links to {target}"


def flat(tree, prefix):
    """Give the dotted keys of a tree, with their values."""
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def test_every_setting_is_documented_with_its_default():
    """The table of settings has one row for each key of resilience.yaml, with its default, and no others."""
    defaults = dict(flat(yaml.safe_load((ROOT / "dask_resilient/resilience.yaml").read_text()), ""))
    rows = re.findall(
        r"^\| `(resilience\.[\w.-]+)` \| `([^`]+)` \|", (ROOT / "docs/reference/settings.md").read_text(), re.MULTILINE
    )
    assert {key: yaml.safe_load(value) for key, value in rows} == defaults
    assert len(rows) == len(defaults)


def test_every_field_of_a_row_that_can_be_changed_is_documented():
    """The page on health names each field that a file of rules may give a row, and no other."""
    text = " ".join((ROOT / "docs/health.md").read_text().split())
    said = re.search(r"Of a row of `xid` these can be changed: (.*?)Of a row of `cuda`: (.*?) A number that", text)
    words = {"kill", "task", "device", "unknown", "true", "false"}
    assert set(re.findall(r"`(\w+)`", said[1])) - words == set(XidRow.changeable)
    assert set(re.findall(r"`(\w+)`", said[2])) - words == set(CudaRow.changeable)


def test_supported_releases_of_dask_are_those_that_recovery_accepts():
    """The README names the oldest and the newest release of Dask that the detour is switched on for."""
    from dask_resilient.internals.versions import TESTED

    assert f"dask and distributed {TESTED[0]}" in (text := (ROOT / "README.md").read_text())
    assert f"to {TESTED[1]}" in text
    assert f"dask=={TESTED[0]}\ndistributed=={TESTED[0]}\n" in (ROOT / "tests/constraints-main.txt").read_text()


def test_ci_calls_the_test_command_of_the_readme():
    """CI runs, character for character, the line with which the README says that the tests pass."""
    (command,) = [line for line in commands(ROOT / "README.md") if "pytest" in line]
    assert command in (ROOT / ".ci/run").read_text().splitlines()


def test_readme_commands_are_one_line_each_and_name_what_exists():
    """The README has two commands; the files that they name are there."""
    lines = commands(ROOT / "README.md")
    assert len(lines) == 2
    for path in re.findall(r"[\w-]+/[\w./-]+\.(?:py|txt)", " ".join(lines)):
        assert (ROOT / path).is_file(), path


TOOLS = [line for page in PAGES for line in commands(page) if line.startswith("dask resilience")]


@pytest.mark.parametrize("line", TOOLS)
def test_a_command_line_of_ours_runs(line, tmp_path, monkeypatch):
    """Each `dask resilience` line on a page does what it says on a store that has what it names."""
    words = shlex.split(line)
    monkeypatch.chdir(tmp_path)
    store = open_store(words[3] if len(words) > 3 else "store", create=True)
    description = Description("squares", "array", 2, numblocks=(2,), chunks=((3, 3),))
    store.declare(Milestone("m0", "run", 1.0, description))
    for index in "01":
        facts = {"key": "k", "run": "run"}
        store.write(Place("m0", index, 0, f"a{index}"), partitions.stage(np.arange(3)), facts)
    store.journal("run", "resume-0", {"time": 1.0, **Resumption("squares", "m0", 2, "fingerprint").to_dict()})
    done = CliRunner().invoke(resilience, words[2:], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert done.stdout


def test_everything_public_is_documented():
    """Each public name that is no error has a place in the docs, and each public object a docstring."""
    import dask_resilient as dr

    text = "\n".join(page.read_text() for page in [*PAGES, ROOT / "CHANGELOG.md"])
    for name in dr.__all__:
        thing = getattr(dr, name)
        assert thing.__doc__, name
        if not (isinstance(thing, type) and issubclass(thing, (Exception, Warning))) and name not in {
            "Handle",
            "Report",
        }:
            assert re.search(rf"\b{name}\b", text), name


@pytest.mark.slow
def test_flights_example_reloads_what_was_lost_and_agrees_with_pandas(tmp_path):
    """The example loses a worker, reloads partitions, runs no saved function again, and gives what pandas gives."""
    done = run_script(ROOT / "examples/flights.py", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    table = [[cell.strip() for cell in line.split("│")[1:-1]] for line in done.stdout.splitlines() if "│" in line]
    rows = {label: (again, reloaded) for label, _, _, again, reloaded, _ in table}
    again, reloaded = rows["dask-resilient"]
    assert not {"flights", "daylight"} & set(again.split()), done.stdout
    assert int(reloaded) > 0
    assert {"flights,", "flights"} & set(rows["plain Dask"][0].split()), done.stdout


def test_the_page_for_operators_is_what_the_tables_say():
    """After a change of a table ``python docs/make_operators.py`` writes it anew."""
    import importlib.util

    spec = importlib.util.spec_from_file_location("make_operators", ROOT / "docs/make_operators.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.page() == (ROOT / "docs/operators.md").read_text()


def test_no_cell_of_the_page_for_operators_is_empty():
    """From a signal an operator sees what it means, and from a rule what it asks for, from where on, and what to do."""
    text = (ROOT / "docs/operators.md").read_text()
    assert not re.findall(r"^.*\|[ \t]*\|.*$", text, re.MULTILINE)
    asked = {row.split("|")[1].strip(): row.split("|")[3:6] for row in text.splitlines() if row.count("|") == 7}
    assert {name: re.findall(r"\*\*(\w+)\*\*", asked[name][0]) for name in ("slow-down", "silence", "work")} == {
        "slow-down": ["drain", "degrade"],
        "silence": ["evict", "doubt"],
        "work": ["degrade", "doubt", "observe"],
    }
    assert [cell.strip() for cell in asked["silence"][1:]] == [
        "suspect silence 15.0; hung silence 45.0; timeouts 2",
        "look at the host",
    ]
    assert [cell.strip() for cell in asked["work"][1:]] == ["slow down 2.0", "look at the job"]
    heads = re.sub(r"[^\w\n -]", "", "\n".join(re.findall(r"^##+ (.+)$", text, re.MULTILINE))).lower().replace(" ", "-")
    for anchor in re.findall(r"\]\(#([\w-]+)\)", text):
        assert anchor in heads.splitlines(), anchor


def test_every_name_that_a_decision_gives_as_its_rule_is_explained():
    """It is a rule, with a row behind a point or without, or has its line among the other names."""
    from dask_resilient.core import devices
    from dask_resilient.core.reasons import REASONS
    from dask_resilient.core.rules import RULES

    known = {*REASONS, *(rule.name for rule in RULES)}
    found = {"nothing-known"}
    for path in [*(ROOT / "dask_resilient/core").glob("*.py"), *(ROOT / "dask_resilient/scheduler").glob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Call(func=ast.Name(id="Cause"), args=[ast.Constant(value=name), *_]):
                    found.add(name)
                case ast.Call(func=ast.Name(id="Cause"), args=[ast.Name(id=constant), *_]):
                    found.add(getattr(devices, constant))
    assert found <= known
    assert {"operator", "culprit", "sign", "work.hang"} <= found
