"""Bytecode as instructions that are alike in Python 3.11, 3.12 and 3.13, and the ways through it.

Instructions are told apart by their names. What differs between releases is made alike: two variables in one
instruction, and one way to tell variables that functions share and others.
"""

from __future__ import annotations

import dis
import itertools
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from types import CodeType

LOCAL, GLOBAL = "local", "global"

Variable = tuple[str, str]
"""Scope and name."""

OPTIMIZED = 1
"""Flag of the code of a function (``CO_OPTIMIZED``): its variables are no names of the module."""

_VARIABLE = re.compile(r"(LOAD|STORE|DELETE)_(?:FAST|DEREF|CLASSDEREF|CLOSURE|NAME|GLOBAL|FROM_DICT_OR_\w+)")
_NEVER_FALLS = frozenset({"RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE"})
_JUMP = re.compile(r"JUMP_(?:FORWARD|BACKWARD|BACKWARD_NO_INTERRUPT|ABSOLUTE)")
_SKIPPED = frozenset({"EXTENDED_ARG", "CACHE", "NOP"})
_ATTRIBUTES = frozenset({"LOAD_ATTR", "LOAD_METHOD"})


@dataclass(slots=True)
class Instruction:
    """One instruction, with what it does to variables in order: load, store, delete, or aside."""

    offset: int
    name: str
    arg: object
    target: int | None
    """Offset that it may jump to."""
    line: int | None
    """Of the source."""
    leaves: bool = False
    """Whether it gives None back from a function, as the end of one does, alone or together with another."""
    touches: list[tuple[str, Variable]] = field(default_factory=list)
    nested: CodeType | None = None

    @property
    def moves(self) -> bool:
        """Whether it only goes on elsewhere."""
        return _JUMP.fullmatch(self.name) is not None


class Code:
    """The instructions of a code object, by offset."""

    def __init__(self, code: CodeType) -> None:
        self.code = code
        self.all: dict[int, Instruction] = {}
        self._real: dict[int, int] = {}
        """Of the offset of any instruction that of itself or of the next that does something."""
        waiting: list[int] = []
        for each in dis.get_instructions(code):
            waiting.append(each.offset)
            if each.opname not in _SKIPPED:
                self._real.update(dict.fromkeys(waiting, each.offset))
                waiting = []
                self.all[each.offset] = _instruction(each, code)
        for one, other in itertools.pairwise(self.all.values()):
            if (one.name, one.arg, other.name) == ("LOAD_CONST", None, "RETURN_VALUE"):
                one.leaves = other.leaves = True
            other.leaves |= (other.name, other.arg) == ("RETURN_CONST", None)
        self._next = dict(itertools.pairwise(self.all))
        entries = dis.Bytecode(code).exception_entries  # type: ignore[attr-defined]
        self._handlers = [(entry.start, entry.end, entry.target) for entry in entries]

    def at(self, offset: int) -> int:
        """Give the offset of the instruction at a place, or of the next that does something."""
        return self._real.get(offset, -1)

    def after(self, offset: int) -> int:
        """Give the offset of the next instruction, -1 behind the last."""
        return self._next.get(offset, -1)

    def handler(self, offset: int) -> int | None:
        """Give the offset of the handler of exceptions there."""
        return next((self.at(target) for start, end, target in self._handlers if start <= offset < end), None)

    def targets(self, offset: int) -> list[int]:
        """Give the offsets that may come next, exceptions aside."""
        this = self.all[offset]
        found = [] if this.target is None else [self.at(this.target)]
        if this.name not in _NEVER_FALLS and not this.moves and offset in self._next:
            found.append(self._next[offset])
        return found

    def attributes(self, offset: int) -> tuple[str, ...]:
        """Give the attributes that are read of what an instruction has loaded."""
        names: list[str] = []
        offset = self.after(offset)
        while offset in self.all and self.all[offset].name in _ATTRIBUTES:
            names.append(str(self.all[offset].arg))
            offset = self.after(offset)
        return tuple(names)

    def leading(self, within: Collection[int], to: int) -> set[int]:
        """Give those offsets from which one is reached by some way through them."""
        before: dict[int, list[int]] = {}
        for offset in within:
            for way in self._ways(offset):
                before.setdefault(way, []).append(offset)
        found: set[int] = set()
        waiting = [to]
        while waiting:
            more = [each for each in before.get(waiting.pop(), ()) if each not in found]
            found.update(more)
            waiting += more
        return found

    def _ways(self, offset: int) -> list[int]:
        handler = self.handler(offset)
        return self.targets(offset) + ([] if handler is None else [handler])

    def reach(self, starts: Iterable[int], stop: Collection[int], *, raising: bool = True) -> set[int]:
        """Give the offsets that are reached from some, through handlers only if asked for, without passing others."""
        found: set[int] = set()
        waiting = list(starts)
        while waiting:
            offset = waiting.pop()
            if offset in found or offset in stop or offset not in self.all:
                continue
            found.add(offset)
            waiting += self._ways(offset) if raising else self.targets(offset)
        return found


def _instruction(each: dis.Instruction, code: CodeType) -> Instruction:
    """Give an instruction without what differs between releases of Python."""
    jumps = each.opcode in dis.hasjrel or each.opcode in dis.hasjabs
    arg = each.argval
    if each.opname == "KW_NAMES":
        arg = code.co_consts[each.arg or 0]
    elif each.opcode not in dis.hasconst and each.opcode not in dis.hasname:
        arg = each.arg
    made = Instruction(each.offset, each.opname, arg, int(each.argval) if jumps else None, each.positions.lineno)  # type: ignore[union-attr]
    if isinstance(arg, CodeType):
        made.nested = arg
    names = each.argval if isinstance(each.argval, tuple) else (each.argval,)
    scope = LOCAL if code.co_flags & OPTIMIZED and not each.opname.endswith(("_NAME", "_GLOBAL")) else GLOBAL
    acts = [found[1].lower() for found in _VARIABLE.finditer(each.opname)]
    if each.opname == "LOAD_FAST_AND_CLEAR":
        acts = ["aside"]
    made.touches = [(act, (scope, str(name))) for act, name in zip(acts, names, strict=False)]
    return made
