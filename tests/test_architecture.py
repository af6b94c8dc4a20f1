"""The house keeps its shape: layers, doors of outside libraries, sizes, and that no test falls silent."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "dask_resilient"
MODULES = sorted(PACKAGE.rglob("*.py"))

GPU = {"cudf", "cuda", "cupy", "dask_cuda", "dask_cudf", "numba", "pynvml", "rmm", "torch"}
DOORS = {
    "zarr": {"store", "testing"},
    "obstore": {"store"},
    "bokeh": {"dashboard"},
    "click": {"cli"},
    "pynvml": {"probes"},
    "cudf": {"partitions"},
    "cupy": {"partitions", "probes"},
    "numba": {"partitions"},
    "pandas": {"partitions", "testing"},
    "pyarrow": {"partitions", "testing"},
    "xarray": {"graph"},
    "ml_dtypes": {"partitions", "testing"},
    "scipy": {"partitions", "testing"},
    "sparse": {"partitions", "testing"},
    "hypothesis": {"testing"},
}
"""Outside libraries, and the only rooms that may import them."""
LATE = GPU | {"bokeh", "hypothesis", "ml_dtypes", "obstore", "pandas", "pyarrow", "scipy", "sparse", "xarray", "zarr"}
"""Libraries that no scheduler needs: imported only inside the function that needs them."""


def imports(path):
    """Give each import of a module: the library, and whether it runs when the module is imported."""
    tree = ast.parse(path.read_text())
    late = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, (ast.FunctionDef, ast.AsyncFunctionDef))
        or (isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING")
        for node in ast.walk(block)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        else:
            continue
        for name in names:
            yield name.partition(".")[0], id(node) not in late


def room(path):
    """Give the room that a module belongs to."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def test_imports_point_down_only():
    """The contracts in pyproject.toml hold; plain pytest shows a broken layer, not only CI."""
    linter = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([linter, "--no-logo", "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_outside_library_has_its_door():
    """A library is imported only by the rooms that are its door."""
    wrong = [
        f"{path.relative_to(ROOT)} imports {library}"
        for path in MODULES
        for library, _ in imports(path)
        if room(path) not in DOORS.get(library, {room(path)})
    ]
    assert not wrong


@pytest.mark.parametrize(
    "path", [p for p in MODULES if room(p) in {"scheduler", "plugin", "internals", "tasks", "graph", "core"}], ids=str
)
def test_nothing_that_a_scheduler_loads_imports_gpu_libraries(path):
    """No room that runs in the scheduler process names a GPU library, not even late."""
    assert not GPU & {library for library, _ in imports(path)}


def test_optional_libraries_are_imported_late():
    """Importing a module never imports a library that a scheduler can do without, but for codecs, which load lazily."""
    wrong = [
        f"{path.relative_to(ROOT)} imports {library}"
        for path in MODULES
        for library, at_once in imports(path)
        if at_once and library in (GPU if room(path) in {"partitions", "testing"} else LATE)
    ]
    assert not wrong


def test_importing_the_package_is_light():
    """The package and its plugin load none of the optional libraries; pynvml, where it is there, Dask has loaded."""
    code = (
        "import sys, distributed; before = set(sys.modules); import dask_resilient, dask_resilient.plugin\n"
        "print(*{name.partition('.')[0] for name in set(sys.modules) - before})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert not LATE & set(done.stdout.split())


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_module_is_of_readable_size(path):
    """A file has at most 300 lines and opens with a docstring; no file is a drawer for everything."""
    text = path.read_text()
    assert len(text.splitlines()) <= 300
    assert ast.get_docstring(ast.parse(text))
    assert path.stem not in {"utils", "util", "helpers", "common", "misc"}


SKIPS = {
    "fixture": 'def test_it(require): require("no_such_tool")',
    "in a test": 'import pytest\ndef test_it(): pytest.importorskip("no_such_tool")',
    "in a module": 'import pytest\npytest.importorskip("no_such_tool")\ndef test_it(): pass',
}


@pytest.mark.parametrize("code", SKIPS.values(), ids=SKIPS)
def test_missing_tool_fails_in_ci_and_skips_elsewhere(code, pytester, monkeypatch):
    """A test that lacks a tool is skipped with the reason; with CI=true that is a failure, and no other skip is."""
    pytester.makeconftest((ROOT / "conftest.py").read_text())
    pytester.makepyfile(code, test_other='import pytest\ndef test_it(): pytest.skip("another reason")')
    pytester.makeini("[pytest]\nmarkers = gpu\n")
    options = ("-p", "no:cacheprovider", "--continue-on-collection-errors", "-ra")

    monkeypatch.setenv("CI", "false")
    elsewhere = pytester.runpytest_subprocess(*options)
    elsewhere.assert_outcomes(skipped=2)
    elsewhere.stdout.fnmatch_lines(["*SKIP*no_such_tool*"])

    monkeypatch.setenv("CI", "true")
    in_ci = pytester.runpytest_subprocess(*options)
    outcomes = in_ci.parseoutcomes()
    assert outcomes["skipped"] == 1
    assert outcomes.get("failed", 0) + outcomes.get("errors", 0) == 1
    in_ci.stdout.fnmatch_lines(["*no_such_tool*a skip for a missing tool is a failure*"])
