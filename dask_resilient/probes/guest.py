"""The process of one probe of a third party: reads it for ever, and prints what it gives, one JSON object a line.

It is told, in one line, ``{"name", "pickle": base64 or null, "device"}``; without a pickle the name is that of an entry
point. What the probe prints itself goes to nowhere, and an error of it is said and ends nothing.
"""

from __future__ import annotations

import base64
import itertools
import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

from dask_resilient.core.readings import Name

GROUP = "dask_resilient.probes"
"""Group of the entry points."""

MOST = 1_000
"""Readings of one call that are taken."""

LEAST_INTERVAL = 0.1
DEFAULT_INTERVAL = 5.0
"""Seconds between calls; a probe says its own as ``interval``."""

PLAIN = (bool, int, float, str)

_OURS = frozenset(str(name) for name in Name) - {str(Name.STATED)}


def main() -> None:
    """Load the probe and read it."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sys.stdout = sys.stderr
    order = json.loads(sys.stdin.buffer.readline())
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    name, device = order["name"], order["device"]

    def say(**fields: Any) -> None:
        out.write(json.dumps(fields) + "\n")
        out.flush()

    try:
        probe = _load(name, order["pickle"])
        interval = max(LEAST_INTERVAL, float(getattr(probe, "interval", DEFAULT_INTERVAL)))
    except BaseException as e:
        say(error=f"cannot be loaded: {e!r}")
        return
    while True:
        try:
            say(readings=list(rows(itertools.islice(probe.read(device), MOST))))
        except Exception as e:
            say(error=f"raised {e!r}")
        time.sleep(interval)


def rows(given: Iterator[Any]) -> Iterator[tuple[str, object, str]]:
    """Give name, value and text of what a probe gave; what cannot be taken is unknown, with the reason."""
    for one in given:
        if not isinstance(one, tuple) or len(one) not in (2, 3) or not isinstance(one[0], str):
            yield "probe", None, f"it gave {one!r:.100}, not a tuple (name, value) or (name, value, text)"
            continue
        name, value, text = (*one, "")[:3]
        if name.partition(".")[0] in _OURS:
            yield "probe", None, f"it gave {name!r}, which is a reading of the built-in probes; use another name"
        elif value is not None and not isinstance(value, PLAIN):
            yield name, None, f"its value is of type {type(value).__name__}, not a number, a text or None"
        else:
            yield name, value, str(text)


def _load(name: str, pickled: str | None) -> Any:
    if pickled is not None:
        import cloudpickle

        probe = cloudpickle.loads(base64.b64decode(pickled))
    else:
        from importlib.metadata import entry_points

        (point,) = entry_points(group=GROUP, name=name)
        probe = point.load()
    return probe() if isinstance(probe, type) else probe


def _leave_with_parent() -> None:
    sys.stdin.buffer.read()
    os._exit(0)


if __name__ == "__main__":
    main()
