"""What a loop depends on beside its state: each edit that matters is seen, and told; no other is."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import textwrap
from contextlib import suppress
from pathlib import Path

import dask.array as da
import numpy as np
import pytest
import xarray as xr

from dask_resilient.core.fingerprints import changes
from dask_resilient.graph.loop_code import fingerprint_loop, for_of

WATCHED = """
import sys
from types import SimpleNamespace
from dask_resilient.graph.loop_code import fingerprint_loop, for_of

class Watched:
    def __init__(self, **fields):
        self.fields, self.head, self.step = fields, None, -1

    def __iter__(self):
        self.head = for_of(sys._getframe(1))
        return self

    def __next__(self):
        frame = sys._getframe(1)
        self.step += 1
        if self.step == 0:
            head = self.head if self.head == frame.f_lasti else None
            Watched.found.append(fingerprint_loop(frame, head, self.fields))
        if self.step == 2:
            raise StopIteration
        return self.step, SimpleNamespace(**self.fields)

Watched.found = []
"""

SCRIPT = '''"""A script."""
import math

K = 3
UNUSED = 1


def update(x, c):
    return x * c * K


def main(x, k=2):
    """Iterate."""
    before = 1
    for step, state in loop(c=1.0):
        delta = update(x, state.c)  # a comment
        try:
            state.c = delta + k
        except ValueError:
            state.c = math.pi
        for item in (1, 2):
            state.c += item - before
        state.d = [delta + each for each in (1, 2)]
        state.f = (lambda z: z - delta)(k)
        if step > 5:
            break
    print("after")


main(7)
'''


def loops_of(source, **given):
    """Give the fingerprints of the loops that a script runs."""
    made: dict = {}
    exec(WATCHED, made)
    exec(
        compile(textwrap.dedent(source), "kmeans.py", "exec"), {"__name__": "kmeans", "loop": made["Watched"], **given}
    )
    return made["Watched"].found


def loop_of(source, **given):
    [found] = loops_of(source, **given)
    return found


def edited(source, old, new):
    assert old in source
    return source.replace(old, new)


EDITS = {
    "a function": ("x * c * K", "x + c * K", "function kmeans.update changed (line 8)"),
    "a number of the module": ("K = 3", "K = 4", "value kmeans.K changed from 3 to 4"),
    "an argument": ("main(7)", "main(8)", "value kmeans.main.x changed from 7 to 8"),
    "a default": ("k=2", "k=3", "value kmeans.main.k changed from 2 to 3"),
    "a variable above": ("before = 1", "before = 2", "value kmeans.main.before changed from 1 to 2"),
    "the first state": ("c=1.0", "c=2.0", "field state.c changed from 1.0 to 2.0"),
    "the body": ("delta + k", "delta - k", "the body of the loop changed (line 15)"),
    "a handler": ("math.pi", "math.pi + 1", "the body of the loop changed (line 15)"),
    "which exception": ("ValueError", "KeyError", "the body of the loop changed (line 15)"),
    "when it breaks": ("step > 5", "step > 6", "the body of the loop changed (line 15)"),
    "break or go on": ("            break", "            continue", "the body of the loop changed (line 15)"),
    "a comprehension": ("delta + each", "delta - each", "the body of the loop changed (line 15)"),
    "a lambda": ("z - delta", "z + delta", "the body of the loop changed (line 15)"),
    "variables that are swapped": (
        "update(x, state.c)",
        "update(k, state.c)",
        "the body of the loop changed (line 15)",
    ),
    "an attribute": ("state.f", "state.g", "the body of the loop changed (line 15)"),
}


@pytest.mark.parametrize(("old", "new", "said"), EDITS.values(), ids=EDITS)
def test_an_edit_that_matters_is_told(old, new, said):
    before, after = loop_of(SCRIPT), loop_of(edited(SCRIPT, old, new))
    assert before.pinned
    assert said in changes(before, after)


AFTER = '    print("after")\n'
FOR = SCRIPT[SCRIPT.index("    for step") : SCRIPT.index(AFTER)]
HARMLESS = {
    "a comment": ("# a comment", "# another"),
    "a docstring": ("Iterate.", "Iterate and print."),
    "lines above": ("import math", "\n\n\nimport math"),
    "lines within": ("        try:", "\n\n        try:"),
    "a variable of the body": ("delta", "difference"),
    "its own variables": ("step", "number"),
    "what nobody reads": ("UNUSED = 1", "UNUSED = 2"),
    "what follows": (AFTER, '    print("then", before)\n    print(x)\n'),
    "nothing follows": (AFTER, ""),
    "a value follows": (AFTER, "    return before\n"),
    "what follows keeps variables": (AFTER, "    return lambda: (x, k, delta, step, state)\n"),
    "an else": (AFTER, '    else:\n        print("else")\n'),
    "a function that nobody calls": ("def main", "def plot():\n    pass\n\n\ndef main"),
    "a try around": (FOR, f"    try:\n{textwrap.indent(FOR, '    ')}    finally:\n        print(0)\n"),
    "a with around": (FOR, f"    with open(__import__('os').devnull):\n{textwrap.indent(FOR, '    ')}"),
    "a longer function": (AFTER, AFTER + "    print(before)\n" * 300),
    "variables that come first": ("    before = 1\n", "    a = b = c = d = 1\n    before = a\n"),
}


@pytest.mark.parametrize(("old", "new"), HARMLESS.values(), ids=HARMLESS)
def test_an_edit_that_changes_no_result_changes_nothing(old, new):
    before, after = loop_of(SCRIPT), loop_of(edited(SCRIPT, old, new))
    assert changes(before, after) == []
    assert after.pinned


ENDS = {
    "raises": "raise StopIteration(step, state)",
    "breaks": "break",
    "returns": "return step",
    "runs for ever": "while True:\n            raise StopIteration",
    "does nothing": "pass",
}


@pytest.mark.parametrize("body", ENDS.values(), ids=ENDS)
def test_a_body_may_end_in_any_way(body):
    source = f"def main():\n    for step, state in loop(c=1):\n        {body}\n"
    source += "try:\n    main()\nexcept StopIteration: pass\n"
    assert loop_of(source).pinned


LONG = "    for step, state in loop(c=1.0):\n" + "        state.c = state.c * 2 + 1 - 3 if step else 4\n" * 100


def test_a_body_that_needs_wide_jumps_is_one_too():
    source = "def main():\n" + LONG + "main()\n"
    assert list(loop_of(source).facts) == ["python", "state.c", "kmeans.main"]
    assert changes(loop_of(source), loop_of(edited(source, "- 3", "- 4")))


TOP = """
K = 3
def f():
    return K + y
