"""Real processes that are killed at any moment, or race for one place, leave whole partitions or none."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from dask_resilient.core.manifest import Place
from dask_resilient.errors import Foreign
from dask_resilient.store import open_archive, open_store
from dask_resilient.store.garbage import Collector
from tests.store import stopped
from tests.support.store_life import FACTS, content


@pytest.fixture
def store(room):
    """Give a store in memory, where a process can do most between two kills."""
    return open_store(room / "store", create=True)


def run(store, command, *words):
    """Run the program beside this file, and give its lines."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run(
        [sys.executable, stopped.__file__, command, store.url, *map(str, words)],
        env=environment,
        capture_output=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    return [json.loads(line) for line in done.stdout.splitlines()]


def receipts(store, milestone):
    """Give the places that have a receipt, by index and generation, and whether they are revoked."""
    for path in Path(store.url, "commit", milestone).glob("*.json"):
        if not path.name.startswith("."):
            index, generation, _ = path.name.rsplit(".", 2)
            is_revoked = Path(store.url, "revoked", milestone, path.name).exists()
            yield Place(milestone, index, int(generation), "unknown"), is_revoked


def leftovers(store):
    """Name every draft, and every attempt that no receipt names, once garbage is collected, however young it is."""
    collector = Collector(open_archive(store.url), delete=True, idle=0.0)
    for milestone in collector.milestones():
        list(collector.collect(milestone, -1.0))
    list(collector.sweep_root(-1.0))
    root = Path(store.url)
    named = {
        store.winner(place).place.data for path in root.glob("commit/*") for place, _ in receipts(store, path.name)
    }
    attempts = {str(path.relative_to(root)) for path in root.glob("data/*/*")}
    return (attempts ^ named) | {str(path) for path in root.rglob(".*") if path.is_file()}


@pytest.mark.parametrize("operation", stopped.OPERATIONS)
def test_process_is_killed_at_any_call(store, operation):
    """Killed at any system call: what has a receipt is whole, and whatever was begun can be done again."""
    lines = run(store, "killed", operation)
    assert [line["code"] for line in lines] == [-signal.SIGKILL] * (len(lines) - 1) + [0]
    assert len(lines) > 6
    found = []
    for line in lines:
        place = Place.from_dict(line["place"])
        milestone = place.milestone
        valid = [each.generation for each, is_revoked in receipts(store, milestone) if not is_revoked]
        found.append(valid)
        assert len(valid) <= 1
        for generation in valid:
            at = replace(place, generation=generation, attempt="ab"[generation])
            assert store.read(at, "k")[1].tobytes() == bytes([7 + generation]) * 1000
        done_again(store, operation, place)
    ends = {"write": ([], [0]), "revoke": ([0], []), "write_after": ([], [1]), "declare": ([], [])}
    assert (found[0], found[-1]) == ends[operation]
    assert len([n for n in range(1, len(found)) if found[n] != found[n - 1]]) == (operation != "declare")


def done_again(store, operation, place):
    """Do an operation that a killed process had begun."""
    if operation == "declare":
        stopped.declare(store.url, place, 10**6)
        assert open_archive(store.url).milestone(place.milestone).description.npartitions == 2
        return
    if operation == "revoke":
        store.revoke(place, "differs")
    generation = 0 if operation == "write" else 1
    at = replace(place, generation=generation, attempt="next")
    try:
        store.write(at, stopped.staged(9), FACTS)
        assert store.read(at, "k")[1].tobytes() == bytes([9]) * 1000
    except FileExistsError:
        assert store.winner(at) is not None


def judge_killed(store, rounds, seed):
    """Kill a writer at random times; give how many partitions were promised in all."""
    total = 0
    for line in run(store, "loop", rounds, seed):
        milestone = f"n{line['n']}"
        assert line["code"] == -signal.SIGKILL
        assert line["saved"] == list(range(len(line["saved"])))
        found = {int(place.index) for place, _ in receipts(store, milestone)}
        # Between the last promise that was heard and the kill, at most one more was made.
        assert set(line["saved"]) <= found <= {*line["saved"], len(line["saved"])}
        for index in found:
            staged = stopped.staged(index % 251, 1 + 977 * (index % 40))
            assert store.read(Place(milestone, f"{index}", 0, "a"), "k")[1].tobytes() == content(staged)
        under_way = Place(milestone, f"{max(found) + 1}", 0, "next")
        store.write(under_way, stopped.staged(1), FACTS)
        assert store.read(under_way, "k")[1].tobytes() == bytes([1]) * 1000
        total += len(line["saved"])
    assert not leftovers(store)
    return total


def test_writer_is_killed_at_random_times(store):
    """Nothing valid-looking is wrong after a kill, what was promised is there, and the next save succeeds."""
    assert judge_killed(store, 20, 0) > 40


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_writer_is_killed_two_hundred_times(store, seed):
    """The same, many times over."""
    assert judge_killed(store, 200, seed) > 400


def judge_race(store, writers, rounds, *, deaths):
    """Let writers race, and judge each round; `deaths` seeds which of them are killed under way, 0 = none."""
    lines = run(store, "race", writers, rounds, deaths)
    assert len(lines) == rounds
    for line in lines:
        codes = line["codes"]
        place = Place("race", str(line["n"]), 0, "unknown")
        won = [who for who, code in enumerate(codes) if code == 0]
        assert len(won) <= 1
        assert set(codes) <= ({0, 17, -signal.SIGKILL} if deaths else {0, 17})
        receipt = store.winner(place)
        if not deaths:
            assert won
            assert {p.name for p in Path(store.url, "data/race").glob(f"{line['n']}-*")} == {f"{line['n']}-w{won[0]}"}
        if receipt is None:
            assert codes == [-signal.SIGKILL] * writers
            store.write(replace(place, attempt="next"), stopped.staged(77), FACTS)
            continue
        who = int(receipt.place.attempt[1:])
        assert won in ([who], [])
        for reader in range(writers):
            at = replace(place, attempt=f"w{reader}")
            if reader == who:
                assert store.read(at, "k")[1].tobytes() == bytes([who]) * 1000
            else:
                with pytest.raises(Foreign):
                    store.read(at, "k")
    assert not leftovers(store)


@pytest.mark.parametrize("deaths", [0, 9])
@pytest.mark.parametrize("writers", [2, 4, 8])
def test_writers_race(store, writers, deaths):
    """Of several writers of one generation at most one wins; its copy is the one that is read; nothing else is left."""
    judge_race(store, writers, 5, deaths=deaths)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(1, 6))
@pytest.mark.parametrize("deaths", [False, True])
@pytest.mark.parametrize("writers", [2, 4, 8])
def test_writers_race_five_hundred_times(store, writers, deaths, part):
    """The same, many times over, in parts that a slow machine ends in time."""
    judge_race(store, writers, 100, deaths=part * deaths)
