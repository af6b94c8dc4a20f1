"""Python's own values: single ones, and lists, tuples and dicts of them and of anything that has a codec.

A list of records, a tuple of two arrays, a dict of tables: the tree is stored as JSON in the payload, and each array or
table in it as a part with its own codec and schema. Types are compared exactly; an instance of a subclass is refused.

Limits: items, because reading and writing JSON takes a microsecond for each in a thread of the worker; text, because it
takes several times its size as Python objects; depth, because JSON is read recursively; parts, because each has its
schema in the receipt.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from dask_resilient.core.outcome import Declined
from dask_resilient.errors import Foreign
from dask_resilient.partitions import table
from dask_resilient.partitions.aliasing import shared
from dask_resilient.partitions.atoms import FROM_JSON, KINDS, TO_JSON, number_to_json, text_to_json
from dask_resilient.partitions.buffers import Packer, Unpacker, stage_bytes
from dask_resilient.partitions.inexact import Inexact
from dask_resilient.partitions.parts import bytes_of, take_own
from dask_resilient.protocols import Payload, Staged

__all__ = ["StructureCodec"]

MAX_ITEMS = 2_000_000
MAX_TEXT = 256 * 2**20
MAX_DEPTH = 100
MAX_PARTS = 1000

BATCH = 1000
"""Items of the outermost list that are written and read at a time: JSON holds the interpreter's lock for so long."""
SHOWN = 100
"""Characters of a long path, or of a long key, that a reason shows."""
LONG = 4096
"""Text and bytes above this size lie beside the tree."""


class _Misplaced(Inexact):
    """What is wrong with one item of a structure, and where it is."""

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(f"at {where}: {reason}")
        self.where, self.reason = where, reason

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.where, self.reason)


class StructureCodec:
    """Stages and restores the types of `atoms.KINDS`, lists, tuples and dicts."""

    name = "python"

    def stage(self, value: Any) -> Staged | Declined:
        """Stage a value and all that is in it, or say what in it cannot be exact, and where."""
        writer = _Writer()
        try:
            batched = type(value) is list and len(value) > BATCH
            lines = writer.lines(value) if batched else [writer.encode(value, MAX_DEPTH)]
            text = b"\n".join(json.dumps(line, allow_nan=False, ensure_ascii=False).encode() for line in lines)
            if len(text) > MAX_TEXT:
                raise Inexact(f"holds {len(text):,} bytes of text, more than {MAX_TEXT:,}; make a table of it")
            parts = writer.pack_parts()
        except Inexact as e:
            return Declined(str(e) if isinstance(e, _Misplaced) else f"the value {e}")
        schema = {"batched": batched, "tree": writer.out.add(memoryview(text)), "parts": parts}
        return stage_bytes(self.name, schema, writer.out.buffers)

    def restore(self, schema: Mapping[str, Any], payload: Payload) -> Any:
        """Give the value back; arrays and tables in it are views of the payload.

        Raises
        ------
        Foreign
            If tree and parts do not describe one value.
        """
        data = Unpacker(payload)
        batched, text = schema["batched"], data.take(schema["tree"])
        if type(batched) is not bool or len(text) > MAX_TEXT:
            raise Foreign(f"{batched!r} is no flag, or {len(text):,} bytes of text are too many")
        reader = _Reader(data, schema["parts"], payload)
        value = reader.decode_lines(text.tobytes()) if batched else reader.decode(text.tobytes())
        reader.finish()
        data.finish()
        return value


