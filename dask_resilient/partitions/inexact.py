"""How a codec says, from any depth, that a value could not be given back exactly."""

from __future__ import annotations

from dask_resilient.errors import ResilienceError

__all__ = ["Inexact"]


class Inexact(ResilienceError):
    """The value cannot be stored so that exactly it comes back; `stage` turns this into `Declined`."""