y = 1
for step, state in loop(c=1):
    y = step + K
    state.c = f()
print(K)
"""


def test_a_loop_of_a_script():
    before = loop_of(TOP)
    assert before.pinned
    assert changes(before, loop_of(edited(TOP, "print(K)", "print(K, y)"))) == []
    assert changes(before, loop_of(edited(TOP, "K = 3", "K = 4"))) == ["value kmeans.K changed from 3 to 4"]
    # It is another name that a function reads.
    renamed = edited(TOP, "    y = step", "    z = step")
    assert "the body of the loop changed (line 6)" in changes(before, loop_of(renamed))


CARRIED = {
    "a sum": ("total = 0", "total += state.c", ["total"]),
    "what is set now and then": ("best = 0", "if state.c: best = 1\n        print(best)", ["best"]),
    "what is set after it is read": ("old = 0", "print(old)\n        old = state.c", ["old"]),
    "what an exception may leave": ("y = 0", "try: y = f()\n        except E: pass\n        print(y)", ["y"]),
    "what a function sets": ("n = 0", "def add():\n            nonlocal n\n            n += 1\n        add()", ["n"]),
    "what is set first": ("t = 0", "t = state.c\n        print(t)", []),
    "what is set on both ways": ("t = 0", "if state.c: t = 1\n        else: t = 2\n        print(t)", []),
    "what is set or goes on": ("t = 0", "try: t = f()\n        except E: continue\n        print(t)", []),
    "a variable of a comprehension": ("i = 0", "state.c = [i for i in (1, 2)]\n        print(i)", []),
    "what is only read": ("t = 0", "print(t)", []),
    "what is only set": ("t = 0", "t = state.c", []),
    "a with": ("t = 0", "with state.c: t = 1\n        print(t)", []),
    "a with that suppresses": ("t = 0", "with suppress(E): t = f()\n        print(t)", ["t"]),
    "a for within": ("t = 0", "for i in (1, 2): t = i\n        print(t, i)", []),
    "a for within that may not come so far": (
        "t = 0",
        "for i in (1, 2):\n            if i: t = i\n        print(t)",
        ["t"],
    ),
    "fors within": ("t = 0", "for i in 1, 2:\n            for j in 3, 4: t = i\n        print(t, j)", []),
    "a for that breaks": (
        "t = 0",
        "for i in 1, 2:\n            if i: break\n            t = 1\n        print(t)",
        ["t"],
    ),
    "the turn before": ("t = 0", "for i in 1, 2:\n            print(t)\n            t = i", ["t"]),
    "the step before": ("t = 0", "if step == 0: t = 1\n        print(t)", ["t"]),
}


class Quiet(Exception):
    """Nothing bad."""


@pytest.mark.parametrize(("above", "body", "names"), CARRIED.values(), ids=CARRIED)
def test_a_variable_that_is_handed_on_past_the_state_is_a_reason(above, body, names):
    """A loop that is resumed would not have it."""
    source = f"def main():\n    {above}\n    for step, state in loop(c=held):\n        {body}\nmain()\n"

    def fail():
        raise Quiet

    class Held:
        def __enter__(self):
            return self

        def __exit__(self, *_):
            return False

        def __add__(self, other):
            return other

        __radd__ = __add__

    found = loop_of(source, f=fail, E=Quiet, held=Held(), suppress=suppress)
    said = [reason for reason in found.reasons if "from step to step" in reason]
    assert [reason.split("'")[1] for reason in said] == names
    assert all(reason.endswith(f"keep it as state.{name}") for reason, name in zip(said, names, strict=True))


DRAWN = {
    "a variable": ("rng", "kmeans.rng is a generator of random numbers outside of the state"),
    "an attribute": ("holder", "something that the loop reads is a generator"),
    "a function's": ("helper()", "kmeans.rng is a generator of random numbers outside of the state"),
    "numpy's own": ("np.random.normal()", "kmeans.np.random.normal draws from a generator that its library shares"),
    "Python's own": ("random.gauss(0, 1)", "kmeans.random.gauss draws from a generator that its library shares"),
}


@pytest.mark.parametrize(("expression", "said"), DRAWN.values(), ids=DRAWN)
def test_a_generator_outside_of_the_state_is_a_reason(expression, said):
    """Where it stood when the loop was interrupted, no snapshot knows."""
    source = f"""
