"""What a collection is made of: by content, in words, or with the reason why nobody can say."""

from __future__ import annotations

import math
import re
import sys
import threading
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property, wraps
from pathlib import PurePosixPath

import dask
import dask.array as da
import dask.bag as db
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from dask.delayed import Delayed
from dask.task_spec import Task

from dask_resilient.core.fingerprints import changes
from dask_resilient.graph import following
from dask_resilient.graph.fingerprint import fingerprint
from dask_resilient.internals.nodes import Set


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: da.random.default_rng().normal(size=4, chunks=2), "without a seed"),
        (lambda: dask.delayed(len)([1, 2]), "pure=True"),
        (lambda: dask.delayed(id, pure=True)(i for i in range(3)), "cannot be taken apart"),
        (lambda: dask.delayed(print, pure=True)(1, file=sys.stderr), "cannot be taken apart"),
    ],
    ids=["unseeded random", "a call that need not be pure", "a generator", "an open file"],
)
def test_what_cannot_be_pinned_down_says_why(make, words):
    found = fingerprint(make())
    assert not found.pinned
    assert words in found.reasons[0]


def of(value):
    """Give the fingerprint of a call with this argument."""
    return fingerprint(dask.delayed(repr, pure=True)(value)).digest


def test_arguments_count_by_content():
    """Also where their addresses or their order in a set differ; types and shapes count."""

    class Thing:
        def __init__(self, x):
            self.x = x

    assert of(Thing({3, 1})) == of(Thing({1, 3})) != of(Thing({1, 2}))
    assert of(np.arange(3)) == of(np.array([0, 1, 2])) != of(np.arange(3.0))
    assert of(np.zeros((2, 3))) != of(np.zeros((3, 2)))
    assert of(0.0) != of(-0.0)
    assert of(1) != of(True) != of(1.0)
    assert of([1, [2]]) != of([[1], 2])
    assert of(pd.Series([1, 2])) == of(pd.Series([1, 2])) != of(pd.Series([1, 3]))
    assert of({"a": 1, "b": 2}) != of({"a": 2, "b": 1})


def test_names_of_functions_that_are_swapped_count():
    """Lambdas have no names of their own."""
    namespace: dict = {}
    source = "a = lambda x: x + 1\nb = lambda x: x * 2\ndef f(x):\n    return a(b(x))\n"
    exec(source, namespace)
    first = fingerprint(dask.delayed(namespace["f"], pure=True)(1)).digest
    namespace["a"], namespace["b"] = namespace["b"], namespace["a"]
    assert fingerprint(dask.delayed(namespace["f"], pure=True)(1)).digest != first


def test_what_a_subclass_holds_counts():
    """A mask, a matrix, an attribute of a dict of the user's."""

    class Named(dict):
        pass

    first, second = Named(a=1), Named(a=1)
    second.name = "other"
    assert of(first) != of(second) != of({"a": 1})
    data = np.arange(3)
    assert of(np.ma.masked_array(data, [0, 0, 1])) != of(np.ma.masked_array(data, [0, 1, 0])) != of(data)


class Color(Enum):
    RED = 1


@dataclass
class Point:
    x: int = 3
    names: list = field(default_factory=list)

    @cached_property
    def double(self):
        return 2 * self.x

    @property
    def half(self):
        return self.x / 2

    @classmethod
    def made(cls):
        return cls()


LOCK = threading.Lock()


def guarded(point):
    with LOCK:
        return Point.made().double + point.x, Color.RED, re.compile("a+").pattern


def test_classes_of_users_can_be_pinned_down():
    """Dataclasses, enumerations, properties, and locks beside them."""
    found = fingerprint(dask.delayed(guarded, pure=True)(dask.delayed(Point, pure=True)(4)))
    assert found.reasons == ()
    name = Point.__module__
    assert {f"{name}.Point", f"{name}.Color", f"{name}.guarded"} <= found.facts.keys()
    assert of(Point(3)) == of(Point(3)) != of(Point(4))
    assert fingerprint(dask.delayed(repr, pure=True)(Color.RED)).pinned


def test_objects_that_hold_each_other():
    """In the same way, whichever is met first in another process."""

    class Node:
        def __init__(self, name):
            self.name = name
            self.next = None

    def ring(names):
        nodes = [Node(name) for name in names]
        for node, other in zip(nodes, nodes[1:] + nodes[:1], strict=True):
            node.next = other
        return nodes

    assert of(ring("ab")) == of(ring("ab")) != of(ring("ba"))
    assert of(ring("ab")) != of(ring("abb"))


def test_the_release_of_a_library_counts(monkeypatch):
    """Of those that the functions belong to; ours takes no part."""
    call = dask.delayed(np.linalg.norm, pure=True)([1.0, 2.0])
    before = fingerprint(call)
    assert before.facts["numpy"].shown == np.__version__
    assert not any("resilient" in name for name in before.facts)
    monkeypatch.setattr(following, "origin", lambda module: ("numpy", "99.0"))
    after = fingerprint(call)
    assert after.structure == before.structure
    assert after.digest != before.digest


def test_compiled_code_that_is_not_installed_cannot_be_pinned_down(monkeypatch):
    monkeypatch.setattr(following, "origin", lambda module: None)
    found = fingerprint(dask.delayed(math.hypot, pure=True)(3, 4))
    assert any("compiled code" in reason for reason in found.reasons)
    found = fingerprint(dask.delayed(np.frompyfunc(lambda x: x + 1, 1, 1), pure=True)(3))
    assert any("ufunc" in reason for reason in found.reasons)


