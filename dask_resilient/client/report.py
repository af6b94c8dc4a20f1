"""The report: a function of rows. Before a fault it answers "am I protected now?", after one what came back how."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from dask_resilient.core.actions import Phase

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType

Row = Mapping[str, Any]

REASONS_SHOWN = 3
WORKERS_SHOWN = 10
DECISIONS_SHOWN = 10


@dataclass(frozen=True, slots=True, repr=False)
class Report:
    """All rows of one moment. Printed as plain text, or with colours and tables where the terminal has them."""

    status: Row
    workers: Sequence[Row]
    incidents: Sequence[Row]
    checkpoints: Sequence[Row]
    devices: Sequence[Row] = ()

    @classmethod
    def disabled(cls) -> Report:
        """Give the report of a plugin that the setting ``resilience.enabled`` switched off."""
        return cls({"disabled": True}, (), (), ())

    def protection(self) -> list[str]:
        """Say in whole sentences whether and against what the run is protected now."""
        if self.status.get("disabled"):
            return ["dask-resilient is switched off (resilience.enabled is false)."]
        return [
            *_wrong(self.status),
            *_store(self.status),
            *_milestones(self.status, self.checkpoints),
            *_loads(self.status),
            *_workers(self.workers),
        ]

    def losses(self) -> list[str]:
        """Say in a sentence an incident what was lost and how it came back."""
        return [_incident(row) for row in self.incidents if row["kind"] == "loss"]

    def decisions(self) -> list[str]:
        """Give a sentence a decision about a device, also those not to act; the newest."""
        rows = [row for row in self.incidents if row["kind"] != "loss"]
        more = [f"... and {len(rows) - DECISIONS_SHOWN} before these."] if len(rows) > DECISIONS_SHOWN else []
        return more + [_decision(row) for row in rows[-DECISIONS_SHOWN:]]

    def out_of_service(self) -> list[str]:
        """Say in whole sentences which devices get no tasks now, why, and how they come back; all of them."""
        return list(_out_of_service(self.status, self.workers, self.devices))

    def health(self) -> list[str]:
        """Say in whole sentences how the devices are: in how many nothing is wrong, and each where something is."""
        return list(_health(self.workers))

    def __str__(self) -> str:
        """Render for the terminal that prints it; plain text elsewhere."""
        from io import StringIO

        from rich.console import Console

        out = StringIO()
        terminal = sys.stdout.isatty()
        console = Console(file=out, force_terminal=terminal, no_color=not terminal, width=None if terminal else 120)
        console.print(self)
        return out.getvalue().rstrip("\n")

    __repr__ = __str__

    def __rich_console__(  # noqa: C901 - one branch a section
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        """Give rich the sections of the report."""
        from rich.text import Text

        yield Text("Protection", style="bold")
        for line in self.protection():
            yield Text("  " + line)
        if self.status.get("disabled"):
            return
        yield Text("Health", style="bold")
        for line in self.health():
            yield Text("  " + line)
        if lines := self.out_of_service():
            yield Text("Out of service", style="bold")
            for line in lines:
                yield Text("  " + line)
        yield Text("Losses", style="bold")
        for line in self.losses() or ["no worker was lost with results that only it had"]:
            yield Text("  " + line)
        if decisions := self.decisions():
            yield Text("Decisions", style="bold")
            for line in decisions:
                yield Text("  " + line)


def _wrong(status: Row) -> Iterator[str]:
    for text in status.get("wrong", ()):
        advice = "Run the script again, without that device."
        yield f"RESULTS MAY BE WRONG: {text}; nothing of it is stored for later runs. {advice}"


def _store(status: Row) -> Iterator[str]:
    if status["store_reason"]:
        yield f"NOT PROTECTED: the store cannot be used: {status['store_reason']}."
    else:
        yield f"Store {status['store']}: {status['survives']}."
    if status["recovery_off"]:
        yield f"Recovery is left to Dask: {status['recovery_off']}."


def _loads(status: Row) -> Iterator[str]:
    loads = status["loads"]
    if loads.get("damaged"):
        yield f"{loads['damaged']} loads met a damaged copy: not used, what they were for was recomputed."
    if loads.get("foreign"):
        yield f"{loads['foreign']} loads met a copy of something else: not used, what they were for was recomputed."
    if loads.get("unreachable"):
        yield f"{loads['unreachable']} loads could not reach their copy: tried elsewhere, or recomputed."


def _milestones(status: Row, checkpoints: Sequence[Row]) -> Iterator[str]:
    if not status["milestones"]:
        marking = "mark one with dask_resilient.checkpoint(x, name), and compute with what it gives"
        yield f"No milestone has been computed yet: {marking}."
    for row in status["milestones"]:
        yield f"Milestone {row['name']!r}: {'; '.join(_standing(row, checkpoints))}."


def _standing(row: Row, checkpoints: Sequence[Row]) -> Iterator[str]:
    """Say where the partitions of a milestone stand: those that Dask knows, then those that it has let go of."""
    if row["durable"] + row["saving"] + row["lost"]:
        unread = f", and {row['unread']} of earlier runs" if row["unread"] else ""
        yield f"{row['durable']} of {row['total']} partitions durable ({size(row['nbytes'])}{unread})"
    if row["saving"]:
        yield f"{row['saving']} being saved"
    if row["lost"]:
        yield f"{row['lost']} NOT saved"
    if row["released"]:
        yield f"{row['released']} no longer needed by anybody ({row['released_durable']} were durable)"
    if row["lost"] or row["released"] > row["released_durable"]:
        yield f"reasons: {_reasons(row['name'], checkpoints)}"


def _reasons(name: str, checkpoints: Sequence[Row]) -> str:
    bad = ("failed", "not saved", "revoked")
    reasons = dict.fromkeys(row["reason"] for row in checkpoints if row["name"] == name and row["state"] in bad)
    more = len(reasons) - REASONS_SHOWN
    return "; ".join(list(reasons)[:REASONS_SHOWN]) + (f"; and {more} more reasons" if more > 0 else "")


def _workers(workers: Sequence[Row]) -> Iterator[str]:
    bad = [row for row in workers if not row["protected"]]
    good = len(workers) - len(bad)
    if not workers:
        yield "No worker is connected."
    if good:
        yield "1 worker is protected." if good == 1 else f"{good} workers are protected."
    for row in bad[:WORKERS_SHOWN]:
        yield f"UNPROTECTED worker {row['worker']} ({row['name']}): {row['reason']}."
    if len(bad) > WORKERS_SHOWN:
        yield f"... and {len(bad) - WORKERS_SHOWN} more unprotected workers."


def _health(workers: Sequence[Row]) -> Iterator[str]:
    counts = Counter(row["health"] for row in workers)
    if counts:
        how = ", ".join(f"{n} {health}" for health, n in counts.most_common())
        held = sum(row["phase"] != Phase.ACTIVE for row in workers)
        yield f"Of {_count(len(workers), 'worker')}: {how}." + (f" {held} of them get no tasks." if held else "")
    shown = sorted((row for row in workers if row["health"] != "healthy"), key=lambda row: _WORST.index(row["health"]))
    for row in shown[:WORKERS_SHOWN]:
        rule = f"rule {row['rule']}: " if row["rule"] else ""
        why = "; ".join(row["evidence"][:REASONS_SHOWN]) or "no reason is known"
        held = "" if row["readable"] is not False else " What it holds there cannot be read any more."
        # The other words say it themselves.
        asks = f" ({row['class']})" if row["health"] == "unhealthy" else ""
        yield f"{row['health'].upper()}{asks} {row['device']}, worker {row['name']}: {rule}{why}.{held}"
    if len(shown) > WORKERS_SHOWN:
        yield f"... and {len(shown) - WORKERS_SHOWN} more."


def _out_of_service(status: Row, workers: Sequence[Row], devices: Sequence[Row]) -> Iterator[str]:
    if status.get("quarantine") == "off":
        yield "Quarantine is switched off (resilience.quarantine.enabled is false): no device is taken out of service."
    if status.get("quarantine") == "observe":
        yield (
            "Quarantine only observes (resilience.quarantine.observe is true): nothing is done but what an operator "
            "asks for."
        )
    if status.get("forgets"):
        yield f"{status['forgets'][:1].upper()}{status['forgets'][1:]}."
    out = sorted(
        (row for row in devices if row["phase"] != Phase.ACTIVE), key=lambda row: (row["since"] or 0, row["device"])
    )
    if out and not any(row["phase"] == Phase.ACTIVE for row in workers):
        yield "NO WORKER IS IN SERVICE: the run waits for one."
    yield from map(_out, out)


def _out(row: Row) -> str:
    since = f" since {datetime.fromtimestamp(row['since']).astimezone():%Y-%m-%d %H:%M:%S}" if row["since"] else ""
    named = row["device"].startswith("host:") or not row["host"]
    what = row["device"] if named else f"{row['device']} of {row['host']}"
    why = "; ".join(row["evidence"][:REASONS_SHOWN])
    who = f"by {row['by']}" if row["rule"] == "operator" else f"rule {row['rule']}"
    there = "" if row["workers"] else " It has no worker now."
    return f"{what}: {row['phase']}{since}, {who}{f' ({why})' if why else ''}. {_return(row)}{there}"


def _return(row: Row) -> str:
    if row["phase"] == Phase.QUARANTINED and row["until_released"]:
        return f"Only an operator brings it back: res.release({row['device']!r})."
    return {
        Phase.SUSPECT: "It gets tasks again once it is known to be well.",
        Phase.DRAINING: "What it holds is being saved or moved; then it is left.",
        Phase.PROBATION: "It gets tasks again after a canary.",
    }.get(row["phase"], "A new process that finds nothing wrong and a canary bring it back, or an operator.")


_WORST = ("unhealthy", "degraded", "unknown")


def _decision(row: Row) -> str:
    came = f" Then: {row['outcome']}." if row["outcome"] else ""
    counts = [f"{_count(row[what], 'result')} {what}" for what in ("saved", "moved", "lost") if row[what]]
    counted = f" {', '.join(counts)}." if counts else ""
    return f"#{row['id']} {_when(row)} {row['device']}: {row['cause']}.{came}{counted}"


def _when(row: Row) -> str:
    return datetime.fromtimestamp(row["time"]).astimezone().strftime("%H:%M:%S")


def _incident(row: Row) -> str:
    when = _when(row)
    end = "not whole again yet" if row["seconds"] is None else f"whole again after {row['seconds']:.1f} s"
    gpu = f" on {row['device']}" if row["device"].startswith(("GPU-", "MIG-")) else ""
    loaded, again = _count(row["reloaded"], "stored partition"), _count(row["recomputed"], "finished task")
    return (
        f"#{row['id']} {when} worker {row['worker']}{gpu}: {row['cause']}. "
        f"Lost {_count(row['lost'], 'result')} ({size(row['nbytes'])}); "
        f"to be whole again {loaded} came back from the store and {again} ran again: {end}."
    )


def _count(n: int, what: str) -> str:
    return f"{n} {what}" if n == 1 else f"{n} {what}s"


def size(nbytes: int) -> str:
    """Give a number of bytes as text, in powers of 1,024."""
    step, value = 1024, float(nbytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < step:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= step
    return f"{value:.1f} TiB"
