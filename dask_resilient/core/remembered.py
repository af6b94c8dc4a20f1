"""What is remembered of devices between runs: what an entry says, which entries count, and what they come to.

An entry is one file, ``devices/<folder>/<n>.json``, that is created once and never changed; it carries a SHA-256 over
itself. The newest one, by n, that takes its device out of service or brings it back decides; those after it, which tell
of canaries, only add failures. Reading and writing them is in :mod:`dask_resilient.store.devices`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dask_resilient.core.actions import OURS, Phase
from dask_resilient.core.manifest import FORMAT, digest, seal, unseal
from dask_resilient.core.messages import sendable
from dask_resilient.core.outcome import Declined
from dask_resilient.errors import Damaged, Foreign

QUARANTINED, RELEASED, TRIED = "quarantined", "released", "tried"
"""The events: out of service, back in service, and a canary that decided neither."""

MOST_N = 10**9 - 1
MOST_BYTES = 1 << 18
"""Size of the largest file that is taken for an entry; those that are made here stay below it."""

_LINES = 20
_LENGTH = 500
"""Lines of evidence that an entry has at most, and characters of any text in it."""

_LATEST = 1e11  # UNIX seconds; what is later is no time that a clock has shown
_GPU = re.compile(r"(GPU|MIG)-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_UNSAFE = re.compile(r"[^0-9a-z]+")


def is_remembered(device: str) -> bool:
    """Say whether anything of a device outlives the run: a CPU worker's device is a name, which another one may get."""
    return bool(device) and not device.startswith("host:")


def folder_of(device: str) -> str:
    """Give the name of a device's directory: safe on any file system, and never that of another device.

    Returns
    -------
    The UUID itself where it is written as NVIDIA's driver does, so that people find it; else what is readable of the
    name, in small letters as some file systems tell no others apart, and a digest of all of it.
    """
    if _GPU.fullmatch(device):
        return device
    return f"{_UNSAFE.sub('-', device.lower())[:40].strip('-')}-x{digest(device)[:32]}".lstrip("-")


def make_entry(
    event: str,
    device: str,
    *,
    time: float,
    phase: str,
    rule: str,
    evidence: Iterable[str],
    host: str,
    run: str,
    by: str = OURS,
    failed: int = 0,
    until_released: bool = False,
) -> dict[str, Any]:
    """Make an entry; its ``n`` is given when it is written.

    Parameters
    ----------
    event
        ``quarantined``, ``released`` or ``tried``.
    device
        Its UUID, or what the driver calls it.
    time
        UNIX seconds.
    phase
        Of the device, after the event.
    rule, evidence, host
        What led to it, and where. One that quarantines counts only with all three.
    run
        Id of the run.
    by
        Who decided.
    failed
        Failed requalifications so far.
    until_released
        Whether only an operator brings the device back.
    """
    lines = [sendable(line, _LENGTH) for line in evidence]
    if len(lines) > _LINES:
        lines[_LINES - 1 :] = [f"and {len(lines) - _LINES + 1} lines more"]
    texts = {"phase": phase, "rule": rule, "host": host, "by": by, "run": run}
    return {
        "format": FORMAT,
        "device": device,
        "time": float(time),
        "event": event,
        **{name: sendable(str(text), _LENGTH) for name, text in texts.items()},
        "evidence": lines,
        "failed": failed,
        "until_released": until_released,
    }


def dumps_entry(entry: Mapping[str, Any], n: int) -> bytes:
    """Give the bytes of the file of an entry, as its n-th of that device; what does not come back is not written.

    Raises
    ------
    Damaged, Foreign, TypeError, ValueError
        If it would be ignored when it is read.
    """
    raw = seal({**entry, "n": n})
    if loads_entry(raw, folder_of(str(entry.get("device"))), n) != {**entry, "n": n}:
        raise Damaged(f"the entry of {entry.get('device')!r} would be read as another one")
    return raw


def loads_entry(raw: bytes, folder: str, n: int) -> dict[str, Any]:
    """Read the n-th entry of the device that has this folder.

    Raises
    ------
    Damaged
        If it was changed or cut off, or cannot count, as it says nothing that an entry says.
    Foreign
        If it is of another device, or has another number, or is of a format that this version does not know.
    """
    what = "the entry"
    if len(raw) > MOST_BYTES:
        raise Damaged(f"{what} has {len(raw)} bytes, more than any")
    body = {"format": FORMAT, **unseal(raw, what)}
    if reason := refusal(body):
        raise Damaged(reason)
    device = body["device"]
    if folder_of(device) != folder:
        raise Foreign(f"{what} is about {_shown(device)}, which has another folder")
    if body["n"] != n:
        raise Foreign(f"{what} says that it is number {body['n']}")
    return {name: body[name] for name in ("format", "n", *_FIELDS)}


