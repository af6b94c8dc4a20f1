"""The state of a loop: a namespace, and its way to plain values and back.

What goes into a snapshot comes back bit by bit and in the same layout, or is refused with the name of its field. A loop
also begins with what a snapshot would give back, copies that have no part in common with the caller's own objects: so
one that was interrupted ends as one that was not.

Two fields that are one generator of random numbers, or two that draw from one stream, come back so. Two fields that are
one array or one list, or share memory, are refused: a change of one in place would show in the other only until the
loop is interrupted.
"""

from __future__ import annotations

import difflib
import itertools
import re
import reprlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from dask.base import is_dask_collection

from dask_resilient import partitions
from dask_resilient.core.outcome import Declined
from dask_resilient.errors import Foreign, UnsupportedType
from dask_resilient.partitions.generators import GeneratorPacker, is_generator, unpack_generators
from dask_resilient.partitions.inexact import Inexact
from dask_resilient.partitions.table import codec_of
from dask_resilient.protocols import Staged

__all__ = ["State", "copied", "pack", "unpack"]

GENERATORS = "$generators"
"""Beside the fields, and no name of one: the generators in them, and where each has its place."""

MAX_DEPTH = 100
"""So deep a codec goes."""

SHOWN = 6
"""Fields that the text of a state shows."""

_PLACE = re.compile(r"at \['(?P<field>\w+)'\](?P<rest>.*?): (?:the value )?(?P<reason>.*)", re.DOTALL)

_SHARED = re.compile("twice|memory overlaps")

Path = tuple[int | str, ...]
"""The name of a field, then the position in each container: of a dict, in its order."""


