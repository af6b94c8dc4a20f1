"""What the commands share: errors in one line, tables that can be copied from, JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from dask_resilient.errors import ResilienceError

as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON, and nothing else, to stdout.")


class Wrong(click.ClickException):
    """Something that was asked for cannot be done."""

    exit_code = 2


@contextmanager
def one_line() -> Iterator[None]:
    """Turn an error of ours, or of the file system, into one line and exit code 2."""
    try:
        yield
    except (ResilienceError, OSError) as e:
        raise Wrong(str(e)) from e


def show(table: Table, summary: str) -> None:
    """Print a table, if it has rows, and a line below it."""
    console = Console(markup=False, emoji=False, highlight=False)
    # Names are to be copied out of a table, so no cell is cut short, however narrow the terminal.
    wide = console.options.update(width=10_000)
    console.width = max(console.width, Measurement.get(console, wide, table).maximum, len(summary))
    with console.capture() as captured:
        if table.row_count:
            console.print(table)
        console.print(summary)
    for line in captured.get().splitlines():
        click.echo(line.rstrip())


def print_json(body: Any) -> None:
    """Print JSON, and nothing else."""
    click.echo(json.dumps(body, indent=1))


def count(number: int, what: str) -> str:
    """Give a number with what is counted."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def plain(text: str) -> str:
    """Give a name of the user's without what a terminal would obey."""
    return text if text.isprintable() else repr(text)


def size(nbytes: int) -> str:
    """Give a number of bytes as text."""
    from dask.utils import format_bytes

    return format_bytes(nbytes)
