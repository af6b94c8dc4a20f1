"""Loops in processes that are killed: an interrupted and an uninterrupted one end in the same bits."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dask_resilient.cli import resilience
from dask_resilient.store import open_archive

JOB = Path(__file__).with_name("looping.py")
ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.slow


def run(path, die_at=None, store="store"):
    """Run the job, and give the steps that it ran and its last state."""
    env = {**os.environ, "PYTHONPATH": str(ROOT)} | ({} if die_at is None else {"DIE_AT": str(die_at)})
    done = subprocess.run(
        [sys.executable, JOB, store],
        cwd=path,
        env=env,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        start_new_session=True,
    )
    assert done.returncode == (0 if die_at is None else -9), done.stderr
    lines = done.stdout.splitlines()
    steps = [int(line.split()[1]) for line in lines if line.startswith("step")]
    return steps, next((line for line in lines if line.startswith("state")), None), done.stderr


def snapshots(store):
    """Give the steps of the snapshots that are there, and the m of the loop."""
    archive = open_archive(store)
    (loop,) = [each for each in archive.milestones() if each.description.kind == "loop"]
    return sorted(int(index.split(".")[0]) for index in archive.listing(loop.milestone).valid()), loop.milestone


@pytest.fixture(scope="module")
def clean(tmp_path_factory):
    """Give the last state of a run that nothing interrupted."""
    steps, state, _ = run(tmp_path_factory.mktemp("clean"))
    assert steps == list(range(9))
    return state


def test_a_loop_that_is_killed_again_and_again_goes_on_at_its_last_snapshot(tmp_path, clean):
    """After 4, 5 and 8 steps, everything at once: each run goes on after the last one that is complete."""
    assert run(tmp_path, die_at=3)[0] == [0, 1, 2, 3]
    assert run(tmp_path, die_at=4)[0] == [2, 3, 4]
    assert run(tmp_path, die_at=7)[0] == [4, 5, 6, 7]
    steps, state, _ = run(tmp_path)
    assert steps == [6, 7, 8]
    assert state == clean
    assert snapshots(tmp_path / "store")[0] == [5, 7, 8]  # the last run's first state may be read from that of step 5
    assert run(tmp_path)[:2] == ([], clean)


def test_a_damaged_snapshot_is_passed_over(tmp_path, clean):
    """The loop goes on one snapshot earlier, says so, and ends in the same bits; nothing of it is left damaged."""
    run(tmp_path, die_at=4)
    store = tmp_path / "store"
    found, m = snapshots(store)
    assert found == [1, 3]
    (part,) = (store / "data").glob(f"{m}.3.0.*")
    (chunk,) = part.glob("0-*/0")
    raw = bytearray(chunk.read_bytes())
    raw[0] ^= 1
    chunk.write_bytes(raw)
    steps, state, said = run(tmp_path)
    assert steps == list(range(2, 9))
    assert state == clean
    assert "could not restore its snapshot after step 3" in said
    assert "goes on after step 1" in said


def test_a_snapshot_that_was_not_committed_does_not_exist(tmp_path, clean):
    """Its collections are durable and its state is not: the loop goes on before it."""
    run(tmp_path, die_at=4)
    store = tmp_path / "store"
    _, m = snapshots(store)
    (store / "commit" / m / "3.0.0.json").unlink()
    steps, state, _ = run(tmp_path)
    assert steps == list(range(2, 9))
    assert state == clean


def test_an_edit_of_the_body_begins_anew_and_says_why(tmp_path):
    """A constant that the body reads."""
    job = tmp_path / "job.py"
    text = JOB.read_text()
    job.write_text(text)
    env = {**os.environ, "PYTHONPATH": str(ROOT)}

    def steps():
        command = [sys.executable, job, "store"]
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=240, check=True)
        return [line for line in done.stdout.splitlines() if line.startswith("step")], done.stderr

    assert len(steps()[0]) == 9
    assert len(steps()[0]) == 0
    job.write_text(text.replace("0, 1e-3", "0, 1e-4"))
    ran, said = steps()
    assert len(ran) == 9
    assert "loop 'kmeans' begins at step 0: function __main__.update changed (line" in said


def test_the_store_is_sound_behind_it(tmp_path):
    """Verify and the listing know loops; a stored loop is no collection."""
    from click.testing import CliRunner

    import dask_resilient as dr

    run(tmp_path)
    store = str(tmp_path / "store")
    assert CliRunner().invoke(resilience, ["verify", store]).exit_code == 0
    listed = CliRunner().invoke(resilience, ["ls", store]).stdout
    assert "kmeans" in listed
    assert "loop" in listed
    with pytest.raises(dr.NotStored, match="'kmeans' is a loop"):
        dr.open(store, "kmeans")
