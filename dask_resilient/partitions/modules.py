"""Imports the modules that the setting ``resilience.codecs`` names, so that they register codecs of the user's.

The names come from the user's own configuration, never from a receipt.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable

__all__ = ["load_modules"]


def load_modules(names: Iterable[str]) -> list[str]:
    """Import some modules; importing one twice does nothing.

    Parameters
    ----------
    names
        Dotted names, as in the setting ``resilience.codecs``.

    Returns
    -------
    problems
        One sentence for each module that could not be imported: the process goes on without its codecs.
    """
    problems = []
    for name in names:
        try:
            importlib.import_module(name)
        except (Exception, SystemExit) as e:
            # Whatever a module of the user's does while it is imported: partitions of other types are still saved.
            problems.append(
                f"module {name!r} of the setting resilience.codecs cannot be imported here, so its codecs are missing: "
                f"{e!r}; install it on every worker"
            )
    return problems
