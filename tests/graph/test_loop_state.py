"""What a loop carries comes back bit by bit, or is refused with its name."""

from __future__ import annotations

import copy
import math
import random
import sys
import types

import dask.array as da
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_resilient import partitions
from dask_resilient.core.outcome import Declined
from dask_resilient.errors import Foreign, UnsupportedType
from dask_resilient.graph.loop_state import GENERATORS, State, copied, pack, unpack
from dask_resilient.testing.same import assert_same


def stored(plain):
    """Give plain values as another process reads them."""
    staged = partitions.stage(plain)
    assert not isinstance(staged, Declined), staged.reason
    raw = b"".join(bytes(buffer) for chunk in staged.chunks for buffer in chunk)[: staged.nbytes]
    return partitions.restore(staged.codec, staged.schema, np.frombuffer(bytearray(raw), np.uint8))


def round_trip(state):
    plain, collections = pack(state)
    return unpack(stored(plain) | collections)


# -- the namespace -----------------------------------------------------------------------------------------------------


def test_fields_are_set_added_and_deleted():
    state = State({"a": 1})
    state.b = [2]
    del state.a
    assert vars(state) == {"b": [2]}


@pytest.mark.parametrize("act", [lambda s: s.centroid, lambda s: delattr(s, "centroid")])
def test_a_misspelt_field_is_told_with_the_nearest(act):
    with pytest.raises(AttributeError, match="no field 'centroid'; did you mean 'centroids'"):
        act(State({"centroids": 1}))


def test_the_text_is_short():
    many = State({f"f{i}": i for i in range(9)})
    assert repr(many) == "State(f0=0, f1=1, f2=2, f3=3, f4=4, f5=5, ...)"
    assert repr(State({"x": np.zeros((1000, 3)), "t": "y" * 1000})).startswith("State(x=<ndarray (1000, 3)>, t='yyy")
    assert len(repr(State({"t": "y" * 1000}))) < 60


def test_a_state_can_be_copied():
    state = State({"a": [1]})
    assert vars(copy.deepcopy(state)) == {"a": [1]}


@pytest.mark.parametrize("name", ["a b", "__class__", ""])
def test_what_cannot_be_a_name_is_refused(name):
    with pytest.raises(UnsupportedType, match="no name for a field"):
        setattr(State(), name, 1)


# -- values ------------------------------------------------------------------------------------------------------------

VALUES = {
    "an array": np.arange(6.0).reshape(2, 3),
    "an array in Fortran order": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "numbers": [1, 2.5, -0.0, math.inf, 1j, 2**80, True, np.float32(3)],
    "text": "état",
    "none": None,
    "nested": {"a": (1, [2, {"b": np.arange(3)}]), 3: "c", (1, 2): b"raw"},
    "what looks like a generator": {"$generators": [{"kind": "random.Random"}]},
}


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
def test_a_value_comes_back_bit_by_bit(value):
    assert_same(round_trip(State({"x": value})).x, value)
    assert_same(copied(State({"x": value})).x, value)


def test_a_table_comes_back():
    table = pd.DataFrame({"a": [1.5, math.nan], "b": ["x", None]}, index=[3, 5])
    for again in (round_trip(State({"x": table})), copied(State({"x": table}))):
        pd.testing.assert_frame_equal(again.x, table)
        assert again.x is not table


def test_collections_go_beside_the_values():
    x = da.ones(4, chunks=2)
    plain, collections = pack(State({"a": 1, "x": x}))
    assert plain == {"a": 1}
    assert collections["x"] is x


def test_a_copy_has_nothing_in_common_with_the_callers_objects():
    """So a step that changes a field in place changes nothing that the caller, or the next run, begins with."""
    x, rng, items = np.zeros(3), np.random.default_rng(7), [1]
    state = copied(State({"x": x, "rng": rng, "items": items}))
    state.x += 1
    state.items.append(2)
    state.rng.random()
    assert (x.tolist(), items) == ([0, 0, 0], [1])
    assert rng.random() == np.random.default_rng(7).random()
    assert list(vars(state)) == ["x", "rng", "items"]


