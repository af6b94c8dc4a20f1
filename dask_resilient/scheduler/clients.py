"""What is said to people, in the processes of all clients."""

from __future__ import annotations

from typing import Any


def tell(scheduler: Any, text: str) -> None:
    """Print a text on the standard error of every client."""
    scheduler.log_event("print", {"args": (f"dask-resilient: {text}",), "file": 2})
