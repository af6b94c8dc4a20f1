"""Functions and classes by what they do: bytecode, constants, and what they refer to.

A name of a local variable, a comment, a line number and a file name are no part of that. What a function refers to is
not followed here: each reference is told, with its name and its object, to whoever keeps the facts.
"""

from __future__ import annotations

import builtins
import dis
import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import CodeType, FunctionType, ModuleType
from typing import Any

MISSING = object()

_GLOBAL = ("LOAD_GLOBAL", "LOAD_NAME")
_ATTRIBUTE = ("LOAD_ATTR", "LOAD_METHOD")
_BEFORE_CALL = ("PUSH_NULL", "PRECALL", "CACHE")


def describe_code(code: CodeType, digest: Callable[[Any], str], docstring: str | None = None) -> Iterator[str]:
    """Give what a code object does, as texts.

    Parameters
    ----------
    code
        Of a function, or a module.
    digest
        Of a constant.
    docstring
        Of the function: no part of what it does.
    """
    arguments = code.co_argcount + code.co_kwonlyargcount
    yield code.co_code.hex()
    yield f"{code.co_argcount} {code.co_posonlyargcount} {code.co_kwonlyargcount} {code.co_flags} {code.co_nlocals}"
    yield f"{len(code.co_cellvars)} {len(code.co_freevars)}"
    yield " ".join(code.co_varnames[:arguments])
    yield " ".join(code.co_names)
    yield code.co_exceptiontable.hex()
    for i, constant in enumerate(code.co_consts):
        if isinstance(constant, CodeType):
            yield from describe_code(constant, digest)
        elif i == 0 and docstring is not None and constant == docstring:
            yield "docstring"
        else:
            yield digest(constant)


@dataclass(frozen=True, slots=True)
class Reference:
    """What a function reads of its module, or of what that refers to."""

    path: str
    thing: Any
    """`MISSING` if it is not there; it may come to be there."""
    owner: str | None
    """The module that it was read of, None for the function's own."""
    bare: bool
    """Whether it is called there without arguments."""


def references(function: FunctionType) -> Iterator[Reference]:
    """Give what a function reads of its module, as deep as modules and classes go."""
    for names, bare in chains(function.__code__):
        name = names[0]
        if name not in function.__globals__ and hasattr(builtins, name):
            continue
        yield reached(function.__globals__.get(name, MISSING), names, bare=bare)


def reached(found: Any, names: Sequence[str], *, bare: bool = False) -> Reference:
    """Give what is read of an object, as deep as modules and classes go.

    Parameters
    ----------
    found
        What the first name refers to.
    names
        The others are attributes, each of what the one before refers to.
    bare
        Whether what the last of them refers to is called at once, without arguments.
    """
    path, owner, depth = names[0], None, 1
    for attribute in names[1:]:
        if not isinstance(found, ModuleType | type) or (attribute not in dir(found)):
            break
        owner = found.__name__ if isinstance(found, ModuleType) else owner
        found, path, depth = inspect.getattr_static(found, attribute, MISSING), f"{path}.{attribute}", depth + 1
        if isinstance(found, staticmethod | classmethod):
            found = found.__func__
    return Reference(path, found, owner, bare and depth == len(names))


def chains(code: CodeType) -> Iterator[tuple[tuple[str, ...], bool]]:
    """Give each global name with the attributes that are read of it at once, in functions that it defines too.

    Each with whether what that refers to is called at once, without arguments.
    """
    chain: list[str] = []
    for instruction in dis.get_instructions(code):
        if instruction.opname in _ATTRIBUTE and chain:
            chain.append(instruction.argval)
        elif instruction.opname not in _BEFORE_CALL:
            if chain:
                yield tuple(chain), instruction.opname == "CALL" and instruction.argval == 0
            chain = [instruction.argval] if instruction.opname in _GLOBAL else []
    if chain:
        yield tuple(chain), False
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from chains(constant)


def is_importable(thing: Any, name: str | None = None) -> bool:
    """Say whether its module and its name lead to this very object.

    A name alone proves nothing: `functools.wraps` gives a wrapper the name of what it wraps.
    """
    found: Any = sys.modules.get(getattr(thing, "__module__", None) or "")
    for part in str(name or getattr(thing, "__qualname__", "")).split("."):
        found = getattr(found, part, None)
    return found is thing


def qualified(thing: Any) -> str:
    """Give the name of a function or class with its module."""
    module = getattr(thing, "__module__", None) or "?"
    if module == "__main__" and (spec := getattr(sys.modules.get("__main__"), "__spec__", None)) is not None:
        module = spec.name  # python -m package.module
    return f"{module}.{getattr(thing, '__qualname__', getattr(thing, '__name__', '?'))}"
