"""What was told already, so that it is told once."""

from __future__ import annotations

MOST = 1_000
"""Of each device; beyond that it is told anew."""


class Alarms:
    """Remembers what was told of which device."""

    def __init__(self) -> None:
        self._told: dict[str, set[tuple[str, ...]]] = {}

    def is_news(self, device: str, *what: str) -> bool:
        """Say whether something is told of a device for the first time since it was forgotten."""
        told = self._told.setdefault(device, set())
        if what in told:
            return False
        if len(told) >= MOST:
            told.clear()
        told.add(what)
        return True

    def forget(self, device: str) -> None:
        """Have everything about a device be news again."""
        self._told.pop(device, None)
