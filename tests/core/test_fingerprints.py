"""What two fingerprints differ in, in words."""

from __future__ import annotations

import pytest

from dask_resilient.core.fingerprints import Fact, Fingerprint, changes, combine


def made(structure="s", **facts):
    return Fingerprint(structure, {name.replace("__", "."): fact for name, fact in facts.items()})


FUNCTION = Fact("function", "1", "line 12")
CASES = {
    "a function": (FUNCTION, Fact("function", "2", "line 13"), ["function etl.x changed (line 13)"]),
    "a constant": (Fact("value", "1", "3"), Fact("value", "2", "4"), ["value etl.x changed from 3 to 4"]),
    "a secret": (Fact("value", "1"), Fact("value", "2"), ["value etl.x changed"]),
    "a file": (Fact("input", "1", "5 bytes"), Fact("input", "2", "6 bytes"), ["input etl.x changed (6 bytes)"]),
    "a library": (Fact("package", "1", "1.0"), Fact("package", "2", "1.1"), ["etl.x 1.0 is now 1.1"]),
    "something new": (None, FUNCTION, ["function etl.x is new"]),
    "something gone": (FUNCTION, None, ["function etl.x takes no part any more"]),
}


@pytest.mark.parametrize(("old", "new", "said"), CASES.values(), ids=CASES)
def test_a_change_is_a_sentence(old, new, said):
    before, after = (made(**({"etl__x": fact} if fact else {})) for fact in (old, new))
    assert changes(before, after) == said
    assert changes(before, before) == changes(after, after) == []


def test_arguments_are_told_of_and_counted_in_the_structure():
    one, two = Fact("argument", "1", "3"), Fact("argument", "2", "4")
    assert made(f=one).digest == made(f=two).digest
    assert changes(made("s", f=one), made("t", f=two)) == ["argument f changed from 3 to 4"]


def test_a_change_without_a_fact_is_one_of_order():
    assert changes(made("s"), made("t")) == ["which functions are applied, in what order or to what, changed"]


def test_what_changed_comes_before_what_is_new():
    before = made(a=FUNCTION, z=FUNCTION)
    after = made(b=FUNCTION, z=Fact("function", "2", "line 1"))
    assert changes(before, after) == [
        "function z changed (line 1)",
        "function b is new",
        "function a takes no part any more",
    ]


def test_texts_are_told_apart_by_their_lengths():
    assert combine(["ab", "c"]) != combine(["a", "bc"]) != combine(["abc"])
    assert combine(["\ud800"]) != combine(["?"])


def test_a_reason_unpins():
    assert made().pinned
    assert not Fingerprint("s", reasons=("unseeded",)).pinned
