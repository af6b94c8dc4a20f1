"""Values by content: what equals in another process has the same digest there, whatever its address or its hash.

Known types are written out one by one; any other object counts by its class and by what `pickle` would keep of it,
taken apart and digested in the same way, never pickled as bytes (those depend on which objects are shared). What cannot
be taken apart is opaque: it gives a reason why nothing that depends on it can be known again.

A Dask collection counts by its own fingerprint; :mod:`~dask_resilient.graph.fingerprint` makes a digester that can.
"""

from __future__ import annotations

import hashlib
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import PosixPath, PurePath, PurePosixPath, PureWindowsPath, WindowsPath
from types import BuiltinFunctionType, CodeType, FunctionType, MappingProxyType, MethodType, ModuleType
from typing import Any

import numpy as np
from dask.base import is_dask_collection

from dask_resilient.core.fingerprints import Fact, combine
from dask_resilient.graph.arguments import Arguments
from dask_resilient.graph.code import describe_code, is_importable, qualified
from dask_resilient.graph.following import Following
from dask_resilient.graph.inputs import input_of
from dask_resilient.graph.known import known
from dask_resilient.graph.luck import UNSEEDED, in_function
from dask_resilient.graph.modules import Import

ENTROPY_BITS = 96
"""A seed of more bits than this was drawn by the machine; NumPy draws 128."""

OPTIONS = "storage_options"
"""The argument by which Dask's readers take credentials: who reads a file does not change what is in it."""

ENDPOINTS = ("endpoint", "endpoint_url", "endpoint_override")
"""What of it takes part all the same: the same path elsewhere is another file."""

FUTURE = "distributed.client.Future"
_FILESYSTEMS = {"fsspec.spec.AbstractFileSystem", "pyarrow._fs.FileSystem"}
LOCKS = (type(threading.Lock()), type(threading.RLock()))
"""They hold nothing that a result could depend on."""

_PLAIN = frozenset({bool, int, float, complex, bytes, type(None), type(...)})
_ANY_SUBCLASS = (type, ModuleType, PosixPath, PurePosixPath, WindowsPath, PureWindowsPath, np.dtype)
"""Kinds of which a subclass is nothing more; other subclasses may hold what their base does not know."""


