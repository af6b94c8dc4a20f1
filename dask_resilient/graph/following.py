"""Follows what functions and classes refer to, and keeps a fact of each thing of the user's that it meets.

A function counts by its own code where it stands; what it refers to counts as facts by name, so functions that refer to
one another are no trouble, and it can be told later which of them changed. Nothing here depends on the order in which
things are met, which Dask's sets of dependencies change from process to process.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator
from functools import cached_property
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

from dask_resilient.core.fingerprints import Fact, combine
from dask_resilient.graph.code import MISSING, describe_code, imports, is_importable, module_code, qualified, references
from dask_resilient.graph.origins import OURS, PYTHON, origin

SHOWN = (int, float, bool)
"""Values of globals that are shown: numbers say nothing secret."""

_MADE_BY_CODE = 1 << 9
"""Flag of a class that is no static one of C (``Py_TPFLAGS_HEAPTYPE`` of CPython's object.h)."""

_SLOTS = (types.MemberDescriptorType, types.GetSetDescriptorType)
_NO_MEMBERS = frozenset(
    {"__dict__", "__weakref__", "__doc__", "__module__", "__qualname__", "__firstlineno__", "__static_attributes__"}
)


class Following:
    """The code that values refer to.

    Parameters
    ----------
    digest
        Digests a value of any kind.
    opaque
        Takes in why something cannot be pinned down.
    takes_part
        Says of a name and what it refers to whether that takes part.
    """

    def __init__(
        self, digest: Callable[[Any], str], opaque: Callable[[str], str], takes_part: Callable[[str, Any], bool]
    ) -> None:
        self._digest = digest
        self._opaque = opaque
        self._takes_part = takes_part
        self._facts: dict[str, dict[str, Fact]] = {}
        """By name and digest: several things may have one name, such as lambdas, or classes made by a function."""
        self._pending: list[FunctionType] = []
        self._following = False

    def put(self, name: str, fact: Fact) -> None:
        """Keep a fact."""
        self._facts.setdefault(name, {}).setdefault(fact.digest, fact)

    def facts(self) -> dict[str, Fact]:
        """Give the facts by name; where several things have one, with the beginning of their digests."""
        return {
            name if len(named) == 1 else f"{name} #{digest[:8]}": fact
            for name, named in self._facts.items()
            for digest, fact in named.items()
        }

    def follow(self) -> None:
        """Follow the functions that were met since."""
        if self._following:
            return
        self._following = True
        try:
            while self._pending:
                self._follow(self._pending.pop())
        finally:
            self._following = False

    # -- what is met ---------------------------------------------------------------------------------------------------

    def package(self, module: str | None) -> str:
        """Take in the release of what a module belongs to, and give its name; empty for code of the user's."""
        if (module or "").partition(".")[0] == OURS:
            return OURS
        found = origin(module)
        if found is None:
            return ""
        name, release = found
        self.put(name, Fact(PYTHON if name == PYTHON else "package", combine([name, release]), release))
        return name

    def function(self, function: FunctionType) -> str:
        """Give the digest of a function: by its name and the release if it is that of a library, else by its code.

        What a library makes of the user's functions, such as a decorator's wrapper, counts by its code and what it
        holds; of what it refers to the release says enough.
        """
        name = qualified(function)
        package = self.package(function.__globals__.get("__name__"))
        if package and is_importable(function):
            return combine(["function", package, name])
        closure = [cell.cell_contents for cell in function.__closure__ or () if _filled(cell)]
        parts = (function.__defaults__, function.__kwdefaults__, closure, vars(function))
        code = describe_code(function.__code__, self._digest, function.__doc__)
        found = combine(["function", *code, *map(self._digest, parts)])
        if not package:
            self.put(name, Fact("function", found, f"line {function.__code__.co_firstlineno}"))
            self._pending.append(function)
        return found

    def module(self, module: ModuleType) -> str:
        """Give the digest of a module that is itself a value: all of it may be read."""
        if package := self.package(module.__name__):
            return combine(["module", package, module.__name__])
        self._whole(module)
        return combine(["module", module.__name__])

    def builtin(self, function: Any) -> str:
        """Give the digest of a compiled function: by its name and the release."""
        owner = function.__self__
        name = qualified(function)
        if owner is not None and not isinstance(owner, ModuleType):
            return combine(["method", name, self._digest(owner)])
        package = self.package(getattr(function, "__module__", None) or "builtins")
        if not package:
            return self._opaque(f"{name} is compiled code that is not installed: give a version=")
        return combine(["builtin", package, name])

    def cls(self, cls: type) -> str:
        """Give the digest of a class: by its name and the release if it is that of a library, else by its members."""
        name = qualified(cls)
        made = bool(cls.__flags__ & _MADE_BY_CODE)
        if (package := self.package(cls.__module__)) and (not made or is_importable(cls)):
            return combine(["class", package, name])
        parts = [self._digest(base) for base in (type(cls), *cls.__bases__) if base not in (type, object)]
        for member, thing in sorted(vars(cls).items()):
            if member not in _NO_MEMBERS and not member.startswith("_abc_") and not isinstance(thing, _SLOTS):
                parts += [member, *self._member(thing)]
        found = combine(["class", name, *parts])
        self.put(name, Fact("class", found))
        return found

    def _member(self, thing: Any) -> Iterator[str]:
        if isinstance(thing, staticmethod | classmethod):
            yield from (type(thing).__name__, self._digest(thing.__func__))
        elif isinstance(thing, cached_property):
            yield from ("property", self._digest(thing.func))
        elif isinstance(thing, property):
            yield from ("property", *map(self._digest, (thing.fget, thing.fset, thing.fdel)))
        else:
            yield self._digest(thing)

    # -- what that refers to -------------------------------------------------------------------------------------------

    def _follow(self, function: FunctionType) -> None:
        for path, thing in references(function):
            self.refer(f"{function.__module__}.{path}", thing)
        for module in imports(function.__code__):
            self.imported(module)

    def refer(self, name: str, thing: Any) -> None:
        """Take in what code reads from outside of itself, such as a function of its module."""
        if not self._takes_part(name, thing):
            return
        if thing is MISSING:
            self.put(name, Fact("value", combine(["missing"]), "not there"))
        elif isinstance(thing, FunctionType | type | BuiltinFunctionType | ModuleType):
            own = thing.__name__ if isinstance(thing, ModuleType) else qualified(thing)
            found = self._digest(thing)
            if own != name:
                # What it does is a fact of its own; only where several may share a name it counts here too.
                self.put(name, Fact("value", combine([own, found if "<" in own else ""]), own))
        else:
            self.put(name, Fact("value", self._digest(thing), repr(thing) if type(thing) in SHOWN else ""))

    def imported(self, name: str) -> None:
        """Take in a module that code imports when it runs: all of it."""
        if self.package(name):
            return
        module = sys.modules.get(name)
        if module is None:
            self.put(name, Fact("module", combine(["not imported"]), "not imported"))
        else:
            self._whole(module)

    def _whole(self, module: ModuleType) -> None:
        code = module_code(module)
        if code is None:
            self._opaque(f"module {module.__name__} has no source: give a version=")
        else:
            self.put(module.__name__, Fact("module", combine(describe_code(code, self._digest, module.__doc__))))


def _filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018 - an empty cell raises
    except ValueError:
        return False
    return True