def helper():
    return rng.random()
class Holder: pass
holder = Holder()
holder.rng = rng
for step, state in loop(c=1):
    print({expression})
"""
    found = loop_of(source, np=np, random=random, rng=np.random.default_rng(7))
    assert [reason for reason in found.reasons if reason.startswith(said)]


def test_a_generator_of_the_state_and_one_of_a_collection_are_none():
    x = da.random.default_rng(3).normal(size=4, chunks=2)
    source = (
        "for step, state in loop(rng=np.random.default_rng(7), r=R(5), x=x):\n    print(x, np.random.default_rng(step))"
    )
    found = loop_of(source, np=np, R=random.Random, x=x)
    assert found.reasons == ()
    other = loop_of(source.replace("default_rng(7)", "default_rng(8)"), np=np, R=random.Random, x=x)
    assert changes(found, other) == ["field state.rng changed"]


def test_a_field_that_cannot_be_pinned_down_is_named():
    found = loop_of("for step, state in loop(c=1, rng=np.random.default_rng()): pass", np=np)
    assert found.reasons == ("state.rng: random numbers without a seed: give one, as in default_rng(7)",)


BYSTANDERS = """
import logging, sys, threading
log, out, lock = logging.getLogger("x"), sys.stdout, threading.Lock()
file = open(name, "w")
def tell(x):
    log.info(x)
    print(x, file=out)
    client.submit(x)
