"""Waiting for a condition with a deadline: the only way in which tests wait."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any


def wait_until(condition: Callable[[], Any], seconds: float = 20.0, what: str = "") -> Any:
    """Wait until the condition gives something true, and give that; fail with what it was about."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what or condition}"
        time.sleep(0.01)


async def until(condition: Callable[[], Any], seconds: float = 20.0, what: str = "") -> Any:
    """Wait like `wait_until`, on the event loop."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what or condition}"
        await asyncio.sleep(0.005)
