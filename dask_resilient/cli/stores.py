"""``ls | verify | explain | gc | rm STORE``: what lies in a store, whether it is sound, and what may go."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import click
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from dask_resilient.cli.showing import Wrong, as_json, count, one_line, plain, print_json, show, size
from dask_resilient.core.explaining import explain as words
from dask_resilient.core.garbage import GRACE
from dask_resilient.core.milestones import Milestone
from dask_resilient.store.archive import Archive, open_archive
from dask_resilient.store.garbage import Collector, Removed
from dask_resilient.store.leases import clock
from dask_resilient.store.survey import milestone_rows, newest_renewal, partition_rows, resumptions

delete = click.option("--delete", is_flag=True, help="Really delete; without this, only say what would be deleted.")


@click.command()
@click.argument("store")
@as_json
def ls(store: str, as_json: bool) -> None:
    """List the milestones of STORE. Leaves nothing behind."""
    with one_line():
        archive = open_archive(store)
        rows = milestone_rows(archive, _now(archive))
    if as_json:
        print_json(rows)
        return
    table = Table("name", "m", "kind", "stored", "size", "made (UTC)", "run", box=None, pad_edge=False)
    for row in rows:
        if row["name"] is None:
            table.add_row("?", row["milestone"], "", "", "", "", row["reason"])
            continue
        name = row["name"] + (f" / {plain(row['variable'])}" if row["variable"] else "")
        made = datetime.fromtimestamp(row["made"], UTC).strftime("%Y-%m-%d %H:%M:%S")
        stored = f"{row['stored']:,}/{row['partitions']:,}"
        stored += f" ({row['unreadable']:,} unreadable)" if row["unreadable"] else ""
        run = f"{row['run_state']}{', kept' if row['keep'] else ''}"
        table.add_row(name, row["milestone"], row["kind"], stored, size(row["nbytes"]), made, run)
    show(table, f"{count(len(rows), 'milestone')} in {archive.root}")


@click.command()
@click.argument("store")
@click.argument("milestone", nargs=-1)
@as_json
def verify(store: str, milestone: tuple[str, ...], as_json: bool) -> None:
    """Read every byte of STORE, or of some MILESTONEs (name or m), and compare it with its receipt.

    Exit code 1 if anything is damaged, foreign, unreachable or missing. Writes nothing.
    """
    with one_line():
        archive = open_archive(store)
        chosen = _choose(archive, milestone) if milestone else archive.milestones()
        expected = sum(len(archive.listing(each.milestone).valid()) for each in chosen)
        rows = list(_progress(partition_rows(archive, chosen), expected, "verifying"))
    unreadable = [
        {"milestone": m, "ending": "damaged", "reason": why}
        for m, why in archive.unreadable.items()
        if not milestone or m in milestone
    ]
    bad = [row for row in rows if row["ending"] != "good"] + unreadable
    if as_json:
        good = [row for row in rows if row["ending"] == "good"]
        print_json({"good": len(good), "nbytes": sum(row["nbytes"] for row in good), "bad": bad})
    else:
        table = Table("name", "what", "ending", "reason", box=None, pad_edge=False)
        for row in bad:
            what = row.get("receipt", f"milestones/{row['milestone']}.json")
            table.add_row(plain(row.get("name", "?")), what, row["ending"], row["reason"])
        total = size(sum(row["nbytes"] for row in rows))
        show(table, f"{count(len(rows) - len(bad) + len(unreadable), 'partition')} good ({total}), {len(bad):,} not")
    sys.exit(1 if bad else 0)


@click.command()
@click.argument("store")
@click.argument("name")
@as_json
def explain(store: str, name: str, as_json: bool) -> None:
    """Say what the last run with milestones of NAME reused of those in STORE, and why not the rest.

    With --json, what all runs found. Leaves nothing behind.
    """
    with one_line():
        archive = open_archive(store)
        every = sorted(resumptions(archive), key=lambda found: found[1])
    found = [each for each in every if each[2].name == name]
    if not found:
        known = ", ".join(sorted({each.name for _, _, each in every})[:10]) or "none"
        raise Wrong(f"no run has met a milestone {name!r} in {archive.root!r}; they met {known}")
    rows = [{"run": run, "time": time, **each.to_dict(), "text": words(each)} for run, time, each in found]
    if as_json:
        print_json(rows)
        return
    last = rows[-1]["run"]
    for row in rows:
        if row["run"] == last:
            when = datetime.fromtimestamp(row["time"], UTC).strftime("%Y-%m-%d %H:%M:%S")
            click.echo(f"{plain(row['text'])} (run {row['run'][:8]}, {when} UTC)")


@click.command()
@click.argument("store")
@click.option("--grace", default="24h", show_default=True, help="Leave alone what is younger.")
@delete
@as_json
def gc(store: str, grace: str, delete: bool, as_json: bool) -> None:
    """Find what nobody needs any more in STORE, and with --delete delete it.

    That is: milestones whose runs were marked complete and that are not marked keep, copies that were revoked, attempts
    without receipt, and what was for a run only that has ended. Never anything that a live run uses, nor a milestone of
    a run that ended without being marked complete.
    """
    with one_line():
        archive = open_archive(store)
        collector = Collector(archive, delete=delete)
        seconds = _seconds(grace)
        names = collector.milestones()
        found = [each for m in _progress(names, len(names), "collecting") for each in collector.collect(m, seconds)]
        found += collector.sweep_root(seconds)
    _show_removed(found, delete=delete, as_json=as_json)


@click.command()
@click.argument("store")
@click.argument("milestone", nargs=-1, required=True)
@click.option("--all", "every", is_flag=True, help="Take every milestone of a name, where there are several.")
@delete
@as_json
def rm(store: str, milestone: tuple[str, ...], every: bool, delete: bool, as_json: bool) -> None:
    """Remove MILESTONEs (name or m) from STORE, with --delete; refused while a live run uses them."""
    with one_line():
        archive = open_archive(store)
        chosen = _choose(archive, milestone)
        objects = {(e.description.name, e.run if e.description.group else e.milestone) for e in chosen}
        names = [name for name, _ in objects]
        if not every and (twice := sorted({name for name in names if name in milestone and names.count(name) > 1})):
            raise Wrong(f"several milestones are named {twice[0]!r}; say which by their m, or take them --all")
        # One whose description is damaged has no name any more, but it can be removed by its m.
        wanted = [*(each.milestone for each in chosen), *(m for m in milestone if m in archive.unreadable)]
        # What is in use is refused before anything is gone.
        found = [each for m in wanted for each in Collector(archive, delete=False).remove(m)]
        if delete:
            found = [each for m in wanted for each in Collector(archive, delete=True).remove(m)]
    _show_removed(found, delete=delete, as_json=as_json)


def _choose(archive: Archive, wanted: Iterable[str]) -> list[Milestone]:
    """Give the milestones of some names or m."""
    every = archive.milestones()
    chosen = []
    for text in wanted:
        found = [each for each in every if text in (each.milestone, each.description.name)]
        if not found and text not in archive.unreadable:
            names = sorted({each.description.name for each in every})
            raise Wrong(f"{archive.root!r} has no milestone {text!r}; it has {', '.join(names[:10]) or 'none'}")
        chosen += [each for each in found if each not in chosen]
    return chosen


def _now(archive: Archive) -> float:
    """Give the store's clock; of a store that cannot be written to, the latest time that it is known to have passed."""
    try:
        return clock(archive.calls, archive.root)
    except OSError:
        return newest_renewal(archive)


