"""Printing a table and writing the same figures as JSON, for all benchmarks."""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def arguments(description: str, **defaults: Any) -> argparse.Namespace:
    """Read the command line: every keyword is an option with its default, plus ``--json FILE``."""
    parser = argparse.ArgumentParser(description=description)
    for name, default in defaults.items():
        option = "--" + name.replace("_", "-")
        parser.add_argument(option, type=type(default), default=default, help=f"default {default}")
    parser.add_argument("--json", type=Path, help="write the figures here")
    return parser.parse_args()


def show(title: str, rows: Sequence[dict[str, Any]], to: Path | None) -> None:
    """Print rows as a table; write them with the machine and the versions as JSON."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for name in rows[0]:
        table.add_column(name, justify="left" if isinstance(rows[0][name], str) else "right")
    for row in rows:
        table.add_row(*(f"{v:,.4g}" if isinstance(v, float) else str(v) for v in row.values()))
    Console().print(table)
    if to is not None:
        to.write_text(json.dumps({"title": title, "versions": versions(), "rows": list(rows)}, indent=1))


def versions() -> dict[str, str]:
    """Say what was measured, and on what."""
    import dask
    import distributed

    import dask_resilient

    return {
        "dask-resilient": dask_resilient.__version__,
        "dask": dask.__version__,
        "distributed": distributed.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
    }
