"""Time zones as JSON: fixed offsets, and the zones that `zoneinfo` or pytz know by a key."""

from __future__ import annotations

import datetime as dt
import functools
import zoneinfo
from collections.abc import Mapping
from typing import Any

from dask_resilient.errors import Foreign, Unreachable
from dask_resilient.partitions.inexact import Inexact

__all__ = ["zone_from_json", "zone_to_json"]


def zone_to_json(zone: dt.tzinfo | None) -> Any:
    """Describe a time zone in JSON types.

    Raises
    ------
    Inexact
        If it cannot be found again by a key or a fixed offset.
    """
    spec: Any = None
    if zone is None:
        return None
    if type(zone) is dt.timezone and len(zone.__getinitargs__()) == 1:  # type: ignore[attr-defined]
        spec = {"fixed": zone.utcoffset(None) // dt.timedelta(microseconds=1)}
    elif type(zone) is zoneinfo.ZoneInfo and zone.key in _zoneinfo_keys():
        spec = {"zoneinfo": zone.key}
    elif type(zone).__module__.partition(".")[0] == "pytz" and getattr(zone, "zone", None) is not None:
        spec = {"pytz": zone.zone}  # type: ignore[attr-defined]
    # Identity: a zone read from a file may carry a key that means something else elsewhere.
    if spec is None or (zone_from_json(spec) is not zone and "fixed" not in spec):
        raise Inexact(f"has the time zone {zone!r}, which has no key to find it again")
    return spec


def zone_from_json(spec: Any) -> dt.tzinfo | None:
    """Read what `zone_to_json` gave.

    Raises
    ------
    Unreachable
        If this machine lacks the zone.
    Foreign
        If this describes no time zone.
    """
    if spec is None:
        return None
    if not isinstance(spec, Mapping) or len(spec) != 1:
        raise Foreign(f"{spec!r} describes no time zone")
    [(kind, value)] = spec.items()
    if kind == "fixed":
        return dt.timezone(dt.timedelta(microseconds=value))
    if kind == "zoneinfo":
        # Looked up before it is opened: ZoneInfo searches unknown keys in the subpackages of tzdata.
        if value not in _zoneinfo_keys():
            raise Unreachable(f"the time zone {value!r} is not installed here")
        return zoneinfo.ZoneInfo(value)
    if kind == "pytz":
        import pytz  # type: ignore[import-untyped]

        if value not in pytz.all_timezones_set:
            raise Unreachable(f"the time zone {value!r} is not known to pytz here")
        zone: dt.tzinfo = pytz.timezone(value)
        return zone
    raise Foreign(f"{kind!r} is no kind of time zone")


@functools.cache
def _zoneinfo_keys() -> frozenset[str]:
    return frozenset(zoneinfo.available_timezones())