def _seconds(text: str) -> float:
    from dask.utils import parse_timedelta

    try:
        seconds = float(parse_timedelta(text, default="s"))
    except (ValueError, LookupError, OverflowError):
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise Wrong(
            f"--grace {text!r} must be a time such as '24h' or a number of seconds; the default is {GRACE / 3600:g}h"
        )
    return seconds


def _progress(things: Iterable[Any], total: int, what: str) -> Iterator[Any]:
    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as progress:
        yield from progress.track(things, total=total, description=what)


def _show_removed(found: list[Removed], *, delete: bool, as_json: bool) -> None:
    if as_json:
        print_json({"deleted": delete, "removed": [{**asdict(each), "why": str(each.why)} for each in found]})
        return
    groups: dict[tuple[str, str, str], list[int]] = {}
    for each in found:
        groups.setdefault((each.milestone, each.what, str(each.why)), []).append(each.nbytes)
    table = Table("m", "what", "count", "size", "why", box=None, pad_edge=False)
    for (m, what, why), sizes in groups.items():
        table.add_row(m, what, f"{len(sizes):,}", size(sum(sizes)), why)
    total = size(sum(each.nbytes for each in found))
    did = "deleted" if delete else "would be deleted; --delete does it"
    if not found:
        did = "nothing may go: what is young, kept, in use, or of a run that was not complete stays"
    show(table, f"{count(len(found), 'thing')}, {total}, {did}")
