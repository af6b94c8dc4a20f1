"""Kinds of collections, told without importing their libraries."""

from __future__ import annotations


def is_xarray(x: object) -> bool:
    """Say whether an object is of xarray, by the modules of its classes."""
    return any(cls.__module__.partition(".")[0] == "xarray" for cls in type(x).__mro__)
