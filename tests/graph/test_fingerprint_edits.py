"""A collection is known again in another process, and is another one after each edit that matters."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import dask.array as da
import numpy as np
import pandas as pd
import pytest

MAIN = """
import sys
import dask, dask.array as da, dask.bag as db, dask.dataframe as dd, numpy as np, pandas as pd
from functools import partial
from dask_resilient.graph.fingerprint import fingerprint
import etl

def own(block, n=etl.N):
    return etl.clean(block) * n

frame = pd.DataFrame({"a": range(20), "b": [f"x{i}" for i in range(20)]})
df = dd.from_pandas(frame, npartitions=2)
x = da.from_array(np.arange(40.0).reshape(8, 5), chunks=(4, 5))
files = sys.argv[1]
CASES = {
    "from_array": lambda: x,
    "map_blocks": lambda: x.map_blocks(own),
    "lambda": lambda: x.map_blocks(lambda b: etl.clean(b) + 1),
    "set constant": lambda: x.map_blocks(lambda b: b if b.ndim in {1, 2, 3} else 0),
    "sets": lambda: dask.delayed(len, pure=True)({"a", "b", "c", "d"}),
    "partial": lambda: x.map_blocks(partial(own, n=5)),
    "bound method": lambda: x.map_blocks(etl.Model(3).apply),
    "blockwise": lambda: da.blockwise(etl.near, "ij", x, "ij", dtype=float),
    "rechunk": lambda: x.rechunk((2, 5)).sum(axis=0),
    "seeded random": lambda: da.random.default_rng(7).normal(size=(8, 5), chunks=4) + 1,
    "seeded state": lambda: da.random.RandomState(7).normal(size=(8, 5), chunks=4) + 1,
    "from_pandas": lambda: df,
    "map_partitions": lambda: df.map_partitions(etl.frame),
    "merge": lambda: df.merge(df.assign(c=1)[["a", "c"]], on="a"),
    "shuffle": lambda: df.shuffle("a"),
    "groupby": lambda: df.groupby("b").a.mean(),
    "from_map": lambda: dd.from_map(etl.make, [1, 2, 3]),
    "from_delayed": lambda: dd.from_delayed([dask.delayed(etl.make, pure=True)(i) for i in (1, 2)], meta=etl.make(0)),
    "read_parquet": lambda: dd.read_parquet(files + "/p").a + 1,
    "read_csv": lambda: dd.read_csv(files + "/c.csv").a + 1,
    "from_zarr": lambda: da.from_zarr(files + "/z") + 1,
    "from_npy_stack": lambda: da.from_npy_stack(files + "/n") + 1,
    "bag": lambda: db.from_sequence(range(10), npartitions=2).map(etl.clean),
    "delayed": lambda: dask.delayed(etl.clean, pure=True)(3),
    "delayed of a path": lambda: dask.delayed(etl.load, pure=True)(files + "/c.csv"),
}
for name in sys.argv[2:] or CASES:
    found = fingerprint(CASES[name]())
    print(f"{name}: {found.digest} {list(found.reasons)}")
"""

ETL = """
import numpy as np
import pandas as pd
from deep import far

N = 3
UNUSED = 1

def near(block):
    return far(block)

def clean(block):
    \"\"\"Make it clean.\"\"\"
    done = near(block)  # a comment
    return done + N

def frame(df):
    return df.assign(d=clean(df.a))

def make(i):
    return pd.DataFrame({"a": [i, N]})

def load(path):
    return open(path).read()

class Model:
    rate = 0.5

    def __init__(self, k):
        self.k = k

    def apply(self, block):
        return block * self.k * self.rate
"""

DEEP = """
def far(block):
    return block * 2
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Path:
    """Give a directory with inputs."""
    where = tmp_path_factory.mktemp("files")
    frame = pd.DataFrame({"a": range(20), "b": "x"})
    (where / "p").mkdir()
    frame[:10].to_parquet(where / "p" / "part.0.parquet")
    frame[10:].to_parquet(where / "p" / "part.1.parquet")
    frame.to_csv(where / "c.csv")
    x = da.from_array(np.arange(40.0).reshape(8, 5), chunks=(4, 5))
    da.to_zarr(x, str(where / "z"))
    da.to_npy_stack(str(where / "n"), x)
    return where


