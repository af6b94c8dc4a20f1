"""The body of a ``for`` loop in bytecode: which instructions belong to it, what it does, what it reads from outside.

Of a code object and the place of its ``FOR_ITER`` alone: no value is looked at. The body is what can be reached from
there before the next step begins or the loop is left, its exception handlers included, wherever the compiler puts them.
Handlers around the loop, its ``else``, and what follows it are no part.
"""

from __future__ import annotations

import dis
import itertools
import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import cached_property
from types import CodeType

from dask_resilient.graph.bytecode import GLOBAL, LOCAL, OPTIMIZED, Code, Instruction, Variable
from dask_resilient.graph.code import chains, describe_code
from dask_resilient.graph.modules import Import, imports_of

State = frozenset[tuple[object, ...]]
"""What is certain where an instruction begins: ``("set", variable)``, that the body has assigned it before.

From Python 3.12 on a comprehension is no function of its own but puts a variable of the same name aside: in there it is
also certain that ``("aside", variable, begin, end)``, and ``("was set", ...)`` if it was assigned before.
"""


@dataclass(frozen=True, slots=True)
class Read:
    """A variable that is read from outside, with the attributes that are read of it at once."""

    scope: str
    name: str
    attributes: tuple[str, ...] = ()


class Body:
    """The body of one ``for`` loop.

    Parameters
    ----------
    code
        That holds it.
    head
        Offset of its ``FOR_ITER``.
    """

    def __init__(self, code: Code, head: int) -> None:
        self._code, self._head = code, head
        self.offsets = sorted(self._reached())

    def _reached(self) -> set[int]:
        found, behind = self._apart()
        # What follows the loop and is short, the compiler repeats where the body breaks. Its lines are told apart.
        again = self._code.leading(found, self._head)
        own = {self._code.all[offset].line for offset in {self._head, *again}} | {None}
        lines = {self._code.all[offset].line for offset in behind if not self._code.all[offset].moves} - own
        return found - {offset for offset in found if self._code.all[offset].line in lines and offset not in again}

    def _apart(self) -> tuple[set[int], set[int]]:
        """Give what is reached from the head before the loop is left, and what is reached behind it."""
        code, head = self._code, self._head
        end, around = code.at(code.all[head].target or 0), code.handler(head)
        usual = code.reach([next(iter(code.all))], (), raising=False)
        found: set[int] = set()
        behind = {end}
        waiting = [code.after(head)]
        while waiting:
            offset = waiting.pop()
            if offset in found or offset not in code.all:
                continue
            found.add(offset)
            handler = code.handler(offset)
            waiting += [] if handler is None or handler == around else [handler]
            for way in code.targets(offset):
                # From Python 3.12 on handlers stand at the end of the function, if the loop itself is in none.
                in_handler = head in usual and offset not in usual and way not in usual
                if head < way < end or in_handler:
                    waiting.append(way)
                elif way != head:
                    behind.add(way)
        return found, code.reach(behind, {head, *found})

    @property
    def instructions(self) -> list[Instruction]:
        """The instructions, in their order."""
        return [self._code.all[offset] for offset in self.offsets]

    @property
    def stores(self) -> set[Variable]:
        """Variables that the body assigns or deletes, maybe by a function that it defines."""
        return self._accesses[1]

    @property
    def reads(self) -> list[Read]:
        """Variables that the body may read without having assigned them in the same step, in their order."""
        return self._accesses[0]

    @property
    def imports(self) -> Iterator[Import]:
        """What the body imports."""
        return imports_of((each.name, each.arg if each.nested is None else each.nested) for each in self.instructions)

    @cached_property
    def _accesses(self) -> tuple[list[Read], set[Variable]]:
        states = self._states()
        reads: dict[Read, None] = {}
        stores: set[Variable] = set()
        for each in self.instructions:
            state = states.get(each.offset, frozenset())
            for act, variable in each.touches:
                if act == "load" and ("set", variable) not in state:
                    reads[Read(*variable, self._code.attributes(each.offset))] = None
                elif act in ("store", "delete") and not any(mark[:2] == ("aside", variable) for mark in state):
                    stores.add(variable)
                state = self._touch(state, each, act, variable)
            if each.nested is not None:
                unset = (names for names, _ in chains(each.nested) if ("set", (GLOBAL, names[0])) not in state)
                reads.update({Read(GLOBAL, names[0], names[1:]): None for names in unset})
                stores |= _stores(each.nested)
        return list(reads), stores

    def _states(self) -> dict[int, State]:
        """Give what is certain at each instruction, whichever way led there.

        Taken for certain is that a ``for`` within the body has at least one turn, and that a ``with`` lets exceptions
        pass if the body names no ``suppress``: else what they assign would nearly always count as handed on.
        """
        own, turning, swallows = set(self.offsets), self._turning(), self._swallows()
        states: dict[int, State] = {}
        turned: dict[int, State] = {}
        waiting: list[tuple[int, State, int]] = [(self._code.after(self._head), frozenset(), self._head)]
        while waiting:
            offset, state, origin = waiting.pop()
            if offset not in own:
                continue
            if offset in turning and origin > offset:
                turned[offset] = turned.get(offset, state) & state
                waiting.append((self._code.targets(offset)[0], turned[offset], offset))
            known = states.get(offset)
            state = state if known is None else known & state
            if state == known:
                continue
            states[offset] = before = state
            for act, variable in self._code.all[offset].touches:
                state = self._touch(state, self._code.all[offset], act, variable)
            ways = self._code.targets(offset)[1:] if offset in turning | swallows else self._code.targets(offset)
            waiting += [(target, state, offset) for target in ways]
            handler = self._code.handler(offset)
            if handler is not None:
                waiting.append((handler, before, offset))
        return states

    def _turning(self) -> set[int]:
        """Give each ``FOR_ITER`` in the body to which another turn comes back."""
        backward = {way for offset in self.offsets for way in self._code.targets(offset) if way < offset}
        return {offset for offset in backward & set(self.offsets) if self._code.all[offset].name == "FOR_ITER"}

    def _swallows(self) -> set[int]:
        """Give the jumps by which a ``with`` would end an exception, if none in sight is there to do so."""
        if any(each.arg == "suppress" for each in self.instructions):
            return set()
        asked = [self._code.after(each.offset) for each in self.instructions if each.name == "WITH_EXCEPT_START"]
        return {self._code.after(at) if self._code.all[at].name == "TO_BOOL" else at for at in asked}

    def _touch(self, state: State, each: Instruction, act: str, variable: Variable) -> State:
        known = {("set", variable)}
        if act == "delete":
            return state - known
        if act == "aside":
            where = self._comprehension(each.offset)
            was = {("was set", variable, *where)} if ("set", variable) in state else set()
            return (state - known) | {("aside", variable, *where)} | was
        if act != "store":
            return state
        aside = [
            mark
            for mark in state
            if mark[0] == "aside" and mark[1] == variable and not mark[2] <= each.offset < mark[3]  # type: ignore[operator]
        ]
        if not aside:
            return state | known
        # Behind a comprehension the variable gets back what it held before: the innermost one is left first.
        mark = max(aside, key=lambda mark: str(mark[2]).zfill(9))
        was_mark = ("was set", *mark[1:])
        return (state - {mark, was_mark} - known) | (known if was_mark in state else set())

    def _comprehension(self, offset: int) -> tuple[int, int]:
        """Give begin and end of the comprehension that puts a variable aside."""
        begin = offset
        while self._code.all[offset].name != "FOR_ITER":
            offset = self._code.after(offset)
        return begin, self._code.at(self._code.all[offset].target or 0)

    def describe(self, digest: Callable[[object], str], named: Collection[Variable]) -> Iterator[str]:
        """Give what the body does, as texts.

        Parameters
        ----------
        digest
            Of a constant.
        named
            Variables that count by their names. Any other counts by the order in which they are met.
        """
        told = [offset for offset in self.offsets if not self._only_leads(offset)]
        # From Python 3.13 on one instruction may touch two variables, where no function shares them.
        sizes = (max(1, len(self._code.all[offset].touches)) for offset in told)
        place = dict(zip(told, itertools.accumulate(sizes, initial=0), strict=False))
        names = {offset: str(i) for offset, i in place.items()} | {self._head: "the next step"}
        labels: dict[Variable, str] = {}
        for offset, behind in itertools.zip_longest(told, told[1:]):
            each = self._code.all[offset]
            for act, variable in each.touches:
                own = labels.setdefault(variable, str(len(labels)))
                yield f"{act} {' '.join(variable) if variable in named else own}"
            if not each.touches:
                yield re.sub("_(FORWARD|BACKWARD|NO_INTERRUPT)", "", each.name)
            if each.nested is not None:
                yield from describe_code(each.nested, digest)
            elif not each.touches and each.target is None:
                yield digest(each.arg)
            ways = [names.get(self._led(target), "leave") for target in self._code.targets(offset)]
            if ways != [names.get(behind)]:
                yield " ".join(ways)

    def _only_leads(self, offset: int) -> bool:
        """Whether an instruction does nothing but go on elsewhere or leave; how, depends on what follows the loop."""
        this = self._code.all[offset]
        return this.moves or this.leaves

    def _led(self, offset: int) -> int:
        """Give where an instruction leads that does nothing else."""
        seen = set()
        while offset in self.offsets and offset not in seen and self._code.all[offset].moves:
            seen.add(offset)
            [offset] = self._code.targets(offset)
        return offset


