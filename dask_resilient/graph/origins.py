"""Where code comes from: the standard library, an installed distribution, or the user's own files."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
from functools import cache
from types import ModuleType

PYTHON = "python"

OURS = "dask_resilient"
"""Takes no part: what our code does to a value is to keep it."""


def origin(module: str | None) -> tuple[str, str] | None:
    """Give the distribution and the release that a module belongs to, None for code of the user's.

    The standard library counts as ``python``, by the minor version, since that decides about bytecode. A module of a
    distribution that is installed in place (editable) is the user's own.
    """
    top = (module or "").partition(".")[0]
    if top in sys.stdlib_module_names or top in sys.builtin_module_names:
        return PYTHON, ".".join(platform.python_version_tuple()[:2])
    return _distribution(top) if top and top != "__main__" else None


@cache
def _distribution(top: str) -> tuple[str, str] | None:
    where = _file(sys.modules.get(top))
    for name in _distributions().get(top, ()):
        distribution = importlib.metadata.distribution(name)
        root = os.path.realpath(str(distribution.locate_file("")))
        if where is None or os.path.commonpath([root, where]) == root:
            return distribution.metadata["Name"], distribution.version
    return None


@cache
def _distributions() -> dict[str, list[str]]:
    return {top: sorted(set(names)) for top, names in importlib.metadata.packages_distributions().items()}


def _file(module: ModuleType | None) -> str | None:
    if module is None:
        return None
    path = getattr(module, "__file__", None) or next(iter(getattr(module, "__path__", ())), None)
    return os.path.realpath(path) if path else None
