"""The log of Dask and of the package during a test."""

from __future__ import annotations

import logging

BAD = (
    "Error transitioning",
    "Detected different",
    "Plugin failed",
    "could not handle",
    "recovery is left to Dask from",
)
"""What is in a message of the log that no test may cause."""


class Log(logging.Handler):
    """Keeps the messages of Dask and of the package."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if record.exc_info and record.exc_info[1] is not None:
            text += f" :: {record.exc_info[1]!r}"
        self.messages.append(text)

    def bad(self) -> list[str]:
        """Give the messages that mean a broken invariant."""
        return [m for m in self.messages if any(b in m for b in BAD) or "AssertionError" in m]
