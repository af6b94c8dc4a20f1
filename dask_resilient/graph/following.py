"""Follows what functions and classes refer to, and keeps a fact of each thing of the user's that it meets.

A function counts by its own code where it stands; what it refers to counts as facts by name, so functions that refer to
one another are no trouble, and it can be told later which of them changed. Nothing here depends on the order in which
things are met, which Dask's sets of dependencies change from process to process.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from functools import cached_property
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

from dask_resilient.core.fingerprints import Fact, combine
from dask_resilient.graph import luck
from dask_resilient.graph.code import MISSING, describe_code, is_importable, qualified, references
from dask_resilient.graph.modules import Import, code_of, docstring, imports, is_namespace, package_of
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
        self._modules: set[str] = set()
        """Whose code was taken in."""

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
        if package and (reason := luck.in_function(function)):
            return self._opaque(reason)
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
        self.imported(Import(module.__name__), None)
        return combine(["module", module.__name__])

    def builtin(self, function: Any) -> str:
        """Give the digest of a compiled function: by its name and the release."""
        owner = function.__self__
        name = qualified(function)
        if reason := luck.in_function(function):
            return self._opaque(reason)
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
        for each in references(function):
            if each.bare and (reason := luck.without_arguments(qualified(each.thing))):
                self._opaque(reason)
            self.refer(f"{function.__module__}.{each.path}", each.thing, each.owner)
        for what in imports(function.__code__):
            self.imported(what, function.__globals__.get("__package__"))

    def refer(self, name: str, thing: Any, owner: str | None = None) -> None:
        """Take in what code reads from outside of itself: of its module, or of another one, the owner."""
        if not self._takes_part(name, thing):
            return
        if owner is not None and not callable(thing) and not isinstance(thing, ModuleType) and self.package(owner):
            return  # data of a library, such as `os.environ`: of that the release says what it is
        if thing is MISSING:
            self.put(name, Fact("value", combine(["missing"]), "not there"))
        elif isinstance(thing, FunctionType | type | BuiltinFunctionType | ModuleType):
            own = thing.__name__ if isinstance(thing, ModuleType) else qualified(thing)
            found = self._digest(thing)
            if own != name:
                # What it does is a fact of its own; only where several may share a name it counts here too.
                known = "<" not in own and luck.is_module(getattr(thing, "__self__", None))
                self.put(name, Fact("value", combine([own, "" if known else found]), own))
        else:
            found = self._digest(thing)
            if isinstance(thing, str) and thing in self._facts:
                found = combine(["path", thing])  # which file it is; what is in it the file itself says
            self.put(name, Fact("value", found, repr(thing) if type(thing) in SHOWN else ""))

    def imported(self, what: Import, package: str | None) -> None:
        """Take in what code of a package imports when it runs: all of it, and what that imports in turn."""
        waiting = [(what, package)]
        while waiting:
            each, of = waiting.pop()
            name = each.absolute(of)
            if name and name not in self._modules:
                self._modules.add(name)
                waiting += self._module(name, sure=each.sure)

    def _module(self, name: str, *, sure: bool) -> Iterator[tuple[Import, str | None]]:
        """Take in the code of a module, and give what it imports."""
        if name == "__main__" or self.package(name):
            return
        try:
            code = code_of(name)
        except ModuleNotFoundError:
            if sure:
                self._opaque(f"module {name} is imported by a task and is not here to be known: give a version=")
            return
        if code is not None:
            self.put(name, Fact("module", combine(describe_code(code, self._digest, docstring(code)))))
            package = package_of(name)
            yield from ((each, package) for each in imports(code))
        elif not is_namespace(name):
            self._opaque(f"module {name} has no source: give a version=")
        if parent := name.rpartition(".")[0]:
            yield Import(parent), None


def _filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018 - an empty cell raises
    except ValueError:
        return False
    return True
