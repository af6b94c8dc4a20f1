"""One mark: what the user asked for, the names it gives to keys, and the nodes that do it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dask.base import tokenize
from dask.core import flatten
from dask.typing import Key
from dask.utils import key_split

from dask_resilient.errors import SettingError
from dask_resilient.tasks import SaveTask

MAX_NAME = 100
"""Longest name of a milestone, in characters: it becomes part of keys and of file names."""

_ALPHABET = frozenset("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_-.")


@dataclass(frozen=True, slots=True)
class Mark:
    """What one call of `checkpoint` asks for, checked.

    Raises
    ------
    SettingError
        If the name is no plain file name, or `version` or `keep` has another type.
    """

    name: str
    version: str | int | None
    keep: bool

    def __post_init__(self) -> None:
        """Refuse what could not become a key, a file name or a ticket."""
        object.__setattr__(self, "name", check_name(self.name))
        if self.version is not None and type(self.version) not in (str, int):
            raise SettingError(f"version={self.version!r} is no str, int or None; give one of these")
        if type(self.keep) is not bool:
            raise SettingError(f"keep={self.keep!r} is no bool; give True or False")

    def layer_name(self, *identity: object) -> str:
        """Name the keys of the milestone made of what `identity` names; equal input gives an equal name."""
        return f"{prefix(self.name)}-{tokenize('dask-resilient', self.name, self.version, *identity)}"

    def nodes(
        self,
        pairs: Iterable[tuple[Key, Key]],
        npartitions: int,
        prepare: Callable[[Any], Any] | None = None,
        description: bytes | None = None,
        dims: tuple[str, ...] | None = None,
        ids: Mapping[str, str] | None = None,
        lineage: bytes | None = None,
        *,
        quiet: bool = False,
    ) -> dict[Key, SaveTask]:
        """Make the nodes for pairs of new key and source key; the first carries the lineage, which may be large."""
        facts: dict[str, Any] = {"name": self.name, "npartitions": npartitions, "keep": self.keep}
        facts |= {"milestone": description} | ({"dims": dims} if dims else {}) | ({"ids": dict(ids)} if ids else {})
        nodes = {key: SaveTask(key, source, {**facts, "key": key}, prepare) for key, source in pairs}
        if quiet:
            for node in nodes.values():
                node.ticket["quiet"] = True
        if lineage is not None:
            next(iter(nodes.values())).ticket["lineage"] = lineage
        return nodes


def check_name(name: object, what: str = "checkpoint") -> str:
    """Accept what is a plain file name on every file system, and give it as a plain str.

    Raises
    ------
    SettingError
        If it is none; the message names the character.
    """
    if not isinstance(name, str):
        raise SettingError(f"the name of a {what} is a str, not {type(name).__name__} ({name!r})")
    if not name:
        raise SettingError(f"the name of a {what} is empty; give it one, such as 'clean'")
    if len(name) > MAX_NAME:
        raise SettingError(f"the name of a {what} has at most {MAX_NAME} characters, this has {len(name)}: {name!r}")
    for position, char in enumerate(name):
        if char not in _ALPHABET:
            raise SettingError(
                f"the name of a {what} becomes a file name: {name!r} has {char!r} at position {position}; "
                "use the letters a-z and A-Z, digits, '_', '-' and '.'"
            )
    if name[0] in ".-":
        raise SettingError(f"the name of a {what} cannot begin with {name[0]!r}: {name!r}; begin with a letter")
    return str(name)


def prefix(name: str) -> str:
    """Give the text before the token in a key, so that Dask's progress bars show the whole name.

    Dask groups tasks by the words of a key that are made of letters: ``checkpoint-stage2-<token>`` would be shown as
    "checkpoint", together with every other such milestone. Only the first word is shown whatever it holds, so such a
    name is written as one word, its dashes as underscores.
    """
    text = f"checkpoint-{name}"
    if key_split(f"{text}-{'0' * 32}") == text:
        return text
    return f"checkpoint_{name.replace('-', '_')}"


def keys_of(collection: Any) -> list[Key]:
    """Give the keys of a collection, each once, in their order."""
    return list(dict.fromkeys(flatten(collection.__dask_keys__())))
