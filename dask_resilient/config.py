"""Settings: read once, on the client, from Dask's configuration under ``resilience``, then carried by the plugin.

So scheduler and workers act on what the client was told, whatever their own configuration says.
"""

from __future__ import annotations

import difflib
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
        *("recover_floor", "recover_timeout", "recover_pause", "leave"),
    }
)
_SHARES = frozenset({"save_memory", "save_run_wait"})


def load_defaults() -> None:
    """Make the defaults known to Dask's configuration; what the user has set wins."""
    import dask
    import yaml

    defaults = yaml.safe_load(DEFAULTS.read_text())
    dask.config.update_defaults(defaults)


def read() -> Settings:
    """Read the settings from Dask's configuration and check each of them.

    Raises
    ------
    SettingError
        For a key that does not exist (a typo), or a value that cannot work; the message names both.
    """
    import dask

    raw = dask.config.get("resilience", {})
    if not isinstance(raw, Mapping):
        raise SettingError(f"resilience = {raw!r} must be a mapping such as {{'store': '/lustre/run-42'}}")
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
    example = "30 or '30s'" if name in _TIMES else "0.1"
    number = _seconds(key, value) if name in _TIMES and isinstance(value, str) else value
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
    "probe_rules": ("a path to a YAML file, or null", lambda value: value is None or isinstance(value, str), _as_it_is),
    "recover_enabled": _FLAG,
    "recover_untested_dask": _FLAG,
    "store": ("a path or a file:// URL", lambda value: value is None or isinstance(value, str), _as_it_is),
    "codecs": ("a list of names of modules, such as ['my_package.codecs']", _is_names, tuple),
}
"""Settings that are no numbers: what they must be, how that is told, and what becomes of it."""


def _seconds(key: str, value: str) -> float:
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
        said = yaml.safe_load(Path(path).read_text())
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as e:
        raise SettingError(f"resilience.probe.rules = {path!r} cannot be read: {' '.join(str(e).split())}") from None
    if not isinstance(said, Mapping):
        raise SettingError(
            f"resilience.probe.rules = {path!r} must hold a mapping such as {{xid: {{79: {{class: drain}}}}}}"
        )
    rules = {"file": path, **said}
    Tables.of(rules)
    return rules
