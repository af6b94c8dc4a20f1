"""The process of one probe of a third party: reads it for ever, and prints what it gives, one JSON object a line.

It is told, in one line, ``{"name", "pickle": base64 or null, "device", "path", "again"}``; without a pickle the name is
that of an entry point. A further line ``{"device"}`` says which one it is from now on, and that is read at once.

What the probe gave is said again every ``again`` seconds until its next call: so states stay fresh, and one that only
sleeps is told from one that hangs. What it prints itself goes to nowhere, and an error of it is said and ends nothing.
"""

from __future__ import annotations

import base64
import itertools
import json
import math
import os
import re
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO

from dask_resilient.core.faults import Class
from dask_resilient.core.messages import sendable
from dask_resilient.core.readings import BUILT_IN, Name

GROUP = "dask_resilient.probes"
"""Group of the entry points."""

MOST = 100
"""Readings of one call that are taken: the built-in probes give about as many."""

LENGTH = 300
"""Characters of a name, value or text that are taken."""

LARGEST = 2**63
"""Integers are smaller than this: messages hold no larger ones."""

LEAST_INTERVAL = 0.1
DEFAULT_INTERVAL = 5.0
"""Seconds between calls; a probe says its own as ``interval``."""

PLAIN = (bool, int, float, str)

PROBE = "probe"
"""Name of the reading that says whether the probe itself works."""

_OURS = frozenset({*map(str, Name), PROBE}) - {str(Name.STATED)}


def main(order: dict[str, Any]) -> None:
    """Load the probe and read it.

    Parameters
    ----------
    order
        What the process was told, see above.
    """
    # The pipes to the parent are for this loop alone, whatever the probe and what it starts do with theirs.
    orders, out = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "w")
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    anew = threading.Event()
    threading.Thread(target=_obey, args=(orders, order, anew), daemon=True).start()

    def say(said: dict[str, Any]) -> None:
        out.write(json.dumps(said) + "\n")
        out.flush()

    try:
        probe = _load(order["name"], order["pickle"])
        if reason := wrong(probe):
            say({"unloaded": reason})
            return
        interval = max(LEAST_INTERVAL, float(getattr(probe, "interval", DEFAULT_INTERVAL)))
    except BaseException as e:
        say({"unloaded": _said(e)})
        return
    while True:
        anew.clear()
        last = _read(probe, order["device"])
        say(last)
        end = time.monotonic() + interval
        while (left := end - time.monotonic()) > 0 and not anew.wait(min(left, order["again"])):
            if left > order["again"]:
                say(last)


def _read(probe: Any, device: str) -> dict[str, Any]:
    try:
        given = probe.read(device)
        if not isinstance(given, Iterable):
            # As where somebody wrote neither "return" nor "yield".
            shown = "None" if given is None else f"an object of type {type(given).__name__}"
            reason = f"gave {shown}, not tuples; its method read has to yield them, or to return a list of them"
            return {"readings": [(PROBE, None, reason)]}
        given = iter(given)
        found = list(rows(itertools.islice(given, MOST)))
        if len(found) == MOST and next(given, None) is not None:
            found.append((PROBE, None, f"gave more than {MOST} readings in one call; the others are not taken"))
    except BaseException as e:
        return {"error": _said(e)}
    return {"readings": found}


def _said(error: BaseException) -> str:
    try:
        return sendable(repr(error), LENGTH)
    except Exception:
        return type(error).__name__


def rows(given: Iterator[Any]) -> Iterator[tuple[str, object, str]]:
    """Give name, value and text of what a probe gave; what cannot be taken is unknown, with the reason."""
    for one in given:
        if not isinstance(one, tuple) or len(one) not in (2, 3) or not isinstance(one[0], str):
            shown = sendable(repr(one), 100)
            yield PROBE, None, f"gave {shown}, not a tuple (name, value) or (name, value, text)"
            continue
        name, value, text = (*one, "")[:3]
        name = sendable(name, LENGTH)
        kind = name.partition(".")[0]
        if kind in _OURS:
            yield PROBE, None, f"gave {name!r}, which is a reading of the built-in probes; use another name"
            continue
        value = _plain(value)
        if reason := _refused(kind, value):
            yield name, None, reason
        else:
            value = sendable(value, LENGTH) if isinstance(value, str) else value
            yield name, value, sendable(str(text), LENGTH)


def _plain(value: Any) -> Any:
    """Give a scalar of NumPy, or of what works like it, as what Python has for it."""
    kind = type(value).__module__.partition(".")[0]
    return value.item() if kind == "numpy" and getattr(value, "shape", None) == () else value


def _refused(kind: str, value: object) -> str:
    """Say why a value cannot be taken; empty if it can."""
    if value is None:
        return ""
    if not isinstance(value, PLAIN):
        return f"its value is of type {type(value).__name__}, not a number, a text or None"
    if kind == Name.STATED and value not in set(Class):
        return f"it states {sendable(repr(value), 100)}, which is no class: those are {', '.join(Class)}"
    if isinstance(value, int) and not -LARGEST <= value < LARGEST:
        return "its value does not fit 64 bits"
    return ""


def wrong_name(name: object) -> str:
    """Say why something cannot be the name of a probe; empty if it can."""
    if not isinstance(name, str) or not name:
        return "it needs a name (text)"
    if name in BUILT_IN:
        return f"{name!r} cannot be a name: {', '.join(sorted(BUILT_IN))} are built-in probes; use another one"
    if not _NAME.fullmatch(name) or len(name) > LENGTH:
        shown = sendable(name, LENGTH)
        return f"{shown!r} cannot be a name: use letters, digits, '.', '_' and '-', {LENGTH} at most"
    return ""


_NAME = re.compile(r"[A-Za-z0-9._-]+")


def wrong(probe: Any) -> str:
    """Say why something is no probe; empty if it is one."""
    name, shown = getattr(probe, "name", None), sendable(repr(probe), LENGTH)
    if not isinstance(name, str) or not name or not callable(getattr(probe, "read", None)):
        return f"{shown} is no probe: it needs a name (text) and a method read(device)"
    if reason := wrong_name(name):
        return reason
    interval = getattr(probe, "interval", DEFAULT_INTERVAL)
    if isinstance(interval, bool) or not isinstance(interval, int | float) or not 0 < interval < math.inf:
        return f"the interval of {name!r} is {interval!r}; it must be a positive number of seconds"
    return ""


def _load(name: str, pickled: str | None) -> Any:
    if pickled is not None:
        import cloudpickle

        probe = cloudpickle.loads(base64.b64decode(pickled))
    else:
        from importlib.metadata import entry_points

        (point,) = entry_points(group=GROUP, name=name)
        probe = point.load()
    return probe() if isinstance(probe, type) else probe


def _obey(orders: BinaryIO, order: dict[str, Any], anew: threading.Event) -> None:
    """Take further orders, and end when the other end of the pipe is closed, whatever the probe does."""
    for line in orders:
        order.update(json.loads(line))
        anew.set()
    os._exit(0)