SHARED = np.zeros(8)
TABLE = pd.DataFrame({"x": [1.0, 2.0]})
LIST = [1]
REFUSED = {
    "an open file": (lambda: {"log": sys.stderr}, r"state\.log is a "),
    "a function": (lambda: {"f": test_the_text_is_short}, r"state\.f is a builtins\.function"),
    "in a container": (lambda: {"a": 1, "b": [0, {"k": {1}}]}, r"state\.b\[1\]\['k'\] is a builtins\.set"),
    "objects in an array": (lambda: {"x": [np.array([object()])]}, r"state\.x\[0\]: the array has dtype object"),
    "a collection in a list": (lambda: {"xs": [da.ones(2)]}, r"state\.xs\[0\] is a Dask collection in a container"),
    "one array twice": (lambda: {"a": SHARED, "b": SHARED}, r"state\.a and state\.b share memory"),
    "a part of another": (lambda: {"a": SHARED, "b": [SHARED[2:]]}, r"state\.a and state\.b\[0\] share memory"),
    "one list twice": (lambda: {"a": LIST, "b": LIST}, r"state\.b is a list that is in there twice"),
    "itself": (lambda: {"a": [LIST, LIST]}, r"state\.a\[1\] is a list that is in there twice"),
    "a table and its array": (lambda: {"n": 1, "a": TABLE, "b": TABLE.values}, r"state\.a and state\.b cannot be kept"),
    "a masked view": (lambda: {"a": np.ma.masked_array(SHARED, SHARED > 1)[::2]}, r"state\.a is a view with gaps"),
    "a view with gaps": (lambda: {"a": SHARED[::2]}, r"state\.a is a view with gaps"),
    "a view backwards": (lambda: {"a": (SHARED[::-1],)}, r"state\.a\[0\] is a view with gaps"),
    "the generator of numpy": (lambda: {"r": np.random.mtrand._rand}, r"state\.r is the generator that all functions"),
    "the generator of Python": (lambda: {"r": random._inst}, r"state\.r is the generator that all functions"),
    "the machine": (lambda: {"r": random.SystemRandom()}, r"state\.r draws from the machine"),
    "a generator of another class": (lambda: {"r": [Mine(3)]}, r"state\.r\[0\] is a generator .* not known .*Mine"),
}


class Mine(random.Random):
    pass


@pytest.mark.parametrize(("make", "words"), REFUSED.values(), ids=REFUSED)
def test_what_would_not_come_back_is_refused_with_its_place(make, words):
    with pytest.raises(UnsupportedType, match=words):
        pack(State(make()))


def test_what_no_snapshot_can_hold_is_refused_when_it_is_assigned():
    state = State({"x": 1})
    with pytest.raises(UnsupportedType, match=r"state\.x "):
        state.x = lambda: 3
    assert state.x == 1


# -- generators --------------------------------------------------------------------------------------------------------

BITS = ("MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64")
MAKE = {
    "random.Random": random.Random,
    "RandomState": np.random.RandomState,
    "RandomState of PCG64": lambda seed: np.random.RandomState(np.random.PCG64(seed)),
    **{f"Generator of {name}": lambda seed, name=name: _generator(name, seed) for name in BITS},
}


def _generator(name, seed):
    return np.random.Generator(getattr(np.random, name)(seed))


def draw(generator, choice):
    """Draw something; some draws leave half a number for the next one."""
    if isinstance(generator, random.Random):
        return [generator.gauss(0, 1), generator.random(), generator.getrandbits(40), generator.randrange(9)][choice]
    if isinstance(generator, np.random.RandomState):
        return [generator.randn(), generator.rand(), generator.bytes(3), generator.randint(9)][choice]
    if choice == 3:
        return generator.integers(9, dtype=np.int32)
    return [generator.normal(), generator.random(dtype=np.float32), generator.bytes(3)][choice]


@pytest.mark.parametrize("kind", MAKE)
@given(seed=st.integers(0, 2**32 - 1), before=st.lists(st.integers(0, 3), max_size=7))
def test_a_generator_goes_on_where_it_stands(kind, seed, before):
    """Also in the middle of a pair of normal numbers, or of a word of 64 bits."""
    generator = MAKE[kind](seed)
    for choice in before:
        draw(generator, choice)
    again = round_trip(State({"rng": generator})).rng
    assert type(again) is type(generator)
    after = [0, 3, 1, 2, 3, 0, 0, 1]
    assert [draw(generator, choice) for choice in after] == [draw(again, choice) for choice in after]


@pytest.mark.parametrize("name", BITS)
def test_what_is_spawned_goes_on(name):
    """The children of a generator are numbered: the next is another one than the first."""
    generator = _generator(name, 7)
    generator.spawn(2)
    again = round_trip(State({"rng": generator})).rng
    assert generator.spawn(1)[0].random() == again.spawn(1)[0].random()


def test_bit_generators_and_seeds_may_be_fields():
    bits, seed = np.random.PCG64(3), np.random.SeedSequence([3, 4], spawn_key=(5,))
    bits.random_raw()
    seed.spawn(1)
    again = round_trip(State({"bits": bits, "seed": seed}))
    assert again.bits.random_raw() == bits.random_raw()
    assert again.seed.spawn(1)[0].generate_state(2).tolist() == seed.spawn(1)[0].generate_state(2).tolist()


