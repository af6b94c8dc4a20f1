"""Settings: read once, on the client, from Dask's configuration under ``resilience``, then carried by the plugin.

So scheduler and workers act on what the client was told, whatever their own configuration says.
"""

from __future__ import annotations

import difflib
import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from dask_resilient.core.tables import Tables
from dask_resilient.errors import SettingError

MOST = 1e12
"""Numbers of settings are smaller than this; no time and no share needs more."""

DEFAULTS = Path(__file__).with_name("resilience.yaml")


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings of one run; times in seconds, shares between 0 and 1."""

    enabled: bool = True
    store: str | None = None
    resume: str = "fingerprint"
    codecs: tuple[str, ...] = ()
    save_memory: float = 0.1
    save_task_wait: float = 30.0
    save_run_wait: float = 0.05
    save_stuck: float = 60.0
    probe_enabled: bool = True
    probe_interval: float = 5.0
    probe_canary: float = 600.0
    probe_hang: float | None = None
    probe_kernel_log: str = "/dev/kmsg"
    probe_rules: str | None = None
    quarantine_enabled: bool = True
    quarantine_observe: bool = False
    quarantine_admission: str = "open"
    quarantine_drain: float = 60.0
    quarantine_path: str | None = None
    recover_enabled: bool = True
    recover_untested_dask: bool = False
    recover_floor: float = 1.0
    recover_margin: float = 2.0
    recover_timeout: float = 30.0
    recover_pause: float = 60.0
    leave: float = 30.0

    def to_dict(self) -> dict[str, Any]:
        """Give plain types for the wire."""
        return asdict(self)


_TIMES = frozenset(
    {
        *("save_task_wait", "save_stuck", "probe_interval", "probe_canary"),
        *("quarantine_drain", "recover_floor", "recover_timeout", "recover_pause", "leave"),
    }
)
_SHARES = frozenset({"save_memory", "save_run_wait"})


def load_defaults() -> None:
    """Make the defaults known to Dask's configuration; what the user has set wins."""
    import dask
    import yaml

    defaults = yaml.safe_load(DEFAULTS.read_text())
    # Dask puts its mapping of defaults in place of them, without a word.
    _no_groups.update(_scalars(dask.config.config, defaults))
    dask.config.update_defaults(defaults)


_no_groups: dict[str, str] = {}
"""What the user's files have where there is a group of settings: by its key, what is wrong with it."""