def test_functions_that_call_each_other_are_no_trouble():
    def even(n):
        return n == 0 or odd(n - 1)

    def odd(n):
        return n != 0 and even(n - 1)

    forth, back = (fingerprint(dask.delayed(f, pure=True)(3)) for f in (even, odd))
    assert forth.pinned
    assert forth.digest != back.digest


def test_credentials_take_no_part_and_endpoints_do(tmp_path):
    """The same file is the same, whoever reads it."""
    pd.DataFrame({"a": range(5)}).to_csv(tmp_path / "c.csv")

    def read(**options):
        return fingerprint(dd.read_csv(f"file://{tmp_path}/c.csv", storage_options=options)).digest

    assert read(auto_mkdir=True) == read(auto_mkdir=False)
    assert of({"storage_options": {"key": "a"}}) == of({"storage_options": {"key": "b"}})
    first, second = ({"storage_options": {"client_kwargs": {"endpoint_url": url}}} for url in ("http://a", "http://b"))
    assert of(first) != of(second)


def test_bags_and_long_chains():
    """Without running into the limit of recursion."""
    x = da.ones(4, chunks=2)
    for _ in range(2_000):
        x = x + 1
    assert fingerprint(x).pinned
    bag = db.from_sequence(range(4), npartitions=2)
    assert fingerprint(bag).digest == fingerprint(db.from_sequence(range(4), npartitions=2)).digest


def test_arguments_are_told_of():
    """All calls of a function together; values only where they are numbers."""
    x = da.ones(4, chunks=2)
    first, second = (fingerprint(x.map_blocks(scaled, n, text="secret")) for n in (3, 4))
    name = f"{scaled.__module__}.scaled"
    assert changes(first, second) == [f"argument {name}(1) changed from 3 to 4"]
    third = fingerprint(x.map_blocks(scaled, 3, text="another"))
    assert changes(first, third) == [f"argument {name}(text) changed"]
    assert "secret" not in repr(first)


def scaled(block, n, text):
    return block * n


def test_sets_in_graphs_have_no_order():
    """However Python iterates over them."""

    def over(*items):
        node = Task("k", len, Set(*(Task(None, int, item) for item in items)))
        return fingerprint(Delayed("k", {"k": node})).digest

    assert over(1, 2) == over(2, 1) != over(1, 3)


def test_things_that_share_a_name_are_told_apart():
    """Classes made by a function, functions of one name in two namespaces, and what functions carry."""

    def made(rate):
        class Model:
            k = rate

            def apply(self, x):
                return x * self.k

        return Model()

    def both(*rates):
        return fingerprint(dask.delayed(len, pure=True)([made(rate) for rate in rates]))

    assert both(1, 2).digest == both(1, 2).digest != both(1, 3).digest
    assert len({name for name in both(1, 2).facts if "Model #" in name}) == 2

    def over(*values):
        functions = []
        for value in values:
            namespace: dict = {"VALUE": value}
            exec("def f(x):\n    return x * VALUE\n", namespace)
            functions.append(namespace["f"])
        return fingerprint(dask.delayed(len, pure=True)(functions)).digest

    assert over(1, 2) == over(1, 2) != over(1, 3)

    def carrying(value):
        def f(x):
            return x * f.value

        f.value = value
        return fingerprint(dask.delayed(f, pure=True)(1)).digest

    assert carrying(1) == carrying(1) != carrying(2)


def calls(function):
    return fingerprint(dask.delayed(function, pure=True)(1)).digest


def made_by(source, name="f"):
    """Run some code of a user's and give what it made."""
    namespace: dict = {"__name__": "users", "np": np, "wraps": wraps}
    exec(source, namespace)
    return namespace[name]


PAIRS = {
    "a wrapper that has the name of a library's function": "@wraps(np.linalg.norm)\ndef f(x): return {}",
    "what a library's decorator holds": "from functools import lru_cache\n@lru_cache\ndef f(x): return {}",
    "a method by way of super": (
        "class B:\n def g(s): return {}\nclass A(B):\n def g(s): return super().g()\ndef f(x): return A().g()"
    ),
    "a metaclass": "class M(type):\n def __call__(cls, *a): return {}\nclass f(metaclass=M): pass",
    "a function in a list": "def g(x): return {}\nL = [g]\ndef f(x): return L[0](x)",
    "a function of a function": "def f(x):\n def g(): return {}\n return g()",
    "a default that goes by its name only": "def f(x, *, k={}): return k",
}


@pytest.mark.parametrize("source", PAIRS.values(), ids=PAIRS)
def test_code_that_is_one_step_away_counts(source):
    first, same, other = (calls(made_by(source.format(n))) for n in (1, 1, 2))
    assert first == same != other


def test_what_differs_only_in_kind_counts():
    """Sets that can change, paths, layouts in memory, graphs of metaclasses."""
    assert of({1}) != of(frozenset({1}))
    assert of(PurePosixPath("x")) != of("x")
    square = np.arange(4.0).reshape(2, 2)
    assert of(square) != of(np.asfortranarray(square))


def test_tasks_that_were_fused_count_as_if_they_were_not():
    """Arrays out of dataframes hold such tasks; the order of what they take changes from process to process."""

    def array(n):
        df = dd.from_pandas(pd.DataFrame({"a": range(8)}), npartitions=2)
        return fingerprint((df[["a"]] + n).to_dask_array(lengths=True))

    assert array(1).pinned
    assert array(1).digest == array(1).digest != array(2).digest


def test_the_last_step_of_a_frame_counts():
    """Two that differ in nothing but what is done last are two."""
    x = dd.from_pandas(pd.DataFrame({"a": [1.0, 2.0, 3.0]}), npartitions=2)
    last = [x.cumsum(), x.cumprod(), x.cummax(), x + 1, x - 1, x.sum(), x.prod(), x]
    assert len({fingerprint(each).digest for each in last}) == len(last)