def refusal(entry: Mapping[str, Any]) -> str:
    """Say why an entry does not count, empty if it does."""
    for name, fits in {"n": _is_count, **_FIELDS}.items():
        if not fits(entry.get(name)):
            return f"the entry has {name} = {_shown(entry.get(name))}"
    if not is_remembered(entry["device"]):
        return f"the entry is about {_shown(entry['device'])}, which is no GPU"
    if entry["event"] == QUARANTINED and (lacking := _lacks(entry)):
        return f"the entry quarantines without {lacking}"
    return ""


def _lacks(entry: Mapping[str, Any]) -> str:
    """Give what an entry lacks without which it takes no device out of service, empty if nothing."""
    said = {"rule": entry["rule"], "evidence": "".join(entry["evidence"]), "host": entry["host"]}
    return " or ".join(name for name, text in said.items() if not text.strip())


def _shown(value: object) -> str:
    """Show a value that may be anything: also what is too deep, or has too many digits, to be shown."""
    if (type(value) is int and not -_LATEST < value < _LATEST) or isinstance(value, list | dict):
        return f"something of type {type(value).__name__}"
    return f"{value!r:.80}"


def _is_text(value: object) -> bool:
    """Say whether something is a text that can be sent on."""
    if type(value) is not str or len(value) > 10 * _LENGTH:  # a character that cannot be sent becomes up to ten
        return False
    return sendable(value, len(value)) == value


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value <= MOST_N


def _is_time(value: object) -> bool:
    return type(value) in {int, float} and 0 <= value < _LATEST  # type: ignore[operator]


def _are_texts(value: object) -> bool:
    return type(value) is list and len(value) <= _LINES and all(map(_is_text, value))


_FIELDS: Mapping[str, Callable[[object], bool]] = {
    "device": _is_text,
    "time": _is_time,
    "event": lambda value: value in (QUARANTINED, RELEASED, TRIED),
    **dict.fromkeys(("phase", "rule"), _is_text),
    "evidence": _are_texts,
    **dict.fromkeys(("host", "by", "run"), _is_text),
    "failed": _is_count,
    "until_released": lambda value: type(value) is bool,
}
"""What an entry says beside its number, and whether a value can be that; a hostile hand may seal anything."""


def decides(entry: Mapping[str, Any]) -> bool:
    """Say whether an entry that counts settles by itself if its device is in service, so that no older one matters."""
    return bool(entry["event"] != TRIED)


@dataclass(frozen=True, slots=True)
class Remembered:
    """What the entries of one device come to."""

    device: str
    out: bool
    """Whether it is out of service."""
    rule: str
    evidence: tuple[str, ...]
    host: str
    by: str
    """Who decided that."""
    since: float
    """UNIX seconds by the clock of the scheduler that decided; it may be ahead of this one's."""
    failed: int
    """Failed requalifications."""
    until_released: bool
    """Whether only an operator brings it back."""
    ignored: tuple[str, ...] = ()
    """Why newer entries do not count."""


def state(entries: Sequence[Mapping[str, Any]]) -> Remembered | Declined:
    """Say whether a device is out of service, by its entries in any order; declined if none of them counts."""
    ignored: list[str] = []
    newer: list[Mapping[str, Any]] = []
    for entry in sorted(entries, key=_number, reverse=True):
        if reason := refusal(entry):
            ignored.append(reason)
        elif decides(entry):
            return _remembered(entry, newer, entry["event"] == QUARANTINED, ignored)
        else:
            newer.append(entry)
    # What took it out of service is damaged, or out of sight behind so many canaries: they say it too.
    held = [entry for entry in newer if entry["phase"] != Phase.ACTIVE and not _lacks(entry)]
    if held and held[0] is newer[0]:
        return _remembered(held[-1], newer, True, ignored)
    return Declined(ignored[0] if ignored else "nothing is remembered that takes it out of service")


def _number(entry: Mapping[str, Any]) -> int:
    n = entry.get("n")
    return n if type(n) is int else -1


def _remembered(
    entry: Mapping[str, Any], newer: Iterable[Mapping[str, Any]], out: bool, ignored: Iterable[str]
) -> Remembered:
    said = [entry, *newer]
    return Remembered(
        device=entry["device"],
        out=out,
        rule=entry["rule"],
        evidence=tuple(entry["evidence"]),
        host=entry["host"],
        by=entry["by"],
        since=float(entry["time"]),
        failed=max(each["failed"] for each in said),
        until_released=out and any(each["until_released"] for each in said),
        ignored=tuple(ignored),
    )
