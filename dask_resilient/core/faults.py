"""What a fault means: its class, whom it makes suspect, and how a user's file changes a table of faults.

The tables themselves are `dask_resilient.core.xid` and `dask_resilient.core.cuda_errors`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from enum import StrEnum
from typing import Any, ClassVar, Protocol, TypeVar

from dask_resilient.errors import SettingError


class Class(StrEnum):
    """What a fault asks for, the mildest first."""

    OBSERVE = "observe"
    """Noted, no more."""
    DEGRADE = "degrade"
    """The trouble is named, and nothing is done."""
    KILL = "kill"
    """The process and what it holds are lost; another process may use the device."""
    DRAIN = "drain"
    """The device is left, and what it holds can be copied out first."""
    EVICT = "evict"
    """The device is left at once: what it holds cannot be read, and trying may hang."""

    @property
    def rank(self) -> int:
        """Give the place among the classes, 0 for the mildest."""
        return _ORDER.index(self)

    @property
    def readable(self) -> bool:
        """Say whether what the process holds on the device can still be read."""
        return self not in {Class.KILL, Class.EVICT}


_ORDER = tuple(Class)


def together(classes: Iterable[Class]) -> Class:
    """Give what several faults ask for: the worst of them, OBSERVE for none.

    A device to be left whose process is dead cannot be copied out first: DRAIN and KILL together are EVICT.
    """
    found = set(classes)
    if found >= {Class.DRAIN, Class.KILL}:
        return Class.EVICT
    return max(found, key=_ORDER.index, default=Class.OBSERVE)


class Suspect(StrEnum):
    """Who is blamed first, until tests on other devices say more."""

    TASK = "task"
    DEVICE = "device"
    UNKNOWN = "unknown"
    """A driver, a link with two ends, or another process: one report alone blames nobody."""


class Row(Protocol):
    """A row of a table of faults: a frozen dataclass."""

    changeable: ClassVar[Mapping[str, type]]
    """What a user's file may change, by the name it has there: `str`, `bool` or an enumeration."""


R = TypeVar("R", bound=Row)


def overridden(table: Mapping[int, R], changes: object, unknown: R, title: str, file: str) -> dict[int, R]:
    """Give a table with the rows that a user's file changes or adds.

    Parameters
    ----------
    table
        The rows by code.
    changes
        What the file says: a mapping of codes to mappings of fields, such as ``{79: {"class": "drain"}}``.
    unknown
        What a code without a row is taken for; a row that the file adds starts as this.
    title
        What the codes are, for messages: ``XID`` or ``CUDA error``.
    file
        Where the changes come from, for messages and as the source of the rows.

    Raises
    ------
    SettingError
        For what is no such mapping; the message names the row and the field.
    """
    if not isinstance(changes, Mapping):
        example = f"{_example(title)}: {{class: drain}}"
        raise SettingError(f"{file}: {changes!r} must be a mapping of {title} codes to rows, as {example}")
    rows = dict(table)
    for raw, fields in changes.items():
        code = _code(raw, title, file)
        where = f"{file}: {title} {code}"
        if not isinstance(fields, Mapping):
            raise SettingError(f"{where} is {fields!r}; it must be a mapping of fields, such as {{class: drain}}")
        before: Any = rows.get(code, replace(unknown, code=code))  # type: ignore[type-var]
        values = {_attribute(name): _value(before, where, name, value) for name, value in fields.items()}
        rows[code] = replace(before, **values, source=file)
    return rows


def _code(raw: object, title: str, file: str) -> int:
    """Read a code; files of some formats know text as keys only."""
    if isinstance(raw, int) and not isinstance(raw, bool) and raw >= 0:
        return raw
    if isinstance(raw, str) and raw.isascii() and raw.isdigit():
        return int(raw)
    raise SettingError(f"{file}: {title} {raw!r} is no code; give a number such as {_example(title)}")


def _example(title: str) -> int:
    return 79 if title == "XID" else 700


def _attribute(name: object) -> str:
    """Give the field of a row: ``class`` is a word of Python, so rows call it otherwise."""
    return "cls" if name == "class" else str(name)


def _value(row: Row, where: str, name: object, value: object) -> object:
    """Check one value of a user's file."""
    kinds = row.changeable
    if name not in kinds:
        raise SettingError(f"{where} has no field {name!r} that can be changed; known are {', '.join(sorted(kinds))}")
    kind = kinds[str(name)]
    if issubclass(kind, StrEnum):
        if isinstance(value, str) and value in set(kind):
            return kind(value)
        raise SettingError(f"{where}: {name} = {value!r} must be one of {', '.join(kind)}")
    if isinstance(value, kind):
        return value
    raise SettingError(f"{where}: {name} = {value!r} must be {'true or false' if kind is bool else 'text'}")
