"""Modules that code imports when it runs: which they are, and their code, also where this process has none of them.

A worker imports what a function imports; the client may never have. So all code of such a module counts, and of what it
imports in turn.
"""

from __future__ import annotations

import dis
import importlib.util
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import CodeType
from typing import Any


@dataclass(frozen=True, slots=True)
class Import:
    """A name that is imported."""

    name: str
    """With a leading dot for each level that it is relative by."""
    sure: bool = True
    """Whether it is a module; what is imported *from* a package may be one, or anything else."""

    def absolute(self, package: str | None) -> str:
        """Give the name as seen from everywhere; empty where that cannot be told."""
        if not self.name.startswith("."):
            return self.name
        try:
            return importlib.util.resolve_name(self.name, package)
        except ImportError:
            return ""


def imports(code: CodeType) -> Iterator[Import]:
    """Give what code imports when it runs, the functions that it defines too."""
    yield from imports_of((each.opname, each.argval) for each in dis.get_instructions(code))


def imports_of(instructions: Iterable[tuple[str, Any]]) -> Iterator[Import]:
    """Give what instructions import, each by its name and what it is about; constants may be code."""
    constants: list[Any] = [0, None]
    base = ""
    for opname, argument in instructions:
        if isinstance(argument, CodeType):
            yield from imports(argument)
        elif opname in ("LOAD_CONST", "LOAD_SMALL_INT"):
            constants = [constants[-1], argument]
        elif opname == "IMPORT_NAME":
            level = constants[0] if isinstance(constants[0], int) else 0
            base = "." * level + str(argument)
            yield Import(base)
        elif opname == "IMPORT_FROM" and base:
            yield Import(base + ("" if base.endswith(".") else ".") + str(argument), sure=False)


def code_of(name: str) -> CodeType | None:
    """Give the code of a module, None if it has none: a package without a file of its own, or compiled.

    Raises
    ------
    ModuleNotFoundError
        If there is no such module here.
    """
    module = sys.modules.get(name)
    spec = getattr(module, "__spec__", None)
    if spec is None:
        try:
            spec = importlib.util.find_spec(name)
        except (ImportError, ValueError, AttributeError) as e:
            raise ModuleNotFoundError(name) from e
    if spec is None:
        raise ModuleNotFoundError(name)
    loader: Any = spec.loader
    if not hasattr(loader, "get_code"):
        return None
    try:
        code = loader.get_code(name)
    except (ImportError, OSError, SyntaxError):
        return None
    return code if isinstance(code, CodeType) else None


def is_namespace(name: str) -> bool:
    """Say whether a module is a package without a file of its own: there is nothing of it to know."""
    spec = getattr(sys.modules.get(name), "__spec__", None) or importlib.util.find_spec(name)
    return spec is not None and spec.origin is None and spec.submodule_search_locations is not None


def package_of(name: str) -> str:
    """Give the package that a module's relative imports are relative to."""
    spec = getattr(sys.modules.get(name), "__spec__", None) or importlib.util.find_spec(name)
    return name if spec is None or spec.submodule_search_locations is not None else name.rpartition(".")[0]


def docstring(code: CodeType) -> str | None:
    """Give the docstring in the code of a module: no part of what it does."""
    first = code.co_consts[0] if code.co_consts else None
    return first if isinstance(first, str) and "__doc__" in code.co_names else None