class Digester:
    """Digests values, and keeps the facts that they rely on.

    Parameters
    ----------
    collection
        Gives the digest of a Dask collection, by this digester.
    takes_part
        Says whether what is met takes part; it may take in why something cannot be pinned down. Asked of each thing
        that code refers to, with its name, and without one of each value that such things hold; not of data.

    Attributes
    ----------
    reasons
        Why something cannot be pinned down, each once, in the order in which it was met.
    """

    def __init__(
        self,
        collection: Callable[[Any, Digester], str],
        takes_part: Callable[[str, Any], bool] = lambda _name, _value: True,
    ) -> None:
        self._collection = collection
        self._takes_part = takes_part
        self._code = Following(self.digest, self.opaque, takes_part)
        self._data = 0
        """How many times over what is digested now is data."""
        self.reasons: dict[str, None] = {}
        self._memo: dict[tuple[int, bool], tuple[Any, str, bool]] = {}
        """By address, and whether it was digested as data; with whether it holds a file."""
        self._texts: dict[str, str] = {}
        self._inputs: set[str] = set()
        self._holds_input = False
        """Whether a file was met in what is digested now."""
        self._arguments = Arguments()
        self._open: dict[int, int] = {}
        self._met_cycle = False
        self._arms: tuple[tuple[Any, Callable[[Any], str]], ...] = (
            (tuple(_PLAIN), _plain),
            (str, self._text),
            (PurePath, lambda path: combine(["path", self._text(str(path))])),
            ((tuple, list), self._sequence),
            ((set, frozenset), lambda x: combine([type(x).__name__, *sorted(map(self.digest, x))])),
            (dict, self._mapping),
            (MappingProxyType, lambda mapping: self._mapping(dict(mapping))),
            (LOCKS, lambda lock: combine(["lock", type(lock).__name__])),
            (FunctionType, self._code.function),
            (BuiltinFunctionType, self._code.builtin),
            (MethodType, self._method),
            (partial, lambda p: combine(["partial", *map(self.digest, (p.func, p.args, p.keywords))])),
            (CodeType, lambda code: combine(describe_code(code, self.digest))),
            (ModuleType, self._code.module),
            (type, self._code.cls),
            (np.ufunc, self._ufunc),
            (np.ndarray, self._array),
            (np.dtype, lambda dtype: combine(["dtype", dtype.str, repr(dtype)])),
            (np.random.SeedSequence, self._seed),
        )

    def argument(self, function: str, name: str, value: Any, digest: Callable[[], str]) -> str:
        """Give the digest of an argument of a call, and take it in: all calls of a function count together.

        Not where it holds a file: that says itself what it is.
        """
        outer, self._holds_input = self._holds_input, False
        found = digest()
        if not self._holds_input:
            self._arguments.add(function, name, found, value)
        self._holds_input = outer or self._holds_input
        return found

    def facts(self) -> dict[str, Fact]:
        """Give the facts by name, those of arguments too."""
        return self._arguments.facts() | self._code.facts()

    def opaque(self, reason: str) -> str:
        """Take in that something cannot be pinned down."""
        self.reasons[reason] = None
        return combine(["opaque"])

    def future(self, key: Any) -> str:
        """Give the digest of what is on the cluster under a key: known if that is a milestone's."""
        found = known(key)
        if found is None:
            return self.opaque("it stands on futures: mark it before persist(), or mark what was persisted as well")
        for name, fact in found.facts.items():
            self._code.put(name, fact)
        return combine(["milestone", found.digest, repr(key[1:] if isinstance(key, tuple) else ())])

    def refer(self, name: str, thing: Any, owner: str | None = None) -> None:
        """Take in what code reads from outside of itself, by a name; and of which module, if not of its own."""
        self._code.refer(name, thing, owner)
        self._code.follow()

    def put(self, name: str, fact: Fact) -> None:
        """Keep a fact that was found out otherwise."""
        self._code.put(name, fact)

    def imported(self, what: Import, package: str | None) -> None:
        """Take in what code of a package imports when it runs."""
        self._code.imported(what, package)
        self._code.follow()

    def data(self, value: Any) -> str:
        """Give the digest of what is only data, as the graph of a collection is: all of it takes part."""
        return self._as_data(self.digest, value)

    def _as_data(self, digest: Callable[[Any], str], value: Any) -> str:
        self._data += 1
        try:
            return digest(value)
        finally:
            self._data -= 1

    def digest(self, value: Any) -> str:
        """Give the digest of a value."""
        kind = type(value)
        if kind in _PLAIN:
            return _plain(value)
        if kind is str:
            self._holds_input |= value in self._inputs
            return self._texts.get(value) or self._texts.setdefault(value, self._text(value))
        if not self._data and not self._takes_part("", value):
            return combine(["no part"])
        known = self._memo.get((id(value), self._data > 0))
        if known is None:
            return self._compound(value)
        self._holds_input |= known[2]
        return known[1]

    def _compound(self, value: Any) -> str:
        if id(value) in self._open:
            self._met_cycle = True
            return combine(["again", str(len(self._open) - self._open[id(value)])])
        outer, self._met_cycle = self._met_cycle, False
        held, self._holds_input = self._holds_input, False
        self._open[id(value)] = len(self._open)
        try:
            found = self._dispatch(value)
        except RecursionError:
            found = self.opaque(f"an object of type {qualified(type(value))} is nested too deep")
        finally:
            del self._open[id(value)]
        # What stands inside a cycle has another digest from elsewhere in it.
        if not self._met_cycle or not self._open:
            self._memo[id(value), self._data > 0] = (value, found, self._holds_input)
        self._holds_input |= held
        self._met_cycle = outer or (self._met_cycle and bool(self._open))
        if not self._open:
            self._code.follow()
        return found

    def _dispatch(self, value: Any) -> str:
        if is_dask_collection(value):
            return self._as_data(lambda each: self._collection(each, self), value)
        for kinds, arm in self._arms:
            if isinstance(value, kinds):
                exact = type(value) in (kinds if isinstance(kinds, tuple) else (kinds,))
                return arm(value) if exact or isinstance(value, _ANY_SUBCLASS) else self._object(value)
        return self._object(value)

    # -- data ----------------------------------------------------------------------------------------------------------

    def _text(self, text: str) -> str:
        found = input_of(text)
        if found is None:
            return combine(["str", text])
        if not found.digest:
            return self.opaque(f"{text!r} has {found.shown}: say what it is by version=")
        self._inputs.add(text)
        self._holds_input = True
        self._code.put(text, found)
        return combine(["input", found.digest])

    def _sequence(self, values: Iterable[Any]) -> str:
        return combine(["list" if isinstance(values, list) else "tuple", *map(self.digest, values)])

    def _mapping(self, values: dict[Any, Any]) -> str:
        pairs = ((self.digest(k), self.options(v) if k == OPTIONS else self.digest(v)) for k, v in values.items())
        return combine(["dict", *(each for pair in pairs for each in pair)])

    def options(self, options: Any) -> str:
        """Give the digest of what says how files are read, without credentials."""
        if not isinstance(options, Mapping):
            return self.digest(options)
        nested = [each for each in (options, options.get("client_kwargs")) if isinstance(each, Mapping)]
        said = [self.digest(each[name]) for each in nested for name in ENDPOINTS if name in each]
        return combine(["options", *said])

    def _method(self, method: MethodType) -> str:
        if reason := in_function(method):
            return self.opaque(reason)
        return combine(["method", self.digest(method.__func__), self.digest(method.__self__)])

    def _array(self, array: np.ndarray[Any, Any]) -> str:
        if array.dtype.hasobject:
            items = map(self.digest, array.ravel().tolist())
            return combine(["array", self.digest(array.dtype), str(array.shape), *items])
        h = hashlib.blake2b(np.ascontiguousarray(array).view(np.uint8).data if array.size else b"", digest_size=16)
        layout = "F" if array.flags.fnc else "C"
        return combine(["array", self.digest(array.dtype), str(array.shape), layout, h.hexdigest()])

    def _seed(self, seed: np.random.SeedSequence) -> str:
        entropy = seed.entropy
        if isinstance(entropy, int) and entropy.bit_length() > ENTROPY_BITS:
            return self.opaque(UNSEEDED)
        return combine(["seed", *map(self.digest, (entropy, seed.spawn_key, seed.pool_size, seed.n_children_spawned))])

    def _ufunc(self, ufunc: np.ufunc) -> str:
        for name in ("numpy", "scipy.special"):
            if getattr(sys.modules.get(name), ufunc.__name__, None) is ufunc:
                return combine(["ufunc", self._code.package(name), ufunc.__name__])
        return self.opaque(f"ufunc {ufunc.__name__!r} is of no library: give a version=")

    def _named(self, value: Any, name: str) -> str:
        """Give an object that pickle would look up by its name."""
        module = getattr(value, "__module__", None)
        package = self._code.package(module)
        if package and is_importable(value, name):
            return combine(["named", package, f"{module}.{name}"])
        wrapped = getattr(value, "__wrapped__", None)
        if wrapped is None:
            return self.opaque(f"{module}.{name} is known by its name only: give a version=")
        return combine(["named", qualified(type(value)), self.digest(wrapped)])

    def _object(self, value: Any) -> str:
        """Take any other object apart as pickle would."""
        cls = type(value)
        if FUTURE in map(qualified, cls.__mro__):
            return self.future(value.key)
        if not _FILESYSTEMS.isdisjoint(map(qualified, cls.__mro__)):
            return combine(["filesystem", qualified(cls), self.options(getattr(value, "storage_options", None))])
        try:
            reduced = value.__reduce_ex__(4)
        except Exception:
            return self.opaque(f"an object of type {qualified(cls)} cannot be taken apart: give a version=")
        if isinstance(reduced, str):
            return self._named(value, reduced)
        make, args, *rest = reduced
        parts = [self.digest(make), self.digest(args)]
        state, items, pairs = (*rest, None, None, None)[:3]
        parts.append(self.digest(state))
        parts += [self.digest(item) for item in items or ()]
        parts += [self.digest(pair) for pair in pairs or ()]
        return combine(["object", self.digest(cls), *parts])


def _plain(value: Any) -> str:
    return combine([type(value).__name__, repr(value)])