def _scalars(user: Mapping[str, Any], groups: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Give the keys of groups under which the user has something else, with what is wrong."""
    for name, group in groups.items():
        if isinstance(group, Mapping) and name in user:
            key, value = f"{prefix}{name}", user[name]
            if isinstance(value, Mapping):
                yield from _scalars(value, group, f"{key}.")
            else:
                first = "enabled: false" if "enabled" in group else f"{next(iter(group))}: {next(iter(group.values()))}"
                yield key, f"{key} = {value!r} must be a mapping such as {{{first}}}"


def read() -> Settings:
    """Read the settings from Dask's configuration and check each of them.

    Raises
    ------
    SettingError
        For a key that does not exist (a typo), or a value that cannot work; the message names both.
    """
    import dask
    import yaml

    raw = dask.config.get("resilience", {})
    groups = yaml.safe_load(DEFAULTS.read_text())
    for reason in (*_no_groups.values(), *dict(_scalars({"resilience": raw}, groups)).values()):
        raise SettingError(reason)
    known = [field.name for field in fields(Settings)]
    values = {}
    for key, value in _flatten(raw):
        name = key.replace("-", "_").replace(".", "_")
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {_dotted(near[0])}?" if near else ""
            raise SettingError(f"there is no setting resilience.{key}{hint}")
        values[name] = _check(name, f"resilience.{key}", value)
    return Settings(**values)


def check_resume(value: object) -> str:
    """Check what an argument says in place of the setting ``resilience.resume``; raises `SettingError`."""
    return str(_check("resume", "resume", value))


def _dotted(name: str) -> str:
    group, _, rest = name.partition("_")
    return f"resilience.{group}.{rest.replace('_', '-')}" if rest else f"resilience.{name}"


def _flatten(raw: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in raw.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _check(name: str, key: str, value: Any) -> Any:
    if name in _OTHERS:
        kind, fits, make = _OTHERS[name]
        if not fits(value):
            raise SettingError(f"{key} = {value!r} must be {kind}")
        return make(value)
    if value is None and name in _NEVER:
        return 0.0
    example = "30 or '30s'" if name in _TIMES else "0.1"
    number = seconds(key, value) if name in _TIMES and isinstance(value, str) else value
    if isinstance(number, bool) or not isinstance(number, (int, float)) or not 0 <= number < MOST:
        raise SettingError(f"{key} = {value!r} must be a number such as {example}, and not negative")
    if name in _SHARES and number > 1:
        raise SettingError(f"{key} = {value!r} must be a share between 0 and 1")
    if number < _LEAST.get(name, 0):
        raise SettingError(f"{key} = {value!r} must be at least {_LEAST[name]}")
    if number > _MOST.get(name, number):
        raise SettingError(f"{key} = {value!r} must be at most {_MOST[name]}")
    return float(number)


def _is_multiple(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 2 <= value < MOST  # noqa: PLR2004 - below it is luck


def _as_it_is(value: Any) -> Any:
    return value


def _is_names(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(each, str) for each in value)


_NEVER = frozenset({"probe_canary"})
"""Times for which null is 0: never."""

_LEAST = {"recover_margin": 1, "probe_interval": 0.5}
"""Numbers below which a setting cannot work: the probe process itself waits half a second for events."""

_MOST = {"probe_interval": 30}
"""Numbers above which a setting cannot work: what was read a minute ago says nothing of the present."""

_FLAG = ("true or false", lambda value: isinstance(value, bool), bool)
_OTHERS: dict[str, tuple[str, Callable[[Any], bool], Callable[[Any], Any]]] = {
    "enabled": _FLAG,
    "probe_enabled": _FLAG,
    "probe_hang": (
        "a number of times from 2 on, or null",
        lambda value: value is None or _is_multiple(value),
        _as_it_is,
    ),
    "probe_kernel_log": ("a path", lambda value: isinstance(value, str) and bool(value) and "\0" not in value, str),
    "probe_rules": (
        "a path to a YAML file, or null",
        lambda value: value is None or (isinstance(value, str | os.PathLike) and bool(os.fspath(value))),
        lambda value: None if value is None else os.fspath(value),
    ),
    "quarantine_enabled": _FLAG,
    "quarantine_observe": _FLAG,
    "quarantine_admission": ("open or strict", lambda value: value in ("open", "strict"), str),
    "quarantine_path": (
        "a path to a directory, or null",
        lambda value: value is None or (isinstance(value, str) and bool(value) and "\0" not in value),
        _as_it_is,
    ),
    "recover_enabled": _FLAG,
    "recover_untested_dask": _FLAG,
    "resume": (
        "fingerprint, name or off",
        lambda value: value is False or (isinstance(value, str) and value in ("fingerprint", "name", "off")),
        lambda value: value or "off",  # YAML's bare word off is false
    ),
    "store": ("a path or a file:// URL", lambda value: value is None or isinstance(value, str), _as_it_is),
    "codecs": ("a list of names of modules, such as ['my_package.codecs']", _is_names, tuple),
}
"""Settings that are no numbers: what they must be, how that is told, and what becomes of it."""


def seconds(key: str, value: str) -> float:
    """Give the seconds of a text such as ``"30s"``.

    Raises
    ------
    SettingError
        If it is no time; the message names the key.
    """
    from dask.utils import parse_timedelta

    try:
        return float(parse_timedelta(value, default="s"))
    except (ValueError, LookupError, OverflowError):
        raise SettingError(f"{key} = {value!r} must be a time such as '30s' or a number of seconds") from None


def read_rules(path: str | None) -> dict[str, Any] | None:
    """Read the user's file of rules on the client, so that scheduler and workers need not see it.

    Returns
    -------
    What `core.tables.Tables.of` takes, plain types only; None if there is no file.

    Raises
    ------
    SettingError
        If the file cannot be read or says what cannot be; the message names the place.
    """
    import yaml

    if path is None:
        return None
    try:
        text = Path(path).expanduser().read_text()
        said = yaml.safe_load(text)
        _check_keys(yaml.compose(text, Loader=yaml.SafeLoader), path)
    except (OSError, ValueError, RuntimeError, yaml.YAMLError) as e:  # no such home is a RuntimeError, too deep as well
        raise SettingError(f"resilience.probe.rules = {path!r} cannot be read: {' '.join(str(e).split())}") from None
    if not isinstance(said, Mapping):
        raise SettingError(
            f"resilience.probe.rules = {path!r} must hold a mapping such as {{xid: {{79: {{class: drain}}}}}}"
        )
    if "file" in said:
        raise SettingError(f"{path}: there is no section 'file'")
    rules = {"file": path, **said}
    Tables.of(rules)
    return rules


def _check_keys(top: Any, path: str) -> None:
    """Refuse a key that is there twice: YAML would take the last without a word."""
    nodes, seen = [top], set()
    while nodes:
        node = nodes.pop()
        if getattr(node, "id", "") not in ("mapping", "sequence") or id(node) in seen:
            continue
        seen.add(id(node))
        if node.id == "sequence":
            nodes += node.value
            continue
        keys: set[str] = set()
        for key, value in node.value:
            if str(key.value) in keys:
                raise SettingError(f"{path}: line {key.start_mark.line + 1}: {key.value!r} is there twice; keep one")
            keys.add(str(key.value))
            nodes.append(value)


def fingerprints(probes: object, rules: Mapping[str, Any] | None) -> dict[str, str]:
    """Give what tells whether an installation was given the same probes and rules; empty text for none.

    Parameters
    ----------
    probes
        As `probes.guests.pack` gives them.
    rules
        As `read_rules` gives them; where the file was does not matter.
    """
    rows = {name: said for name, said in (rules or {}).items() if name != "file"}
    given = {"probes": probes, "rules": rows}
    return {name: hashlib.sha256(repr(what).encode()).hexdigest() if what else "" for name, what in given.items()}