def loop_head(code: Code, lasti: int) -> int | None:
    """Give the offset of the ``FOR_ITER`` of a ``for`` that has just asked for its iterator; None if none has."""
    this = code.all.get(lasti)
    following = code.all.get(code.after(lasti))
    if this is None or this.name != "GET_ITER" or following is None or following.name != "FOR_ITER":
        return None
    return following.offset


def every_read(code: Code) -> list[Read]:
    """Give all variables that a code object reads."""
    found: dict[Read, None] = {}
    for each in code.all.values():
        found.update({Read(*variable): None for act, variable in each.touches if act == "load"})
    scope = LOCAL if code.code.co_flags & OPTIMIZED else GLOBAL
    for names, _ in chains(code.code):
        found.pop(Read(scope, names[0]), None)
        found.pop(Read(GLOBAL, names[0]), None)
        found[Read(GLOBAL, names[0], names[1:])] = None
    return list(found)


def _stores(code: CodeType) -> set[Variable]:
    """Give what a function that is defined in the body assigns outside of itself."""
    found: set[Variable] = set()
    for each in dis.get_instructions(code):
        if each.opname == "STORE_GLOBAL":
            found.add((GLOBAL, str(each.argval)))
        elif each.opname == "STORE_DEREF" and each.argval in code.co_freevars:
            found.add((LOCAL, str(each.argval)))
    return found.union(*(_stores(each) for each in code.co_consts if isinstance(each, CodeType)))
