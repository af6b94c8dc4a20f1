"""The fingerprint of a loop: its first state, what its body does, and what the body reads from outside.

What the body assigns before it reads it takes part by the code that makes it; so the loop's own variables do not count,
nor does anything that follows the loop. Where a loop is not run by a ``for`` of its own (``next``, ``enumerate``,
``zip``, ``list``), nobody can say what one step is: all code of the frame counts, and all that it reads.

Some things make a loop end otherwise when it is interrupted, whatever else is equal: a variable that the body hands
from one step to the next past the state, and a generator of random numbers that is no part of it. They are reasons.
"""

from __future__ import annotations

import builtins
import io
import sys
from collections.abc import Iterable, Mapping
from types import BuiltinFunctionType, FrameType, FunctionType, MethodType
from typing import Any

from dask_resilient.core.fingerprints import Fact, Fingerprint, combine
from dask_resilient.graph.bytecode import LOCAL, OPTIMIZED, Code, Variable
from dask_resilient.graph.code import MISSING, describe_code, qualified, reached
from dask_resilient.graph.content import LOCKS, Digester
from dask_resilient.graph.fingerprint import digest_collection
from dask_resilient.graph.following import SHOWN
from dask_resilient.graph.loop_body import Body, Read, every_read, loop_head
from dask_resilient.graph.modules import imports
from dask_resilient.partitions.generators import is_generator

__all__ = ["fingerprint_loop", "for_of"]

LOOP = "dask_resilient.client.loop.Loop"

_BYSTANDERS = frozenset(
    {
        *("distributed.client.Client", "distributed.deploy.cluster.Cluster", "dask_resilient.client.handle.Handle"),
        *(LOOP, "dask_resilient.client.loop.Steps", "dask_resilient.graph.loop_state.State"),
        *("logging.Logger", "logging.LoggerAdapter", "tqdm.std.tqdm"),
    }
)
"""Classes of what a result does not depend on, their subclasses included."""

_DRAWS = frozenset(f"cupy.random.{name}" for name in ("_distributions", "_permutations", "_sample"))
"""Modules of functions that draw from the one generator that CuPy keeps for each device."""

_HAS_DOCSTRING = 0x4000000
"""Flag of a function whose first constant is its docstring (``CO_HAS_DOCSTRING`` of Python 3.14)."""


def for_of(frame: FrameType) -> int | None:
    """Give the ``FOR_ITER`` of the ``for`` in which a frame asks an object for its iterator; None if it is in none."""
    return loop_head(Code(frame.f_code), frame.f_lasti)


def fingerprint_loop(frame: FrameType, head: int | None, fields: Mapping[str, Any]) -> Fingerprint:
    """Give the fingerprint of a loop that is about to begin.

    Parameters
    ----------
    frame
        That runs the loop.
    head
        What `for_of` gave for the loop's own iterator, if the frame asks for the first step there; else None.
    fields
        Of the first state.
    """
    digester = Digester(digest_collection, lambda name, thing: _takes_part(digester, name, thing))
    digester.digest(len)  # the release of Python decides about bytecode
    for name, value in fields.items():
        shown = repr(value) if type(value) in SHOWN else ""
        known = set(digester.reasons)
        digester.put(f"state.{name}", Fact("field", digester.data(value), shown))
        for reason in [each for each in digester.reasons if each not in known]:
            del digester.reasons[reason]
            digester.opaque(f"state.{name}: {reason}")
    scene = _Scene(frame, digester)
    if head is None:
        scene.whole()
    else:
        scene.body(head)
    structure = combine(["loop", "code" if head is None else "body"])
    return Fingerprint(structure, digester.facts(), tuple(digester.reasons))


