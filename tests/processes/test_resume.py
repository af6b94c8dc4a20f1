"""A script that is run again goes on from what an earlier run of it has stored: as whole processes, with real signals.

Each run is a process of its own with a cluster of worker processes (`tests.processes.resuming`). It is killed with all
that it started, and its functions are held by files, so that a test decides how far it comes.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import re
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import psutil
import pytest
from click.testing import CliRunner

from dask_resilient.cli import resilience
from tests.support.processes import BAD
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[2]

N = 20

HELPER = """\
FACTOR = 3


def scale(block):
    return block * FACTOR


def clean(block):
    return scale(block) + 1
"""


BEAT = re.compile(
    r"^.* - distributed\.worker - ERROR - Failed to communicate with scheduler during heartbeat\.\n"
    r"(?:(?!\d{4}-\d\d-\d\d ).*\n?)*",
    re.MULTILINE,
)
"""What Dask says with a traceback where a worker closes during its heartbeat."""


@dataclass
class Place:
    """A directory with a store, a helper module, the gates, and what every run of the script does there."""

    where: Path
    kind: str = "array"
    n: int = N
    options: dict[str, Any] = field(default_factory=dict)
    started: list[Run] = field(default_factory=list)

    def __post_init__(self) -> None:
        for name in ("gates", "code", "data", "out"):
            (self.where / name).mkdir()
        self.edit(HELPER)
        if self.kind == "parquet":
            rows = np.arange(50)
            for i in range(self.n):
                frame = pd.DataFrame({"part": i, "key": rows % 7, "x": rows + 100.0 * i})
                frame.to_parquet(self.where / f"data/part.{i:02}.parquet")

    @property
    def store(self) -> Path:
        return self.where / "store"

    def edit(self, text: str) -> None:
        """Write the helper module that the script imports."""
        (self.where / "code/helper.py").write_text(text)

    def gate(self, name: str, first: int = 0) -> None:
        """Hold a function, but for as many partitions as are first in each run."""
        (self.where / "gates" / name).write_text("." * first)

    def free(self) -> None:
        """Let all go on."""
        for gate in (self.where / "gates").iterdir():
            gate.unlink()

    def start(self, **options: Any) -> Run:
        """Start the script."""
        run = Run(self, len(self.started), {**self.options, **options})
        self.started.append(run)
        return run

    def run(self, **options: Any) -> Run:
        """Run it to its end."""
        return self.start(**options).end()

    def receipts(self) -> dict[str, list[int]]:
        """Give the generations of the receipts that are there, by index, of the only milestone."""
        found: dict[str, list[int]] = {}
        for path in self.store.glob("commit/*/*.json"):
            index, generation = path.name.removesuffix(".json").rsplit(".", 1)
            found.setdefault(index, []).append(int(generation))
        return found

    def attempts(self) -> int:
        """Count the attempts that lie in the store."""
        return len(list(self.store.glob("data/*/*")))

    def sound(self) -> None:
        """Check the store: one receipt a partition, no tombstone, nothing damaged, nothing that nobody names."""
        names = [path.name for path in self.store.glob("commit/*/*.json")]
        assert all(name.endswith(".0.json") for name in names), names
        assert not list(self.store.glob("revoked/*/*.json"))
        result = CliRunner().invoke(resilience, ["verify", str(self.store)])
        assert result.exit_code == 0, result.output

    def lose(self, many: int) -> None:
        """Delete as many receipts."""
        for path in random.Random(7).sample(sorted(self.store.glob("commit/*/*.json")), many):
            path.unlink()

    def missing(self) -> Counter[int]:
        """Give the partitions without a receipt, each once."""
        return Counter(set(range(self.n)) - set(map(partition, self.receipts())))


class Run:
    """One run of the script."""

    def __init__(self, place: Place, number: int, options: dict[str, Any]) -> None:
        self.place = place
        self._calls = place.where / f"out/{number}.calls"
        self._calls.touch()
        self._out = place.where / f"out/{number}.json"
        self.log = place.where / f"out/{number}.log"
        asked = {"kind": place.kind, "n": place.n, "store": str(place.store), "out": str(self._out), **options}
        paths = [str(ROOT), str(place.where / "code")]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(paths),
            "PYTHONDONTWRITEBYTECODE": "1",  # an edit within a second, of the same size, would not be seen by Python
            "RESUMING_CALLS": str(self._calls),
            "RESUMING_GATES": str(place.where / "gates"),
            "RESUMING_DATA": str(place.where / "data"),
            "OMP_NUM_THREADS": "1",
        }
        with self.log.open("w") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.processes.resuming", json.dumps(asked)],
                cwd=place.where,
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def calls(self, name: str = "clean") -> Counter[int]:
        """Give how often a function has begun, by partition."""
        lines = [line.rpartition(" ") for line in self._calls.read_text().splitlines()]
        return Counter(int(i) for what, _, i in lines if what == name)

    def wait(self, condition: Any, what: str) -> None:
        """Wait for something while the script runs."""

        def ready() -> bool:
            assert self._process.poll() is None, self.text()
            return bool(condition())

        try:
            wait_until(ready, 60, what)
        except AssertionError as e:
            raise AssertionError(f"{e}\n{self.text()}") from None

    def everything(self) -> list[psutil.Process]:
        """Give the process and all that it has started."""
        process = psutil.Process(self._process.pid)
        return [process, *process.children(recursive=True)]

    def kill(self) -> None:
        """Kill it with all that it started, at once."""
        with contextlib.suppress(psutil.NoSuchProcess):
            alive = self.everything()
            self.signal(signal.SIGKILL)
            for each in alive:  # whoever made a session of its own
                with contextlib.suppress(psutil.NoSuchProcess):
                    each.kill()
            psutil.wait_procs(alive[1:], 20)
        self._process.wait(20)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process and all that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def end(self) -> Run:
        """Wait for its end, which is a good one."""
        try:
            code = self._process.wait(120)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"it does not end:\n{self.text()}") from None
        assert code == 0, self.text()
        text = BEAT.sub("", self.text())
        assert not [bad for bad in (*BAD, "Traceback") if bad in text], self.text()
        return self

    def text(self) -> str:
        return self.log.read_text()

    @property
    def told(self) -> dict[str, Any]:
        """What it wrote down in the end."""
        found: dict[str, Any] = json.loads(self._out.read_text())
        return found

    @property
    def sha256(self) -> str:
        """The digest of its result."""
        return str(self.told["sha256"])

    def explained(self, name: str = "clean") -> str:
        """What it said of a milestone."""
        return str(self.told["explain"][name])


@pytest.fixture
def make(tmp_path):
    """Make places, and leave no process behind."""
    places = []

    def make(kind: str = "array", n: int = N, **options: Any) -> Place:
        where = tmp_path / f"place-{len(places)}"
        where.mkdir()
        places.append(Place(where, kind, n, options))
        return places[-1]

    yield make
    for place in places:
        for run in place.started:
            run.kill()


@pytest.fixture(scope="session")
def clean_run(tmp_path_factory):
    """Give the digest of the result of a run that reuses nothing, each kind once."""
    known: dict[str, str] = {}

    def digest(kind: str) -> str:
        if kind not in known:
            run = Place(tmp_path_factory.mktemp("clean"), kind).run()
            assert "reused 0" in run.explained()
            assert run.calls() == Counter(range(N))
            known[kind] = run.sha256
        return known[kind]

    return digest


def stop_at(place: Place, many: int, **options: Any) -> Counter[int]:
    """Run the script until so many partitions are durable and others begun, kill it, and give what is missing."""
    run = get_to(place, many, **options)
    run.kill()
    place.free()
    return place.missing()


def get_to(place: Place, many: int, **options: Any) -> Run:
    """Run the script until so many partitions are durable, or a few more, and a thread is held in a function.

    A save is a task of its own: that of one partition may stand behind the function that is held for another one.
    """
    slots = options.get("workers", 2) * options.get("threads", 1)
    place.gate("clean", many + slots)
    run = place.start(**options)
    run.wait(lambda: len(place.receipts()) >= many and len(run.calls()) > many + slots, f"{many} durable, others begun")
    return run


def reused(missing: Counter[int]) -> str:
    """Give what a run says that takes all that is there."""
    return f"clean: reused {N - len(missing)} of {N}; {len(missing)} not reused: not stored"


def partition(index: str) -> int:
    """Give the number of a partition by its index: of a matrix of one row of blocks, the column counts."""
    return int(index.rpartition(".")[2])


# -- killed, and run again ---------------------------------------------------------------------------------------------


def by_hand() -> str:
    """Give the digest of the result of the job on arrays, worked out without Dask."""
    blocks = [((np.arange(5_000) + 1000.0 * i) * 3 + 1) ** 2 for i in range(N)]
    return hashlib.sha256(np.concatenate(blocks).tobytes()).hexdigest()


def test_killed_at_sixty_percent_and_run_again(make):
    """Functions run again for what was not durable and for nothing else, and the bytes are right."""
    place = make()
    missing = stop_at(place, 12)
    second = place.run()
    assert second.calls() == second.calls("read") == missing
    assert second.explained() == reused(missing)
    assert second.sha256 == by_hand()
    place.sound()


@pytest.mark.slow
def test_a_third_run_computes_nothing(make, clean_run):
    """Once the second one has stored what was missing; all have the bytes of a clean run."""
    place = make()
    stop_at(place, 12)
    second = place.run()
    third = place.run()
    assert not third.calls()
    assert not third.calls("read")
    assert third.explained() == "clean: reused 20 of 20"
    assert second.sha256 == third.sha256 == clean_run("array") == by_hand()
    place.sound()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_killed_at_any_moment(make, clean_run, seed):
    """Whenever it is killed, twice: the right bytes, and no function for a partition that has a receipt."""
    place = make()
    chosen = random.Random(seed)
    moments = {
        "begun": lambda run: sum(run.calls().values()),
        "attempts": lambda run: place.attempts(),
        "receipts": lambda run: len(place.receipts()),
    }
    for _ in range(2):
        what, share = chosen.choice(sorted(moments)), chosen.random()
        run = place.start()
        before = moments[what](run)
        least = before + round(share * (N - 1 - before))
        with contextlib.suppress(AssertionError):  # it may have ended
            run.wait(lambda: moments[what](run) > least, f"{what} > {least}")  # noqa: B023
        run.kill()
    missing = place.missing()
    last = place.run()
    assert last.calls() == missing
    assert last.sha256 == clean_run("array")
    place.sound()


@pytest.mark.slow
def test_an_edit_of_a_function_two_calls_deep(make, clean_run):
    """Everything is computed anew, the line that says why names the function, and the old ones are found again."""
    place = make()
    first = place.run()
    place.edit(HELPER.replace("block * FACTOR", "block * FACTOR * 2"))
    second = place.run()
    assert second.calls() == second.calls("read") == Counter(range(N))
    assert second.sha256 != first.sha256 == clean_run("array")
    assert second.explained() == "clean: reused 0 of 20; 20 not reused: function helper.scale changed (line 4)"
    place.edit(HELPER)
    third = place.run()
    assert not third.calls()
    assert third.sha256 == first.sha256


@pytest.mark.slow
def test_an_edit_of_a_constant_says_both_values(make):
    """Everything is computed anew, and the line names the constant with its old and its new value."""
    place = make()
    place.run()
    place.edit(HELPER.replace("FACTOR = 3", "FACTOR = 4"))
    second = place.run()
    assert second.calls() == Counter(range(N))
    assert second.explained() == "clean: reused 0 of 20; 20 not reused: value helper.FACTOR changed from 3 to 4"


def test_seven_of_twenty_are_missing(make):
    """Seven receipts are gone: seven are computed."""
    place = make()
    first = place.run()
    place.lose(7)
    missing = place.missing()
    assert len(missing) == 7
    second = place.run()
    assert second.calls() == second.calls("read") == missing
    assert second.explained() == "clean: reused 13 of 20; 7 not reused: not stored"
    assert second.sha256 == first.sha256
    place.sound()


@pytest.mark.slow
@pytest.mark.parametrize("before", [(1, 1), (3, 2)])
@pytest.mark.parametrize("after", [(1, 3), (3, 1)])
def test_on_a_cluster_of_another_size(make, clean_run, before, after):
    """What one size has stored another one takes."""
    place = make()
    missing = stop_at(place, 9, workers=before[0], threads=before[1])
    second = place.run(workers=after[0], threads=after[1])
    assert second.calls() == missing
    assert second.sha256 == clean_run("array")
    place.sound()


# -- several runs on one store -----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("stored", [0, 9])
def test_two_runs_at_once(make, clean_run, stored):
    """Both are right; no partition has two receipts; the loser of each pair deletes its own attempt."""
    place = make()
    missing = stop_at(place, stored) if stored else Counter(range(N))
    cut_off = place.attempts() - len(place.receipts())  # one that is killed leaves what it was writing
    place.gate("clean")
    runs = [place.start(), place.start()]
    for run in runs:
        run.wait(lambda run=run: run.calls(), "it has begun")
    place.free()
    for run in runs:
        run.end()
        assert run.sha256 == clean_run("array")
        assert max(run.calls().values()) == 1
        assert f"reused {N - len(missing)} of {N}" in run.explained()
    place.sound()
    assert place.attempts() == N + cut_off


@pytest.mark.slow
@pytest.mark.parametrize("durable", [0, 6])
def test_a_run_that_stops_and_is_overtaken(make, clean_run, durable):
    """All its processes stop, another run completes, it goes on: both are right, nothing is damaged."""
    place = make()
    slow = get_to(place, durable)
    slow.signal(signal.SIGSTOP)
    wait_until(
        lambda: all(each.status() == psutil.STATUS_STOPPED for each in slow.everything()), 20, "all have stopped"
    )
    missing = place.missing()
    place.free()
    fast = place.run()
    assert fast.calls() == missing
    place.sound()
    slow.signal(signal.SIGCONT)
    slow.end()
    assert slow.sha256 == fast.sha256 == clean_run("array")
    place.sound()
    assert place.attempts() == N


# -- other jobs --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_frame_of_files_whose_keys_are_new_in_each_process(make, clean_run):
    """`dd.read_parquet` draws its keys anew in each process: what is stored is known again all the same."""
    place = make("parquet")
    missing = stop_at(place, 12)
    second = place.run()
    assert second.calls() == missing
    assert second.sha256 == clean_run("parquet")
    place.sound()
    rows = pd.DataFrame({"part": 3, "key": 1, "x": np.arange(50.0)})
    rows.to_parquet(place.where / "data/part.03.parquet")
    third = place.run()
    assert third.calls() == Counter(range(N))
    assert re.fullmatch(r"clean: reused 0 of 20; 20 not reused: input \S+/data changed.*", third.explained())


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["array", "parquet"])
def test_a_version_is_your_word(make, kind):
    """With ``version=`` what is stored is taken although a function was edited; under another version nothing is."""
    place = make(kind, version="2")
    missing = stop_at(place, 12)
    place.edit(HELPER.replace("+ 1", "+ 2"))
    second = place.run()
    assert second.calls() == missing
    third = place.run(version="3")
    assert third.calls() == Counter(range(N))


@pytest.mark.slow
def test_a_version_is_your_word_and_what_changed_is_said(make):
    """Where partitions are taken on that word although a function was edited, the line says so."""
    place = make(version="2")
    place.run()
    place.edit(HELPER.replace("+ 1", "+ 2"))
    second = place.run()
    words = "clean: reused 20 of 20, on your word (version '2'), although function helper.clean changed (line 8)"
    assert second.explained() == words


@pytest.mark.slow
def test_by_name_alone(make, clean_run):
    """With resume="name" what is stored under the name is taken, although a function was edited."""
    place = make(resume="name")
    missing = stop_at(place, 12)
    second = place.run()
    assert second.calls() == missing
    assert second.sha256 == clean_run("array")
    place.edit(HELPER.replace("+ 1", "+ 2"))
    third = place.run()
    assert not third.calls()
    assert third.sha256 == second.sha256
    place.sound()


@pytest.mark.slow
def test_switched_off_nothing_is_reused(make, clean_run):
    """With resume="off" every run computes everything, and writes beside what is there."""
    place = make()
    missing = stop_at(place, 12)
    for _ in range(2):
        run = place.run(resume="off")
        assert run.calls() == Counter(range(N))
        assert run.sha256 == clean_run("array")
    assert len(list(place.store.glob("commit/*/*.json"))) == 3 * N - len(missing)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["rechunked", "shuffled"])
def test_a_shuffle_below_and_above(make, clean_run, kind):
    """What a P2P shuffle made is taken from the store; one of which something is missing runs again, whole."""
    place = make(kind)
    place.gate("clean", 12)
    first = place.start()
    first.wait(lambda: len(first.calls()) > 12, "what comes out of the shuffle is cleaned")
    first.kill()
    place.free()
    missing = place.missing()
    second = place.run()
    assert second.calls() == missing
    place.lose(7)
    missing = place.missing()
    third = place.run()
    assert third.calls() == missing
    assert third.calls("read") == Counter(range(N))
    fourth = place.run()
    assert not fourth.calls()
    assert not fourth.calls("read")
    assert second.sha256 == third.sha256 == fourth.sha256 == clean_run(kind)
    place.sound()


@pytest.mark.slow
def test_a_milestone_that_is_persisted_and_one_above_it(make, clean_run):
    """A second milestone on the futures of the first one is known again, too, and both are taken."""
    place = make("persisted")
    place.gate("more", 12)
    first = place.start()
    first.wait(lambda: len(first.calls("more")) > 12, "the second milestone is under way")
    first.kill()
    place.free()
    left = 2 * N - len(list(place.store.glob("commit/*/*.json")))
    second = place.run()
    assert not second.calls()
    assert sum(second.calls("more").values()) == len(second.calls("more")) == left
    assert second.explained("clean") == "clean: reused 20 of 20"
    assert f"top: reused {N - left} of 20" in second.explained("top")
    (top,) = (path.stem for path in place.store.glob("milestones/*.json") if '"name": "top"' in path.read_text())
    for i in range(7):
        (place.store / f"commit/{top}/{i}.0.json").unlink()
    third = place.run()
    assert not third.calls()
    assert third.calls("more") == Counter(range(7))
    assert third.explained("top") == "top: reused 13 of 20; 7 not reused: not stored"
    assert second.sha256 == third.sha256 == clean_run("array")
    place.sound()
