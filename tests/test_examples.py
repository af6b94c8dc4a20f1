"""The examples: what the one on photographs works out and costs, one that is killed and run again; their page."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs/examples.md"


@pytest.fixture
def photographs(monkeypatch):
    """Import what the example works out, as the script itself does."""
    monkeypatch.syspath_prepend(ROOT / "examples")
    import photographs

    yield photographs
    del sys.modules["photographs"]


def run_images(folder, *options, **environment):
    """Run the example on photographs."""
    return run_example("images", folder, *options, **environment)


def run_example(name, folder, *options, **environment):
    """Run an example in a folder, on a wide terminal, with the package of this checkout."""
    return subprocess.run(
        [sys.executable, ROOT / f"examples/{name}.py", *options],
        cwd=folder,
        env={**os.environ, "COLUMNS": "160", "PYTHONPATH": os.pathsep.join([str(ROOT), str(folder)]), **environment},
        capture_output=True,
        text=True,
        timeout=290,
        check=False,
    )


def noise(shape):
    """Give a picture of random brightness, the same each time."""
    return np.random.default_rng(7).random(shape, np.float32)


@pytest.mark.parametrize("step", ["denoise", "lift"])
def test_tiles_that_overlap_give_what_the_whole_photograph_gives(photographs, monkeypatch, step):
    """The rim that a step sees of the neighbours of a tile is wide enough: no seams."""
    monkeypatch.setattr(photographs, "TILE", 48)
    function = getattr(photographs, step)
    depth = photographs.DEPTH[function]
    picture = photographs.NOISE * noise((110, 70))
    whole = function(np.pad(picture, depth, mode="symmetric"))[depth:-depth, depth:-depth]
    np.testing.assert_allclose(photographs.by_hand(function, picture), whole, rtol=0, atol=1e-6)
    photographs.DEPTH[function] = depth // 4
    assert not np.allclose(photographs.by_hand(function, picture), whole, rtol=0, atol=1e-6)


def test_bright_regions_are_counted_and_measured(photographs):
    """Two squares on a dark tile are two regions; a spot of fewer pixels than the smallest is none."""
    tile = np.zeros((40, 40), np.float32)
    tile[2:6, 2:6], tile[20:25, 20:25], tile[35, 35] = 0.5, 1.0, 1.0
    regions, pixels, light = photographs.measure(tile, tile).ravel()
    assert (regions, pixels, light) == (2, 16 + 25, 16 * 0.5 + 25)


@pytest.mark.parametrize("level", [0.0, 0.7])
def test_an_even_tile_has_no_regions(photographs, level):
    """A tile without any contrast, as in the corners of the retina, gives no regions and no error."""
    even = np.full((40, 40), level, np.float32)
    assert photographs.measure(photographs.lift(even), even).ravel().tolist() == [0, 0, 0]


def test_denoising_keeps_edges_and_takes_noise(photographs):
    """Non-local means bring noise down to less than a third and leave the two sides of an edge apart."""
    clean = np.zeros((64, 64), np.float32)
    clean[:, 32:] = 1
    noisy = clean + photographs.NOISE * np.random.default_rng(7).standard_normal(clean.shape).astype(np.float32)
    inner = np.s_[9:-9, 9:-9]
    left = (photographs.by_hand(photographs.denoise, noisy) - clean)[inner].std()
    assert left < (noisy - clean)[inner].std() / 3


def no_driver():
    """Fail as CuPy does where there is no driver."""
    raise RuntimeError("cudaErrorNoDevice: no CUDA-capable device is detected")


@pytest.mark.parametrize(
    ("cupy", "says"),
    [
        pytest.param(None, "--cupy needs CuPy (", id="no CuPy"),
        pytest.param(no_driver, "finds none (cudaErrorNoDevice", id="no driver"),
        pytest.param(lambda: 0, "--cupy needs a GPU, and CuPy finds none.", id="no device"),
    ],
)
def test_missing_cupy_or_device_is_one_clear_line(photographs, monkeypatch, cupy, says):
    """Where CuPy or a device is missing, the example leaves with one line that says what to do."""
    module = cupy and ModuleType("cupy")
    if module:
        module.cuda = SimpleNamespace(runtime=SimpleNamespace(getDeviceCount=cupy))
    monkeypatch.setitem(sys.modules, "cupy", module)
    with pytest.raises(SystemExit) as leaving:
        photographs.array_library(cupy=True)
    assert says in (line := str(leaving.value))
    assert "\n" not in line
    assert line.endswith(", or leave --cupy out.")


def test_cupy_is_asked_for_before_anything_starts(tmp_path):
    """`images.py --cupy` without CuPy ends with that line alone: no traceback, no cluster, exit status 1."""
    (tmp_path / "cupy.py").write_text("raise ImportError('not in this test')\n")
    done = run_images(tmp_path, "--cupy")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("--cupy needs CuPy (not in this test). ")
    assert done.stderr.count("\n") == 1


def rows(text):
    """Give the rows of the tables that a script printed, without their frames."""
    return [[cell.strip() for cell in line.split("│")[1:-1]] for line in text.splitlines() if "│" in line]


@pytest.mark.slow
def test_images_example_reloads_what_was_lost_and_agrees_with_numpy(tmp_path):
    """The example loses a worker, reloads tiles, denoises none again, and gives what NumPy and SciPy give."""
    done = run_images(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    runs = {row[0]: row[1:] for row in rows(done.stdout) if len(row) == 6}
    _, _, again, reloaded, right = runs["dask-resilient"]
    assert not {"photograph", "denoise"} & set(again.replace(",", "").split()), done.stdout
    assert int(reloaded) > 0
    assert right == "yes"
    _, _, again, _, right = runs["plain Dask"]
    assert "denoise" in again.replace(",", "").split(), done.stdout
    assert right == "yes"
    found = {row[0]: [float(cell) for cell in row[1:]] for row in rows(done.stdout) if len(row) == 5}
    assert {name: row[0] for name, row in found.items()} == {"hubble_deep_field": 16, "retina": 36, "astronaut": 4}
    assert all(regions > 0 and 0 < brightness < 1 for _, regions, _, brightness in found.values())


@pytest.mark.slow
def test_resume_example_goes_on_where_it_was_killed(tmp_path):
    """The first run dies by SIGKILL, the second one takes what that stored, a third one computes nothing."""
    options = ("--store", str(tmp_path / "store"), "--workers", "2")
    killed = run_example("resume", tmp_path, *options, "--kill-after", "30")
    assert killed.returncode == -signal.SIGKILL, killed.stdout + killed.stderr
    stored = len(list(tmp_path.glob("store/commit/*/*.json")))
    second, third = (run_example("resume", tmp_path, *options) for _ in range(2))
    for done in (second, third):
        assert done.returncode == 0, done.stdout + done.stderr
    reused = {name: int(n) for name, n in re.findall(r"^(\w+): reused (\d+) of 24", second.stdout, re.MULTILINE)}
    assert sum(reused.values()) == stored >= 30
    assert reused["scored"] < 24
    ran = re.search(r"functions that ran: (\d+) of 24 flights, (\d+) of 24 daylight, (\d+) of 24 excess", second.stdout)
    assert [int(n) for n in ran.groups()] == [24 - reused["enriched"]] * 2 + [24 - reused["scored"]], second.stdout
    assert "functions that ran: 0 of 24 flights, 0 of 24 daylight, 0 of 24 excess" in third.stdout
    table = [done.stdout.partition(" excess\n")[2] for done in (second, third)]
    assert table[0] == table[1] != ""


@pytest.mark.slow
def test_kmeans_example_ends_in_the_same_bits(tmp_path):
    """The first run dies by SIGKILL after 12 steps, the second one goes on at step 10 and ends as one that lived."""
    options = ("--store", str(tmp_path / "store"), "--workers", "2")
    killed = run_example("kmeans", tmp_path, *options, "--kill-after", "12")
    assert killed.returncode == -signal.SIGKILL, killed.stdout + killed.stderr
    done = run_example("kmeans", tmp_path, *options)
    alone = run_example("kmeans", tmp_path, "--store", str(tmp_path / "another"), "--workers", "1")
    for each in (done, alone):
        assert each.returncode == 0, each.stdout + each.stderr
    steps = [line for line in done.stdout.splitlines() if line.startswith("step")]
    assert steps == [f"step {step}" for step in range(10, 20)]
    assert done.stdout.splitlines()[-2:] == alone.stdout.splitlines()[-2:]


def test_the_page_names_every_script_and_only_options_that_are_there():
    """Each script among the examples is on the page; commands on it name scripts and options that exist."""
    text = PAGE.read_text()
    scripts = [path for path in (ROOT / "examples").glob("*.py") if '__name__ == "__main__"' in path.read_text()]
    commands = re.findall(r"^python (examples/\w+\.py)(.*)$", text, re.MULTILINE)
    assert {command for command, _ in commands} == {str(path.relative_to(ROOT)) for path in scripts}
    for script, options in commands:
        source = (ROOT / script).read_text()
        for option in re.findall(r"--[\w-]+", options):
            assert f'"{option}"' in source, (script, option)
    table = re.findall(r"^\| `(--[\w-]+)[^`]*` \| ([^|]+) \|", text, re.MULTILINE)
    for option, where in table:
        for name in ("flights", "images", "resume", "kmeans"):
            source = (ROOT / f"examples/{name}.py").read_text()
            assert (f'"{option}"' in source) == (name in where or where.strip() == "all"), (option, name)
    options = {o for path in scripts for o in re.findall(r'add_argument\("(--[\w-]+)"', path.read_text())}
    assert {option for option, _ in table} == options