def test_generators_that_are_one_are_one_again():
    """In two fields, in a list, and where two draw from one stream."""
    bits = np.random.PCG64(5)
    rng, other, state = np.random.Generator(bits), np.random.Generator(bits), np.random.RandomState(bits)
    again = round_trip(State({"a": rng, "b": [rng, (other, {"k": state})]}))
    assert again.b[0] is again.a
    assert again.b[1][0].bit_generator is again.a.bit_generator is again.b[1][1]["k"]._bit_generator
    assert [rng.random(), other.random(), state.rand(), rng.random()] == [
        again.a.random(),
        again.b[1][0].random(),
        again.b[1][1]["k"].rand(),
        again.a.random(),
    ]


def test_one_seed_of_two_generators_stays_one():
    seed = np.random.SeedSequence(3)
    first = State({"a": np.random.default_rng(seed), "b": np.random.default_rng(seed)})
    again = round_trip(first)
    for state in (first, again):
        state.a.spawn(1)
    assert first.b.spawn(1)[0].random() == again.b.spawn(1)[0].random()


def test_generators_in_containers_leave_these_as_they_are():
    """The caller's own list keeps its generators."""
    rng = random.Random(3)
    items = [1, (rng, 2)]
    plain, _ = pack(State({"items": items}))
    assert items[1][0] is rng
    assert plain["items"] == [1, (None, 2)]
    again = unpack(stored(plain)).items
    assert (again[0], again[1][1]) == (1, 2)
    assert again[1][0].random() == random.Random(3).random()


BROKEN = {
    "no rows": 3,
    "no places": [{"kind": "random.Random", "of": None, "state": None}],
    "another kind": [{"kind": "os.system", "of": None, "state": None, "places": []}],
    "no state": [{"kind": "numpy.PCG64", "of": None, "state": {}, "places": []}],
    "no such place": [{"kind": "numpy.PCG64", "of": None, "state": np.random.PCG64(1).state, "places": [("y", 3)]}],
}


@pytest.mark.parametrize("rows", BROKEN.values(), ids=BROKEN)
def test_what_describes_no_generator_is_foreign(rows):
    with pytest.raises(Foreign):
        unpack({"x": 1, GENERATORS: rows})


# -- CuPy, by its names ------------------------------------------------------------------------------------------------


class OnDevice:
    """Bytes of a device."""

    def __init__(self, n):
        self.host = np.zeros(n, np.int8)
        self.dtype, self.nbytes = self.host.dtype, n

    def get(self):
        return self.host.copy()

    def set(self, host):
        self.host[:] = host


def xorwow(self, seed, *, size=4):
    self.size, self._state = size, OnDevice(8 * size)
    self._state.host[:] = seed


def draw_cupy(self):
    self.bit_generator._state.host[:] += 1
    return self.bit_generator._state.host.tolist()


@pytest.fixture
def cupy(monkeypatch):
    """Give stand-ins for the classes of cupy.random, which have one state a thread, as bytes."""
    members = {
        ("XORWOW", "_bit_generator"): {"__init__": xorwow, "_state_size": lambda self: self.size},
        ("Generator", "_generator_api"): {
            "__init__": lambda self, bits: setattr(self, "bit_generator", bits),
            "draw": draw_cupy,
        },
        ("RandomState", "_generator"): {},
    }
    module = types.ModuleType("cupy")
    module.random = types.SimpleNamespace()
    for (name, place), each in members.items():
        setattr(module.random, name, type(name, (), {"__module__": f"cupy.random.{place}", **each}))
    monkeypatch.setitem(sys.modules, "cupy", module)
    return module


def test_a_generator_of_cupy_goes_on_where_it_stands(cupy):
    rng = cupy.random.Generator(cupy.random.XORWOW(7, size=3))
    rng.draw()
    again = round_trip(State({"rng": rng, "same": rng}))
    assert again.same is again.rng
    assert again.rng.draw() == rng.draw() == [9] * 24


def test_a_random_state_of_cupy_is_refused_with_what_to_do(cupy):
    with pytest.raises(UnsupportedType, match=r"state\.rng does not show .* draw a seed from it in each step"):
        pack(State({"rng": cupy.random.RandomState()}))


def test_a_release_of_cupy_that_hides_its_states_is_refused(cupy):
    bits = cupy.random.XORWOW(7)
    del bits._state
    with pytest.raises(UnsupportedType, match=r"state\.rng does not show .* in this release of CuPy"):
        pack(State({"rng": cupy.random.Generator(bits)}))
