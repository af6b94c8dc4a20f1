"""The modules of the setting ``resilience.codecs``: imported by each process, and what fails is said."""

from __future__ import annotations

import sys

import pytest

from dask_resilient import partitions
from dask_resilient.partitions import table
from dask_resilient.testing.codecs import round_trip, staged

MODULE = """
import dask_resilient as dr
from dask_resilient.partitions.buffers import stage_bytes

class Thing:
    pass

class ThingCodec:
    name = "test.Thing"
    def stage(self, value):
        return stage_bytes(self.name, {}, [memoryview(b"thing")])
    def restore(self, schema, payload):
        return Thing()

dr.register_codec(ThingCodec.name, ThingCodec, [(__name__, "Thing")])
"""


@pytest.fixture
def module(monkeypatch, tmp_path):
    """Give a function that writes a module which is forgotten afterwards."""
    for name in ("_LOADERS", "_LOADED", "_TYPES"):
        monkeypatch.setattr(table, name, dict(getattr(table, name)))
    monkeypatch.syspath_prepend(tmp_path)
    written = []

    def module(name, code):
        (tmp_path / f"{name}.py").write_text(code)
        written.append(name)
        return name

    yield module
    for name in written:
        sys.modules.pop(name, None)


def test_module_registers_its_codecs(module):
    """A named module is imported once, and its types are stored, also inside of a list."""
    name = module("things_of_a_user", MODULE)
    assert partitions.load_modules([name]) == partitions.load_modules([name]) == []
    thing = sys.modules[name].Thing()
    assert staged(thing).codec == "test.Thing"
    [restored] = round_trip([thing])
    assert type(restored) is type(thing)


@pytest.mark.parametrize(
    "code", ["raise ValueError('bad')", "import sys; sys.exit(3)", "def f(:", "import no_such_module"]
)
def test_module_that_fails_is_named(module, code):
    """Whatever happens in a module: the others are imported, and one sentence names it."""
    bad, good = module("broken_of_a_user", code), module("things_of_a_user", MODULE)
    (problem,) = partitions.load_modules([bad, good])
    assert problem.startswith("module 'broken_of_a_user' of the setting resilience.codecs cannot be imported here")
    assert good in sys.modules


def test_module_that_is_not_there_is_named():
    """So is a name that is no module at all."""
    problems = partitions.load_modules(["no_such_module", "", "..", "a b"])
    assert len(problems) == 4