@pytest.fixture
def script(tmp_path, files):
    """Give a function that runs the script, in another process and maybe another directory, and gives its lines."""
    (tmp_path / "main.py").write_text(textwrap.dedent(MAIN))
    (tmp_path / "etl.py").write_text(ETL)
    (tmp_path / "deep.py").write_text(DEEP)
    root = str(Path(__file__).parents[2])

    def run(*names: str, seed: int = 0, cwd: Path = tmp_path) -> dict[str, str]:
        environment = {**os.environ, "PYTHONHASHSEED": str(seed), "PYTHONPATH": f"{root}:{tmp_path}"}
        done = subprocess.run(
            [sys.executable, str(tmp_path / "main.py"), str(files), *names],
            env=environment,
            cwd=cwd,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        return dict(line.split(": ", 1) for line in done.stdout.splitlines())

    run.where = tmp_path  # type: ignore[attr-defined]
    return run


def test_it_is_the_same_in_every_process(script, tmp_path_factory):
    """Whatever the seed of hashes and the working directory, for each way to make a collection; all can be pinned."""
    first = script(seed=1)
    assert {name: line for name, line in first.items() if not line.endswith("[]")} == {}
    assert len(set(first.values())) == len(first)
    for seed in (2, 3):
        assert script(seed=seed, cwd=tmp_path_factory.mktemp("elsewhere")) == first


def one_fast(table):
    """Make parameters of a table; all but the first are slow tests, a process or two each."""
    return [
        pytest.param(value, id=name, marks=() if n == 0 else pytest.mark.slow)
        for n, (name, value) in enumerate(table.items())
    ]


EDITS = {
    "the function": ("etl.py", "return done + N", "return done - N"),
    "a function two calls deep": ("deep.py", "block * 2", "block * 3"),
    "a constant of the module": ("etl.py", "N = 3", "N = 4"),
    "a default": ("main.py", "n=etl.N", "n=4"),
}
ATTRIBUTES = {
    "a class attribute": ("etl.py", "rate = 0.5", "rate = 0.25"),
    "an instance attribute": ("main.py", "etl.Model(3)", "etl.Model(4)"),
    "a method": ("etl.py", "* self.k *", "+ self.k *"),
}
HARMLESS = {
    "a comment": ("etl.py", "# a comment", "# another one"),
    "a docstring": ("etl.py", "Make it clean.", "Make it cleaner than it was."),
    "a local variable": ("etl.py", "done", "finished"),
    "lines above": ("etl.py", "import numpy as np", "import numpy as np\n\n\n"),
    "a constant that nobody reads": ("etl.py", "UNUSED = 1", "UNUSED = 2"),
}


def edit(where: Path, file: str, old: str, new: str) -> None:
    text = (where / file).read_text()
    assert old in text
    (where / file).write_text(text.replace(old, new))


@pytest.mark.parametrize("change", one_fast(EDITS))
def test_an_edit_makes_another_one(change, script):
    before = script("map_blocks")
    edit(script.where, *change)
    assert script("map_blocks") != before


@pytest.mark.parametrize("change", one_fast(ATTRIBUTES))
def test_an_edit_of_an_object_makes_another_one(change, script):
    before = script("bound method")
    edit(script.where, *change)
    assert script("bound method") != before


@pytest.mark.slow
def test_an_argument_of_a_partial_counts(script):
    before = script("partial")
    edit(script.where, "main.py", "partial(own, n=5)", "partial(own, n=6)")
    assert script("partial") != before


@pytest.mark.parametrize("change", one_fast(HARMLESS))
def test_an_edit_that_changes_no_result_changes_nothing(change, script):
    before = script("map_blocks", "map_partitions", "bound method")
    edit(script.where, *change)
    assert script("map_blocks", "map_partitions", "bound method") == before


FILES = ("read_parquet", "read_csv", "from_zarr", "from_npy_stack", "delayed of a path")


@pytest.mark.parametrize("name", one_fast(dict(zip(FILES, FILES, strict=True))))
def test_a_file_that_was_written_anew_counts(name, script, files):
    before = script(name)
    now = time.time_ns()
    for file in files.rglob("*"):
        if file.is_file():
            os.utime(file, ns=(now, now))
    assert script(name) != before


LATE = """
import dask
from dask_resilient.graph.fingerprint import fingerprint
{first}

def task(x):
    import near
    return near.clean(x)

found = fingerprint(dask.delayed(task, pure=True)(1))
print(found.digest if found.pinned else "none", list(found.reasons))
"""


@pytest.mark.parametrize(
    ("first", "edited"),
    [("", "near"), ("import near", "far")],
    ids=["not imported where the graph is made", "what the module imports in turn"],
)
def test_an_edit_of_a_module_that_is_imported_when_the_function_runs(tmp_path, first, edited):
    """It makes another one, or there is none; else an old partition would be taken for a new one."""
    root = str(Path(__file__).parents[2])
    (tmp_path / "main.py").write_text(LATE.format(first=first))
    (tmp_path / "near.py").write_text("from far import scale\n\ndef clean(x):\n    return scale(x) + 1\n")
    (tmp_path / "far.py").write_text("def scale(x):\n    return x * 1\n")
    seen = []
    for new in ("1", "22"):
        edit(tmp_path, f"{edited}.py", "1", new)
        done = subprocess.run(
            [sys.executable, "-B", str(tmp_path / "main.py")],
            env={**os.environ, "PYTHONPATH": root},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        seen.append(done.stdout.split()[0])
    assert seen[0] != seen[1] or seen[0] == "none"


SWAPPED = """
import dask
from dask_resilient.graph.fingerprint import fingerprint

ONE, TWO = {names}

def f(x):
    return open(ONE).read() + 2 * open(TWO).read()

print(fingerprint(dask.delayed(f, pure=True)(1)).digest)
"""


def test_two_files_that_change_places_are_seen(tmp_path):
    """The same files, each under the other's constant."""
    root = str(Path(__file__).parents[2])
    seen = []
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text(name)
    for names in ('"a.txt", "b.txt"', '"b.txt", "a.txt"'):
        (tmp_path / "main.py").write_text(SWAPPED.format(names=names))
        command = [sys.executable, "-B", str(tmp_path / "main.py")]
        env = {**os.environ, "PYTHONPATH": root}
        done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True)
        seen.append(done.stdout)
    assert seen[0] != seen[1]