class State:
    """What a loop carries from step to step: its fields are attributes.

    Fields are set by the call of the loop. A step may set new ones and delete others. A field holds a NumPy or CuPy
    array, a table of pandas or cuDF, a number, text, None, a list, tuple or dict of such, a generator of random
    numbers, or a Dask collection.
    """

    def __init__(self, fields: Mapping[str, Any] | None = None, /) -> None:
        for name, value in (fields or {}).items():
            setattr(self, name, value)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set a field.

        Raises
        ------
        UnsupportedType
            If no snapshot could hold such a value; what is in a container is looked at when a snapshot is taken.
        """
        if not name.isidentifier() or name.startswith("__"):
            raise UnsupportedType(f"{name!r} is no name for a field of a state; begin it with a letter")
        if reason := _refused(value):
            raise UnsupportedType(f"state.{name} {reason}")
        vars(self)[name] = value

    def __getattr__(self, name: str) -> Any:
        """Say what is there instead of a field that is not."""
        raise AttributeError(_absent(name, list(vars(self))), name=name, obj=self)

    def __delattr__(self, name: str) -> None:
        """Delete a field."""
        if name not in vars(self):
            raise AttributeError(_absent(name, list(vars(self))), name=name, obj=self)
        del vars(self)[name]

    def __repr__(self) -> str:
        """Show the first fields in short."""
        shown = [f"{name}={_short(value)}" for name, value in list(vars(self).items())[:SHOWN]]
        more = ["..."] if len(vars(self)) > SHOWN else []
        return f"State({', '.join(shown + more)})"


def pack(state: State) -> tuple[dict[str, Any], dict[str, Any]]:
    """Give the fields as plain values that the codecs take exactly, and the Dask collections by field.

    The values are the state's own objects, but for generators and the containers that hold some.

    Raises
    ------
    UnsupportedType
        If something in a field would not come back as it is; the message names the place.
    """
    plain, collections, _ = _packed(state)
    return plain, collections


def unpack(fields: Mapping[str, Any]) -> State:
    """Give the state of what `pack` gave, both parts of it in one mapping; the values are given away.

    Raises
    ------
    Unreachable, Foreign
        If the generators in it cannot be made.
    """
    rest = {name: value for name, value in fields.items() if name != GENERATORS}
    for generator, paths in _generators(fields.get(GENERATORS)):
        for place in paths:
            field, path = str(place[0]), list(place[1:])
            try:
                rest[field] = _put(rest[field], path, generator)
            except (LookupError, TypeError) as e:
                raise Foreign(f"a generator has its place in {field!r}, which has no such place: {e!r}") from e
    return State(rest)


def copied(state: State) -> State:
    """Give a state as a snapshot of this one would give it back.

    Raises
    ------
    UnsupportedType
        As `pack`.
    """
    _, collections, staged = _packed(state)
    payload = np.empty(staged.nbytes, np.uint8)
    at = 0
    for chunk in staged.chunks:
        for buffer in chunk:
            part = np.frombuffer(buffer, np.uint8)[: staged.nbytes - at]
            payload[at : at + part.size] = part
            at += part.size
    restored = unpack(partitions.restore(staged.codec, staged.schema, payload) | collections)
    return State({name: getattr(restored, name) for name in vars(state)})  # fields in their order


def _packed(state: State) -> tuple[dict[str, Any], dict[str, Any], Staged]:
    collections = {name: value for name, value in vars(state).items() if is_dask_collection(value)}
    walk = _Walk()
    plain = {name: walk.plain(value, (name,), name) for name, value in vars(state).items() if name not in collections}
    if walk.places:
        rows = walk.packer.rows
        plain[GENERATORS] = [{**row, "places": walk.places.get(i, [])} for i, row in enumerate(rows)]
    staged = partitions.stage(plain)
    if isinstance(staged, Declined):
        raise UnsupportedType(walk.explain(plain, staged.reason))
    return plain, collections, staged


class _Walk:
    """Goes through the fields: takes out the generators, and looks at what the codecs do not tell."""

    def __init__(self) -> None:
        self.packer = GeneratorPacker()
        self.places: dict[int, list[Path]] = {}
        self._arrays: list[tuple[str, np.ndarray[Any, Any]]] = []

    def plain(self, value: Any, path: Path, where: str) -> Any:
        """Give a value without its generators; itself if it has none."""
        kind = type(value)
        if kind in (list, tuple, dict) and len(path) <= MAX_DEPTH:
            return self._container(value, path, where)
        if is_generator(value):
            try:
                self.places.setdefault(self.packer.pack(value), []).append(path)
            except Inexact as e:
                raise UnsupportedType(f"state.{where} {e}") from None
            return None
        if kind is np.ndarray:
            self._arrays.append((where, value))
        if reason := _refused(value, nested=len(path) > 1):
            raise UnsupportedType(f"state.{where} {reason}")
        return value

    def _container(self, value: Any, path: Path, where: str) -> Any:
        items = value.items() if type(value) is dict else enumerate(value)
        changed = {}
        for i, (key, each) in enumerate(items):
            if type(each) not in _HARMLESS:
                done = self.plain(each, (*path, i), f"{where}[{key!r}]")
                if done is not each:
                    changed[key] = done
        if not changed:
            return value
        if type(value) is dict:
            return value | changed
        return type(value)(changed.get(i, each) for i, each in enumerate(value))

    def explain(self, plain: Mapping[str, Any], reason: str) -> str:
        """Say why a codec has declined, with the name of the field."""
        for i, (where, array) in enumerate(self._arrays if _SHARED.search(reason) else []):
            for other, before in self._arrays[:i]:
                if np.may_share_memory(array, before):
                    return (
                        f"state.{other} and state.{where} share memory, which they would not any more when the loop is "
                        "resumed; copy one of them"
                    )
        found = _PLACE.match(reason)
        if found is not None:
            colon = ":" if found["reason"].startswith("the ") else ""
            return f"state.{found['field']}{found['rest']}{colon} {found['reason']}"
        for one, other in itertools.combinations(plain, 2):
            if isinstance(partitions.stage({one: plain[one], other: plain[other]}), Declined):
                return f"state.{one} and state.{other} cannot be kept together: {reason}"
        return f"the state cannot be kept: {reason}"


_HARMLESS = frozenset({int, float, bool, str, bytes, type(None)})
"""Types of which there is nothing to look at, but may be a million."""


def _refused(value: Any, *, nested: bool = False) -> str:
    """Say why a value can be no part of a state, by its type and its layout; empty if it can."""
    if is_dask_collection(value):
        return "is a Dask collection in a container; give it a field of its own" if nested else ""
    if is_generator(value):
        return ""
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    if codec_of(type(value)) is None:
        return f"is a {kind}, which no snapshot can hold; keep it outside of the loop, or keep what it is made of"
    if isinstance(value, np.ndarray) or kind in ("cupy.ndarray", "cupy._core.core.ndarray"):
        value = value.view(np.ndarray) if isinstance(value, np.ndarray) else value
        if not _has_gaps(value):
            return ""
        # Sums may round differently over another layout.
        return "is a view with gaps in memory, which would be closed when the loop is resumed; add .copy()"
    return ""


def _has_gaps(array: Any) -> bool:
    core = array[(..., *(slice(0, 1) if stride == 0 else slice(None) for stride in array.strides))]
    order = sorted(range(core.ndim), key=lambda i: (-core.strides[i], i))
    return not (core.flags.c_contiguous or core.transpose(order).flags.c_contiguous)


def _generators(rows: Any) -> Iterator[tuple[Any, list[Path]]]:
    """Make the generators, and give each with its places."""
    if rows is None:
        return
    try:
        places = [row["places"] for row in rows]
    except (TypeError, LookupError) as e:
        raise Foreign(f"the snapshot describes no generators: {e!r}") from e
    yield from zip(unpack_generators(rows), places, strict=True)


def _put(container: Any, path: list[int | str], value: Any) -> Any:
    """Give a container with a value at a place, changed in place where it can be."""
    if not path:
        return value
    i, rest = path[0], path[1:]
    if type(container) is dict:
        key = list(container)[int(i)]
        container[key] = _put(container[key], rest, value)
        return container
    items = list(container)
    items[int(i)] = _put(items[int(i)], rest, value)
    if type(container) is tuple:
        return tuple(items)
    container[:] = items
    return container


def _absent(name: str, fields: list[str]) -> str:
    near = difflib.get_close_matches(name, fields, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(fields[:SHOWN]) or 'none'}"
    return f"the state of the loop has no field {name!r}; {hint}"


def _short(value: Any) -> str:
    if type(value) in _HARMLESS or type(value) in (list, tuple, dict):
        return reprlib.repr(value)
    shape = getattr(value, "shape", None)
    known = isinstance(shape, tuple) and all(type(n) is int for n in shape)
    return f"<{type(value).__name__}{f' {shape}' if known else ''}>"
