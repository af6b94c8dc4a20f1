"""The one table of types and codecs, and the two doors: `stage` and `restore`.

A type is looked up by module and name, so that the lookup imports neither the library of the type nor its codec. Only
what is registered here is ever loaded: no text in a receipt can cause an import.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dask_resilient.core.outcome import Declined
from dask_resilient.errors import Foreign, LoadError, SettingError, Unreachable
from dask_resilient.partitions.buffers import own
from dask_resilient.partitions.inexact import Inexact
from dask_resilient.protocols import Codec, Payload, Staged

__all__ = ["codec_of", "register", "restore", "stage"]

TypeName = tuple[str, str]
"""Module and qualified name of a type."""


@dataclass(frozen=True, slots=True)
class _Row:
    codec: str
    subclasses: bool
    """Whether an instance of a subclass may be staged, and come back, as an instance of the type itself."""


_LOADERS: dict[str, Callable[[], Codec]] = {}
_LOADED: dict[str, Codec] = {}
_TYPES: dict[TypeName, _Row] = {}


def register(name: str, load: Callable[[], Codec], types: Iterable[TypeName], *, subclasses: bool = False) -> None:
    """Enter a codec into the table of this process.

    Parameters
    ----------
    name
        Name of the codec, kept in receipts for ever: a codec that reads another schema needs another name.
    load
        Imports and makes the codec, a `protocols.Codec`; called at its first use, without arguments.
    types
        Module and qualified name of each type, as ``[("my_package", "Thing")]``.
    subclasses
        Whether instances of subclasses may be staged too. They come back as what the codec makes of them.

    Raises
    ------
    SettingError
        If the name or a type has a codec already, or an argument cannot work.
    """
    entries = _checked(name, load, types)
    rows = {entry: _Row(name, bool(subclasses)) for entry in entries}
    if name in _LOADERS:
        raise SettingError(f"a codec {name!r} is registered already; choose another name")
    if taken := _TYPES.keys() & rows:
        raise SettingError(f"{sorted(taken)!r} have a codec already; register the codec for other types")
    _LOADERS[name] = load
    _TYPES.update(rows)


def _checked(name: Any, load: Any, types: Any) -> list[TypeName]:
    """Check what a user registers, and give the types as a list."""
    if not isinstance(name, str) or not name:
        raise SettingError(f"{name!r} is no name of a codec; give text such as 'my_package.Thing'")
    if not callable(load):
        raise SettingError(f"load = {load!r} of codec {name!r} cannot be called; give a function that makes the codec")
    entries = list(types) if isinstance(types, Iterable) and not isinstance(types, str) else []
    if not entries or not all(_is_type_name(entry) for entry in entries):
        raise SettingError(
            f"types = {types!r} of codec {name!r} must be pairs of a module and a qualified name, such as "
            "[('my_package', 'Thing')]"
        )
    return [(module, kind) for module, kind in entries]


def _is_type_name(entry: Any) -> bool:
    return isinstance(entry, list | tuple) and [type(each) for each in entry] == [str, str]


def codec_of(kind: type) -> str | None:
    """Give the name of the codec that stages the instances of a type, or None."""
    row = _look_up(kind)
    return None if row is None else row.codec


def stage(value: Any) -> Staged | Declined:
    """Lay a value out in host memory, ready to be written, or say why it cannot come back exactly. Never raises."""
    name = "the lookup of a codec"
    try:
        row = _look_up(type(value))
        if row is None:
            return Declined(f"no codec for {type(value).__module__}.{type(value).__qualname__}")
        name = f"codec {row.codec!r}"
        return _codec(row.codec).stage(value)
    except Inexact as e:
        return Declined(str(e))
    except Exception as e:
        # Whatever a codec meets in a value of a user: the value stays unsaved, the task goes on.
        return Declined(f"{name} failed: {e!r}")


def restore(codec: str, schema: Mapping[str, Any], payload: Payload) -> Any:
    """Give a value back from its schema and bytes.

    Parameters
    ----------
    codec
        Name of the codec in the receipt.
    schema
        Schema in the receipt.
    payload
        The bytes, verified against the receipt. They are given away: the value may be a view of them.

    Raises
    ------
    Unreachable
        If the codec, or a library it needs, or the memory, is missing here.
    Foreign
        If the schema does not describe a value of this codec, or does not fit the payload.
    """
    if codec not in _LOADERS:
        raise Unreachable(
            f"codec {codec!r} is not registered here; name the module that registers it in resilience.codecs"
        )
    try:
        return _codec(codec).restore(schema, own(payload))
    except LoadError:
        raise
    except (ImportError, MemoryError) as e:
        raise Unreachable(f"codec {codec!r} cannot restore here: {e!r}") from e
    except Exception as e:
        raise Foreign(f"the schema describes no value of codec {codec!r}: {e!r}") from e


def _look_up(kind: type) -> _Row | None:
    exact = _TYPES.get(_name(kind))
    if exact is not None:
        return exact
    inherited = (_TYPES.get(_name(base)) for base in kind.__mro__[1:])
    return next((row for row in inherited if row is not None and row.subclasses), None)


def _name(kind: type) -> TypeName:
    return kind.__module__, kind.__qualname__


def _codec(name: str) -> Codec:
    if name not in _LOADED:
        _LOADED[name] = _LOADERS[name]()  # twice, in two threads at once, does no harm
    return _LOADED[name]