class _Writer:
    """Turns one value into JSON and collects what lies beside it."""

    def __init__(self) -> None:
        self.out = Packer()
        self._parts: list[tuple[str, Any, Staged]] = []
        self._records: list[Any] = []
        self._seen: set[int] = set()
        self._items = MAX_ITEMS
        self._room = MAX_TEXT

    def encode(self, value: Any, depth: int) -> Any:
        """Give the JSON of a value that may be so many levels deep."""
        kind = type(value)
        if kind is str:
            return self._text(value)
        if kind is int:
            return number_to_json(value)
        if value is None or kind is bool or (kind is float and math.isfinite(value)):
            return value
        if kind is dict:
            return self._dict(value, depth)
        if kind is list or kind is tuple:
            return self._sequence(value, depth)
        return self._other(value)

    def _sequence(self, values: Any, depth: int) -> Any:
        if type(values) is tuple:
            return {"$tuple": self._list(values, depth)}
        self._once(values)
        return self._list(values, depth)

    def lines(self, values: list[Any]) -> list[Any]:
        """Give the JSON of a long list, so many of its items at a time."""
        self._once(values)
        every = self._list(values, MAX_DEPTH)
        return [every[i : i + BATCH] for i in range(0, len(every), BATCH)]

    def _list(self, values: Any, depth: int) -> Any:
        """Give the JSON of some values: themselves, where JSON holds them all.

        A copy of each record would keep the garbage collector busy for longer than all else takes.
        """
        self._enter(len(values), depth)
        done: list[Any] | None = None
        i = 0
        try:
            for i, each in enumerate(values):
                coded = self.encode(each, depth - 1)
                if done is None and coded is not each:
                    done = list(values[:i])
                if done is not None:
                    done.append(coded)
        except Inexact as e:
            raise _at(f"[{i}]", e) from e
        return values if done is None else done

    def _dict(self, value: dict[Any, Any], depth: int) -> Any:
        self._once(value)
        self._enter(len(value), depth)
        changed: dict[Any, Any] = {}
        plain = True
        key: Any = None
        try:
            for key, each in value.items():
                plain = plain and type(key) is str and text_to_json(key) is key
                coded = self.encode(each, depth - 1)
                if coded is not each:
                    changed[key] = coded
        except Inexact as e:
            raise _at(f"[{key!r}]", e) from e
        done = value | changed if changed else value
        if plain and not (len(done) == 1 and key.startswith("$")):
            return done
        return {"$dict": [self._list(list(done), depth), list(done.values())]}

    def _enter(self, items: int, depth: int) -> None:
        self._items -= items
        if self._items < 0:
            raise Inexact(f"holds more than {MAX_ITEMS:,} items in all; make arrays or a table of them")
        if depth <= 0:
            raise Inexact(f"is nested more than {MAX_DEPTH} deep, or holds itself")

    def _once(self, value: Any) -> None:
        """Refuse a list, a dict or a part that comes twice: as two, a change of one would not show in the other."""
        if id(value) in self._seen:
            raise Inexact(f"is a {type(value).__name__} that is in there twice, or holds itself; copy it")
        self._seen.add(id(value))

    def _text(self, value: str) -> Any:
        if len(value) <= LONG:
            self._room -= len(value)
            if self._room < 0:
                raise Inexact(f"holds more than {MAX_TEXT:,} bytes of text; make a table of it")
            return text_to_json(value)
        return {"$text": self.out.add(memoryview(value.encode("utf-8", "surrogatepass")))}

    def _other(self, value: Any) -> Any:
        kind = KINDS.get((type(value).__module__, type(value).__qualname__))
        if kind == "$bytes" and len(value) > LONG:
            return {"$raw": self.out.add(memoryview(value))}
        if kind == "$numpy" and getattr(value, "base", None) is not None:
            self._records.append(value)
        return {kind: TO_JSON[kind](value)} if kind else self._part(value)

    def _part(self, value: Any) -> Any:
        self._once(value)
        codec = table.codec_of(type(value))
        if codec is None or codec == StructureCodec.name:
            raise Inexact(f"is a {type(value).__module__}.{type(value).__qualname__}, which has no codec")
        staged = table.stage(value)
        if isinstance(staged, Declined):
            raise _Misplaced("", staged.reason)
        if len(self._parts) == MAX_PARTS:
            raise Inexact(f"is one of more than {MAX_PARTS:,} arrays or tables; stack them")
        self._parts.append((codec, value, staged))
        return {"$part": len(self._parts) - 1}

    def pack_parts(self) -> list[dict[str, Any]]:
        """Line up the parts and give the codec, schema and place of each."""
        if problem := shared(self._parts, self._records):
            raise Inexact(problem)
        return [
            {"codec": staged.codec, "schema": dict(staged.schema), **self.out.add(*bytes_of(staged))}
            for _, _, staged in self._parts
        ]


def _at(where: str, e: Inexact) -> _Misplaced:
    if not isinstance(e, _Misplaced):
        return _Misplaced(where[:SHOWN], f"the value {e}")
    return _Misplaced(where + e.where if len(e.where) < SHOWN else f"{where[:SHOWN]}...{e.where[-SHOWN:]}", e.reason)


class _Reader:
    """Turns JSON back into the value, with the parts that it names, each of them once."""

    def __init__(self, data: Unpacker, parts: Any, payload: Payload) -> None:
        if not isinstance(parts, list):
            raise Foreign(f"{parts!r} is no list of parts")
        self._data, self._payload = data, payload
        self._parts: list[Any] = [self._restore(part) for part in parts]
        self._left = set(range(len(parts)))
        self._decoder = json.JSONDecoder(object_hook=self._value, parse_constant=_refuse)
        self._kinds = FROM_JSON | {
            "$tuple": self._tuple,
            "$dict": self._dict,
            "$text": lambda at: self._data.take(at).tobytes().decode("utf-8", "surrogatepass"),
            "$raw": lambda at: self._data.take(at).tobytes(),
            "$part": self._part,
        }

    def decode(self, text: bytes) -> Any:
        """Give the value of some JSON."""
        return self._decoder.decode(text.decode())

    def decode_lines(self, text: bytes) -> list[Any]:
        """Give the items of all lines, each of which is a list."""
        values: list[Any] = []
        start = 0
        while start < len(text):
            stop = text.find(b"\n", start) % (len(text) + 1)  # -1 = the last line
            line = self.decode(text[start:stop])
            if type(line) is not list:
                raise Foreign("a line of a long list is no list")
            values += line
            start = stop + 1
        return values

    def finish(self) -> None:
        """Check that every part was named."""
        if self._left:
            raise Foreign(f"parts {sorted(self._left)!r} have no place in the tree")

    def _restore(self, part: Mapping[str, Any]) -> Any:
        if part["codec"] == StructureCodec.name:
            raise Foreign("a structure is no part of a structure")
        return table.restore(part["codec"], part["schema"], take_own(part, self._data, self._payload))

    def _value(self, spec: dict[str, Any]) -> Any:
        if len(spec) != 1:
            return spec
        [(name, body)] = spec.items()
        return self._kinds[name](body) if name.startswith("$") else spec

    @staticmethod
    def _tuple(items: Any) -> tuple[Any, ...]:
        if type(items) is not list:
            raise Foreign(f"{items!r} are no items of a tuple")
        return tuple(items)

    @staticmethod
    def _dict(body: Any) -> dict[Any, Any]:
        keys, values = body
        made = dict(zip(keys, values, strict=True))
        if len(made) != len(keys):
            raise Foreign("a key comes twice")
        return made

    def _part(self, index: Any) -> Any:
        if type(index) is not int:
            raise Foreign(f"{index!r} is no number of a part")
        self._left.remove(index)  # a second time, or beyond the last, it is a KeyError: this names no value
        return self._parts[index]


def _refuse(name: str) -> Any:
    raise Foreign(f"{name} is no JSON")
