"""Probes of third parties, without their processes: which are probes, and what is taken of what they give."""

from __future__ import annotations

import json
import threading

import msgpack
import numpy as np
import pytest

from dask_resilient.errors import SettingError
from dask_resilient.probes import guest
from dask_resilient.probes.guest import rows
from dask_resilient.probes.guests import pack


class Fans:
    name = "fans"

    def read(self, device):
        return []


def test_odd_readings_are_unknown_with_the_reason():
    """The others of the same call are taken."""
    found = list(rows(iter(["no tuple", ("a",), (1, 2), ("a", [1]), ("b", True), ("c", 1.5, "text")])))
    assert [row[0] for row in found] == ["probe", "probe", "probe", "a", "b", "c"]
    assert found[3] == ("a", None, "its value is of type list, not a number, a text or None")
    assert found[4:] == [("b", True, ""), ("c", 1.5, "text")]


@pytest.mark.parametrize("value", ["bad", True, ["drain"], 4])
def test_a_class_that_does_not_exist_is_unknown(value):
    """A slip of the pen is no word for or against a device."""
    ((name, found, text),) = rows(iter([("stated.fan", value, "why")]))
    assert (name, found) == ("stated.fan", None)
    assert "which is no class: those are observe" in text or "of type list" in text


ODD = [("big", 2**63), ("small", -(2**63) - 1), ("half", "\udcff"), ("long", 10**6 * "x"), ("n" * 10**6, 1, "\udcff")]


@pytest.mark.parametrize("odd", ODD, ids=[one[0][:5] for one in ODD])
def test_whatever_it_gives_can_be_sent(odd):
    """A number that is too large, or half a character, would end the worker's connection."""
    (row,) = rows(iter([odd]))
    msg = msgpack.packb(row)
    assert len(msg) < 1_000
    assert row[1] is None or "x" in str(row[1]) or "udcff" in str(row)
    assert next(rows(iter([("most", 2**63 - 1), ("least", -(2**63))])))[1] == 2**63 - 1


@pytest.mark.parametrize(
    ("probes", "words"),
    [
        (3, "3 is no list of probes"),
        (Fans, "is no list of probes"),
        ([3], "3 is no probe: it needs a name"),
        ([type("P", (), {"name": "p"})], "no probe"),
        ([type("P", (), {"name": 3, "read": print})], "no probe"),
        ([Fans, Fans], "two are named 'fans'"),
        ([type("P", (Fans,), {"name": "nvml"})], "'nvml' cannot be a name"),
        ([type("P", (Fans,), {"name": "half \udcff"})], "cannot be a name"),
        ([type("P", (Fans,), {"name": "x" * 1000})], "cannot be a name"),
        ([type("P", (Fans,), {"interval": "1s"})], "the interval of 'fans' is '1s'"),
        ([type("P", (Fans,), {"interval": 0})], "the interval of 'fans' is 0; it must be a positive number of seconds"),
        (
            [type("P", (Fans,), {"name": "my fans"})],
            "'my fans' cannot be a name: use letters, digits, '.', '_' and '-'",
        ),
        ([type("P", (Fans,), {"name": "fans\n"})], "cannot be a name"),
        ([type("P", (Fans,), {"name": "l\u00fcfter"})], "cannot be a name"),
        ([type("P", (Fans,), {"name": "Fans_2.a-b"}), 3], "3 is no probe"),
        ([type("P", (Fans,), {"interval": float("inf")})], "the interval of 'fans' is inf"),
        ([type("P", (Fans,), {"interval": float("nan")})], "the interval of 'fans' is nan"),
    ],
)
def test_what_is_no_probe_is_refused_on_the_client(probes, words):
    """In one sentence with the value."""
    with pytest.raises(SettingError, match=words.replace("(", r"\(")):
        pack(probes)


@pytest.mark.parametrize(
    ("value", "plain"),
    [(np.int64(3), 3), (np.float32(0.5), 0.5), (np.bool_(True), True), (np.array(7), 7), (np.str_("a"), "a")],
)
def test_a_scalar_of_numpy_is_a_number(value, plain):
    """As what a probe computes with NumPy gives."""
    ((_, found, reason),) = rows(iter([("a", value)]))
    assert (found, reason) == (plain, "")
    assert json.dumps(found) == json.dumps(plain)
    ((_, found, reason),) = rows(iter([("a", np.zeros(2))]))
    assert (found, reason[:26]) == (None, "its value is of type ndarr")


@pytest.mark.parametrize(
    ("given", "words"), [(None, "gave None, not tuples"), (7, "gave an object of type int, not tuples")]
)
def test_a_read_that_gives_nothing_to_go_through_says_so(given, words):
    """As where somebody forgot to return."""
    ((name, value, text),) = guest._read(type("P", (), {"read": lambda self, device: given})(), "GPU-0")["readings"]
    assert (name, value) == ("probe", None)
    assert text.startswith(words)
    assert "yield" in text


def test_what_cannot_be_sent_is_refused_on_the_client():
    """With its name."""
    probe = Fans()
    probe.lock = threading.Lock()
    with pytest.raises(SettingError, match="'fans' cannot be sent to workers"):
        pack([probe])
