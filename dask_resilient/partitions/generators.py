"""Generators of random numbers as plain values, and back at the same position of the same stream. Nothing is pickled.

A table says of each kind how it is read and made. A generator of NumPy stands on a bit generator, that on a seed: each
is a row of its own, so two generators that draw from one stream do so again. What has no row, or no way to read where
it stands, is refused with what to use instead.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from dask_resilient.errors import Foreign, LoadError, Unreachable
from dask_resilient.partitions.inexact import Inexact

__all__ = ["GeneratorPacker", "is_generator", "unpack_generators"]

INSTEAD = "hold a generator of NumPy, such as numpy.random.default_rng(7), and draw a seed from it in each step"

_BITS = ("MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64")
_CUPY_BITS = ("XORWOW", "MRG32k3a", "Philox4x3210")

_KINDS: dict[tuple[str, str], str] = {
    ("random", "Random"): "random.Random",
    ("numpy.random._generator", "Generator"): "numpy.Generator",
    ("numpy.random.mtrand", "RandomState"): "numpy.RandomState",
    ("numpy.random.bit_generator", "SeedSequence"): "numpy.SeedSequence",
    **{(f"numpy.random._{name.lower()}", name): f"numpy.{name}" for name in _BITS if name != "PCG64DXSM"},
    ("numpy.random._pcg64", "PCG64DXSM"): "numpy.PCG64DXSM",
    ("cupy.random._generator_api", "Generator"): "cupy.Generator",
    **{("cupy.random._bit_generator", name): f"cupy.{name}" for name in _CUPY_BITS},
}
"""By module and name of the class, the kind that stands in a row."""

_REFUSED = {
    ("random", "SystemRandom"): "draws from the machine, so no run can be repeated",
    ("cupy.random._generator", "RandomState"): "does not show where its stream stands (cuRAND has no call for it)",
}
_BASES = {
    *_KINDS,
    *_REFUSED,
    ("numpy.random.bit_generator", "BitGenerator"),
    ("numpy.random.bit_generator", "ISeedSequence"),
    ("cupy.random._bit_generator", "BitGenerator"),
}


def is_generator(value: Any) -> bool:
    """Say whether a value is, or inherits from, a generator of random numbers or a part of one."""
    return any((cls.__module__, cls.__qualname__) in _BASES for cls in type(value).__mro__)


class GeneratorPacker:
    """Packs generators, each once however often it is met.

    Attributes
    ----------
    rows
        Of plain values, in the order in which they can be made again.
    """

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self._known: dict[int, tuple[int, Any]] = {}

    def pack(self, value: Any) -> int:
        """Pack a generator and give the number of its row.

        Raises
        ------
        Inexact
            If it would not go on where it stands; the reason reads on after a name.
        """
        known = self._known.get(id(value))
        if known is None:
            row = self._row(value)
            self.rows.append(row)
            known = self._known[id(value)] = (len(self.rows) - 1, value)  # held, so that no other gets its address
        return known[0]

    def _row(self, value: Any) -> dict[str, Any]:
        name = type(value).__module__, type(value).__qualname__
        if name in _REFUSED:
            raise Inexact(f"{_REFUSED[name]}; {INSTEAD}")
        kind = _KINDS.get(name)
        if kind is None:
            raise Inexact(f"is a generator of random numbers of a kind that is not known ({'.'.join(name)}); {INSTEAD}")
        if _is_global(value):
            raise Inexact(f"is the generator that all functions of {name[0].partition('.')[0]} draw from; {INSTEAD}")
        of, state = _READ[kind](value)
        return {"kind": kind, "of": None if of is None else self.pack(of), "state": state}


def unpack_generators(rows: Any) -> list[Any]:
    """Make the generators of some rows again.

    Raises
    ------
    Unreachable
        If a library is missing here, or memory.
    Foreign
        If the rows describe no generators.
    """
    made: list[Any] = []
    try:
        for row in rows:
            of = None if row["of"] is None else made[row["of"]]
            made.append(_MAKE[row["kind"]](row["kind"].partition(".")[2], of, row["state"]))
    except LoadError:
        raise
    except (ImportError, MemoryError) as e:
        raise Unreachable(f"a generator cannot be made here: {e!r}") from e
    except Exception as e:
        raise Foreign(f"the snapshot describes no generator of random numbers: {e!r}") from e
    return made


def _is_global(value: Any) -> bool:
    """Whether functions of a module draw from it: as another object they would not."""
    bits = getattr(value, "_bit_generator", value)
    everywhere = (getattr(random.seed, "__self__", None), np.random.get_bit_generator())  # type: ignore[attr-defined]
    return any(bits is each for each in everywhere)


# -- Python ------------------------------------------------------------------------------------------------------------


def _make_python(_name: str, _of: Any, state: Any) -> random.Random:
    made = random.Random(0)  # noqa: S311 - nothing secret is drawn
    made.setstate(state)
    return made


# -- NumPy -------------------------------------------------------------------------------------------------------------


def _read_seed(seed: np.random.SeedSequence) -> tuple[None, dict[str, Any]]:
    # Of the same seed another array or list may be in the state: a copy, so that it is in there once.
    entropy: Any = seed.entropy
    if isinstance(entropy, np.ndarray | list):
        entropy = entropy.copy()
    return None, {
        "entropy": entropy,
        "spawn_key": tuple(seed.spawn_key),
        "pool_size": seed.pool_size,
        "n_children_spawned": seed.n_children_spawned,
    }


def _read_bits(bits: Any) -> tuple[Any, dict[str, Any]]:
    return bits.seed_seq, bits.state


def _make_bits(name: str, of: Any, state: Mapping[str, Any]) -> Any:
    if name not in _BITS:
        raise Foreign(f"{name!r} is no bit generator of NumPy")
    made = getattr(np.random, name)(0 if of is None else of)
    if of is None and name == "MT19937":
        made._legacy_seeding(0)  # as in RandomState(7): it has no seed that could be spawned
    made.state = state
    return made


def _read_state(generator: np.random.RandomState) -> tuple[Any, dict[str, Any]]:
    state: Any = generator.get_state(legacy=False)
    return generator._bit_generator, {"has_gauss": state["has_gauss"], "gauss": state["gauss"]}


def _make_state(_name: str, of: Any, state: Mapping[str, Any]) -> np.random.RandomState:
    made = np.random.RandomState(of)
    made.set_state({**of.state, **state})
    return made


# -- CuPy --------------------------------------------------------------------------------------------------------------


def _read_cupy(bits: Any) -> tuple[None, dict[str, Any]]:
    # One cuRAND state a thread, as bytes on the device: all that its kernels read and write.
    states: Any = getattr(bits, "_state", None)
    if getattr(getattr(states, "dtype", None), "char", "") != "b" or not hasattr(bits, "_state_size"):
        raise Inexact(f"does not show where its stream stands in this release of CuPy; {INSTEAD}")
    return None, {"size": int(bits._state_size()), "states": states.get()}


def _make_cupy(name: str, _of: Any, state: Mapping[str, Any]) -> Any:
    import cupy

    if name not in _CUPY_BITS:
        raise Foreign(f"{name!r} is no bit generator of CuPy")
    made = getattr(cupy.random, name)(0, size=state["size"])
    if made._state.nbytes != state["states"].nbytes:
        raise Unreachable(f"cupy.random.{name} has states of another size in this release of CuPy")
    made._state.set(state["states"])
    return made


def _make_cupy_generator(_name: str, of: Any, _state: Any) -> Any:
    import cupy

    return cupy.random.Generator(of)


# -- the table ---------------------------------------------------------------------------------------------------------

Read = Callable[[Any], tuple[Any, Any]]
"""Gives what a generator stands on, if that is a row of its own, and its own state."""
Make = Callable[[str, Any, Any], Any]
"""Makes a generator from its name, what it stands on, and its state."""

_ROWS: Sequence[tuple[str, Read, Make]] = [
    ("random.Random", lambda generator: (None, generator.getstate()), _make_python),
    ("numpy.SeedSequence", _read_seed, lambda _name, _of, state: np.random.SeedSequence(**state)),
    *((f"numpy.{name}", _read_bits, _make_bits) for name in _BITS),
    ("numpy.Generator", lambda g: (g.bit_generator, None), lambda _name, of, _state: np.random.Generator(of)),
    ("numpy.RandomState", _read_state, _make_state),
    *((f"cupy.{name}", _read_cupy, _make_cupy) for name in _CUPY_BITS),
    ("cupy.Generator", lambda g: (g.bit_generator, None), _make_cupy_generator),
]
_READ = {kind: read for kind, read, _ in _ROWS}
_MAKE = {kind: make for kind, _, make in _ROWS}