class _Scene:
    """A frame, and what is taken in of it."""

    def __init__(self, frame: FrameType, digester: Digester) -> None:
        self._code = Code(frame.f_code)
        self._digester = digester
        self._globals = frame.f_globals
        self._locals = frame.f_locals
        self._is_function = bool(frame.f_code.co_flags & OPTIMIZED)
        self._module = str(frame.f_globals.get("__name__", "?"))
        self._own = f"{self._module}.{frame.f_code.co_qualname}"

    def body(self, head: int) -> None:
        """Take in the body of a ``for``."""
        body = Body(self._code, head)
        self._read(body.reads, has_steps=True)
        for scope, name in dict.fromkeys((read.scope, read.name) for read in body.reads):
            if (scope, name) in body.stores:
                self._digester.opaque(
                    f"the loop hands the variable {name!r} from step to step past its state: keep it as state.{name}"
                )
        for module in body.imports:
            self._digester.imported(module, self._globals.get("__package__"))
        outside = {(read.scope, read.name) for read in body.reads}
        known = self._digester.facts().keys()
        # A name of the module may be read by a function that the body calls.
        named = {each for each in body.stores if each in outside or self._name(each) in known} | outside
        text = combine(body.describe(self._digester.digest, named))
        line = next((each.line for each in body.instructions if each.line), 0)
        self._digester.put(self._own, Fact("body", text, f"line {line}"))

    def whole(self) -> None:
        """Take in all code of the frame."""
        code = self._code.code
        self._read(every_read(self._code), has_steps=False)
        if self._is_function:
            for module in imports(code):
                self._digester.imported(module, self._globals.get("__package__"))
        text = combine(describe_code(code, self._digester.digest, self._docstring()))
        self._digester.put(self._own, Fact("function", text, f"line {code.co_firstlineno}"))

    def _docstring(self) -> str | None:
        if not self._is_function:
            return self._globals.get("__doc__")
        code = self._code.code
        first = code.co_consts[0] if code.co_consts else None
        marked = sys.version_info < (3, 14) or code.co_flags & _HAS_DOCSTRING
        return first if isinstance(first, str) and marked else None

    def _read(self, reads: Iterable[Read], *, has_steps: bool) -> None:
        for read in reads:
            found = self._value(read.scope, read.name)
            if found is None or (found[0] is MISSING and not has_steps):
                continue
            if qualified(type(found[0])) == LOOP:
                if has_steps:  # it is in sight of the body, so it may ask how many there will be
                    self._digester.refer(f"{self._name((read.scope, read.name))}.steps", found[0].steps)
                continue
            each = reached(found[0], (read.name, *read.attributes))
            self._digester.refer(self._name((read.scope, each.path)), each.thing, each.owner)

    def _value(self, scope: str, name: str) -> tuple[Any] | None:
        """Give what a variable holds, or `MISSING`; None for a builtin."""
        if name in self._locals and (scope == LOCAL or not self._is_function):
            return (self._locals[name],)
        if scope == LOCAL:
            return (MISSING,)
        if name not in self._globals and hasattr(builtins, name):
            return None
        return (self._globals.get(name, MISSING),)

    def _name(self, variable: Variable) -> str:
        scope, name = variable
        return f"{self._own if scope == LOCAL else self._module}.{name}"


def _takes_part(digester: Digester, name: str, thing: Any) -> bool:
    """Say whether something that is read takes part, and take in what no snapshot holds of it."""
    if isinstance(thing, LOCKS) or _is_stream(thing):
        return False
    if not isinstance(thing, type) and any(qualified(cls) in _BYSTANDERS for cls in type(thing).__mro__):
        return False
    where = name or "something that the loop reads"
    if is_generator(thing):
        digester.opaque(f"{where} is a generator of random numbers outside of the state: make it a field of the loop")
        return False
    if _draws(thing):
        digester.opaque(
            f"{where} draws from a generator that its library shares with everybody, which no snapshot holds: make a "
            "generator a field of the loop and draw from that"
        )
        return False
    return True


def _draws(thing: Any) -> bool:
    if isinstance(thing, FunctionType):
        return thing.__module__ in _DRAWS
    return isinstance(thing, MethodType | BuiltinFunctionType) and is_generator(thing.__self__)


def _is_stream(thing: Any) -> bool:
    """Say whether text is written there: what is read from a file takes part."""
    if any(thing is each for each in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__)):
        return thing is not None
    if not isinstance(thing, io.TextIOBase) or isinstance(thing, io.StringIO):
        return False
    try:
        return thing.writable() and not thing.readable()
    except ValueError:  # it is closed
        return True