for step, state in loop(c=1):
    with lock:
        tell(step)
    print(step, file=file)
    print(sys.stderr)
file.close()
"""


class Client:
    """Stands in for one that is connected."""

    __module__, __qualname__ = "distributed.client", "Client"

    def __init__(self):
        self.cannot_be_digested = (i for i in range(3))

    def submit(self, x):
        """Do nothing."""


def test_clients_loggers_locks_and_streams_take_no_part(tmp_path):
    found = loop_of(BYSTANDERS, client=Client(), name=str(tmp_path / "log"))
    assert found.reasons == ()
    assert {f"kmeans.{name}" for name in ("log", "out", "lock", "file", "client")} & found.facts.keys() == set()


def test_a_file_that_is_read_is_a_reason(tmp_path):
    (tmp_path / "data").write_text("1\n2\n")
    with (tmp_path / "data").open() as file:
        found = loop_of("for step, state in loop(c=1):\n    print(file.readline())", file=file)
    assert "cannot be taken apart" in found.reasons[0]


# -- collections -------------------------------------------------------------------------------------------------------

COLLECTION = """
import dask.array as da
def clean(block):
    return block + N
N = 1
x = da.ones(4, chunks=2).map_blocks(clean)
held = {"x": [x]}
for step, state in loop(c=1):
    print(held)
