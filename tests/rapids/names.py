"""Which names of cuDF, pylibcudf and CuPy our code uses, and how: read off its source.

From the name of a library on, a chain of attributes is followed as it stands (`cudf.Series.from_arrow`). On a value
nobody knows the type: there each attribute counts by its own name, and `known.py` says whose it is.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path

PARTITIONS = Path(__file__).parents[2] / "dask_resilient" / "partitions"
LIBRARIES = {"cudf", "cupy", "pylibcudf", "rmm"}


@dataclass(frozen=True)
class Use:
    """One use of a name."""

    name: str
    where: str
    call: tuple[int, tuple[str, ...]] | None = None
    """Number of positional arguments and names of the others; None = it is only looked at."""
    assigned: bool = False


def uses(path):
    """Give every use of a library's names in a module; and, where it is all about cuDF, of attributes of values."""
    tree = ast.parse(path.read_text())
    calls = {id(node.func): node for node in ast.walk(tree) if isinstance(node, ast.Call)}
    inner = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    modules = {alias.asname or alias.name for node in ast.walk(tree) for alias in getattr(node, "names", ())}
    values_too = path.name.startswith("cudf_")
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and str(node.module).partition(".")[0] in LIBRARIES:
            # Not written so here: a bare name cannot be followed to where it is used.
            yield Use(f"{node.module}.imported alone", f"{path.name}:{node.lineno}")
        if not isinstance(node, ast.Attribute):
            continue
        root, name = chain(node)
        if root in LIBRARIES:
            if id(node) in inner:  # a longer chain comes, and says more
                continue
        elif values_too and root not in modules:
            name = f".{node.attr}"
        else:
            continue
        yield Use(name, f"{path.name}:{node.lineno}", arguments(calls.get(id(node))), isinstance(node.ctx, ast.Store))


def chain(node):
    """Give the name that a chain of attributes begins with, and the whole chain."""
    names = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    root = node.id if isinstance(node, ast.Name) else None
    return root, ".".join([str(root), *reversed(names)])


def arguments(call):
    """Give the shape of a call."""
    if call is None:
        return None
    return len(call.args), tuple(str(keyword.arg) for keyword in call.keywords)


def every_use():
    """Give all uses in all codecs."""
    return [use for path in sorted(PARTITIONS.glob("*.py")) for use in uses(path)]