"""


def test_a_collection_counts_by_its_fingerprint_wherever_it_is_held():
    before = loop_of(COLLECTION)
    assert before.pinned
    assert changes(before, loop_of(COLLECTION)) == []
    said = changes(before, loop_of(edited(COLLECTION, "block + N", "block - N")))
    assert any(line.startswith("function kmeans.clean changed") for line in said)
    assert "value kmeans.N changed from 1 to 2" in changes(before, loop_of(edited(COLLECTION, "N = 1", "N = 2")))


def test_a_labelled_collection_counts_with_what_it_has_in_memory():
    source = "for step, state in loop(c=1):\n    print(x)"

    def made(label, n=1):
        return xr.Dataset({"v": ("t", da.ones(2, chunks=1) * n)}, coords={"t": [0, label]})

    assert changes(loop_of(source, x=made(1)), loop_of(source, x=made(1))) == []
    assert "value kmeans.x changed" in changes(loop_of(source, x=made(1)), loop_of(source, x=made(2)))
    assert "value kmeans.x changed" in changes(loop_of(source, x=made(1)), loop_of(source, x=made(1, 2)))
    one, other = made(1).v, made(2).v
    assert "value kmeans.x changed" in changes(loop_of(source, x=one), loop_of(source, x=other))


# -- outside of a for of its own ---------------------------------------------------------------------------------------

WHOLE = {
    "enumerate": "for i, (step, state) in enumerate(loop(c=1)):\n        use(state, k)",
    "next": "it = loop(c=1)\n    step, state = next(it)\n    use(state, k)",
    "list": "print([use(state, k) for step, state in list(loop(c=1))])",
    "zip": "for (step, state), y in zip(loop(c=1), (1, 2)):\n        use(state, k)",
}


@pytest.mark.parametrize("body", WHOLE.values(), ids=WHOLE)
def test_without_a_for_of_its_own_all_code_of_the_function_counts(body):
    source = (
        'def use(state, k):\n    return k\ndef main(k):\n    """Doc."""\n    UNREAD = 1\n    '
        + body
        + '\n    print("end")\nmain(3)\n'
    )
    before = loop_of(source)
    assert before.pinned
    for old, new in (("Doc.", "Words."), ("UNREAD", "NOBODY"), ("def main", "\n\ndef main")):
        assert changes(before, loop_of(edited(source, old, new))) == []
    assert changes(before, loop_of(edited(source, "end", "over"))) == ["function kmeans.main changed (line 3)"]
    assert "value kmeans.main.k changed from 3 to 4" in changes(before, loop_of(edited(source, "main(3)", "main(4)")))
    assert changes(before, loop_of(edited(source, "return k", "return -k"))) == ["function kmeans.use changed (line 1)"]


def test_a_for_over_a_variable_is_a_for_of_its_own():
    source = (
        'def main():\n    it = loop(c=1)\n    for step, state in it:\n        print(step)\n    print("end")\nmain()'
    )
    assert changes(loop_of(source), loop_of(edited(source, "end", "over"))) == []


def test_a_comprehension_counts_by_its_own_code():
    """From Python 3.12 on it has none of its own, and the function counts."""
    source = "def main(k):\n    return [state.c + k for step, state in loop(c=1)]\nmain(3)"
    assert changes(loop_of(source), loop_of(edited(source, "+ k", "- k")))
    assert loop_of(source).pinned


def test_two_loops_of_a_function_are_apart():
    one = "    for step, state in loop(c=1):\n        print({})\n"
    source = f"def main(a, b):\n{one.format('a')}{one.format('b')}main(1, 2)"
    first, second = loops_of(source)
    changed = loops_of(edited(source, "main(1, 2)", "main(1, 3)"))
    assert changes(first, changed[0]) == []
    assert changes(second, changed[1]) == ["value kmeans.main.b changed from 2 to 3"]


# -- other processes ---------------------------------------------------------------------------------------------------

MAIN = (
    WATCHED
    + """
import numpy as np, dask.array as da
import lib

x = da.from_array(np.arange(8.0), chunks=4).map_blocks(lib.clean)

def main(data, options={"b", "a", "c"}):
    for step, state in Watched(c=np.zeros(3), rng=np.random.default_rng(7), x=x, tags={"k": "v"}):
        if step in {1, 2, 3}:
            state.c = lib.update(data, state.c, options)

main(x)
for step, state in Watched(c=1):
    print("", end="")
    lib.update(x, step, ())
for number, (step, state) in enumerate(Watched(c=2)):
    lib.update(x, step, ())
for found in Watched.found:
    print(found.digest, found.reasons)
"""
)
LIB = "N = 1\ndef clean(block):\n    return block * N\ndef update(x, c, o):\n    return c\n"


def test_it_is_the_same_in_every_process(tmp_path):
    """Whatever the seed of hashes and the working directory."""
    (tmp_path / "main.py").write_text(MAIN)
    (tmp_path / "lib.py").write_text(LIB)
    (tmp_path / "elsewhere").mkdir()
    said = set()
    for seed, cwd in (("1", tmp_path), ("2", tmp_path / "elsewhere")):
        environment = {
            **os.environ,
            "PYTHONHASHSEED": seed,
            "PYTHONPATH": f"{Path(__file__).parents[2]}:{tmp_path}",
        }
        done = subprocess.run(
            [sys.executable, str(tmp_path / "main.py")],
            env=environment,
            cwd=cwd,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        said.add(done.stdout)
    [lines] = said
    assert lines.count("()\n") == len(set(lines.splitlines())) == 3


def test_what_is_in_no_for_is_told():
    """The frame that asks for an iterator may be in a call."""
    assert for_of(sys._getframe()) is None
    found = fingerprint_loop(sys._getframe(), None, {})
    assert "function" in {fact.kind for fact in found.facts.values()}
