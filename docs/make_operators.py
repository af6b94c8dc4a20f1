# ruff: noqa: INP001 - a script beside the page that it writes
"""Writes ``docs/operators.md``: every signal, rule, action, threshold and setting, from the tables that the code uses.

Run it after a change of a table: ``python docs/make_operators.py``. A test fails while the page is not what this gives.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from types import ModuleType
from typing import Any

from dask_resilient.config import DEFAULTS
from dask_resilient.core import (
    actions,
    allocations,
    attribution,
    breaker,
    limits,
    nvml,
    phases,
    readings,
    retries,
    rules,
)
from dask_resilient.core.cuda_errors import TABLE as CUDA
from dask_resilient.core.faults import Class
from dask_resilient.core.fixes import Fix
from dask_resilient.core.reasons import REASONS
from dask_resilient.core.xid import TABLE as XIDS

PAGE = Path(__file__).with_name("operators.md")

HEAD = """<!-- Written by docs/make_operators.py from the tables of the code: change those, then run it. -->
# For operators: every signal, rule, action, threshold and setting

What is read of a device becomes a verdict by rules ([health](health.md)); a verdict becomes a phase of the device and
actions on its workers ([quarantine](quarantine.md)). This page is made from the tables that the code itself uses.

## What do I do now

Connect to the cluster from an environment with the same package, and look:

<!-- not run: needs a cluster that runs -->
```python
from distributed import Client

import dask_resilient as dr

client = Client("tcp://scheduler:8786")  # or Client(scheduler_file="scheduler.json")
res = dr.connect(client)  # not in a `with` block: leaving one uninstalls the plugin
print(res.report())  # what is wrong, what is out of service, what was decided
for row in res.devices():  # every device that has a worker or is out of service
    print(row["device"], row["host"], row["phase"], row["rule"], row["evidence"], row["until_released"])
for row in res.incidents()[-20:]:  # what was lost (kind loss), decided (decision), or not done (declined)
    print(row["kind"], row["device"], row["cause"])
```

A GPU is named by its UUID, as `nvidia-smi -L` shows it on its host. Find the device in the report, and its phase here:
"""

BACK = """### To bring a device back, or to keep it out

1. Find its rule under [Rules](#rules) and do what stands there under "to do"; [the words](#to-do) are explained
   below. `xid.79` is row 79 of the table of XIDs, `cuda.700` row 700 of the errors of CUDA, `recovery-action.1` and
   `nvml.15` the same of theirs. A name that is no rule is explained under [Other names](#other-names).
2. `res.release(device, "GPU reset")` puts it back into service, whatever took it out. What it reported before that is
   held against it no more; without a release its XIDs count for another ten minutes, and then a canary decides, or
   nobody if `until_released` is true.
3. Start a worker on it: a release starts none, and the old one was closed with its nanny. A job manager that restarts
   what ends does so by itself. On a `LocalCUDACluster`, `cluster.scale(n)` starts it, but only after
   `distributed.deploy.lost-worker-timeout` (15 s), counted from when the old worker left. It may be started before
   the release: it waits without tasks.

`res.quarantine(device, "ticket 4711")` keeps it out: from then on only `res.release(device)` brings it back. A GPU is
remembered in the store (or under `resilience.quarantine.path`), so that goes for later runs on the same store, too."""

SITUATIONS = {
    "NO WORKER IS IN SERVICE, or no worker is connected": (
        "The run waits.",
        "Start workers on devices that are well, or release one.",
    ),
    "UNHEALTHY, and its phase is `active`": (
        (
            "Nothing, and its last rows say why: they are of kind `declined` (the breaker, `observe` mode, the last "
            "device), or it was released in spite of it, or tasks are to blame."
        ),
        "Decide: `res.quarantine(device, reason)`, or leave it. The breaker does not bind you.",
    ),
    "a row of kind `declined`": (
        "Nothing was done, for the reason that it gives; it is done later, once it may be.",
        "The same.",
    ),
    "rule `culprit`, or events `task-fault` whose `suspect` is `task`": (
        "The errors go to the user, as in plain Dask. No device is left for them; a process is tried.",
        'Nothing with the GPUs: tell the owner of the job. `client.get_events("resilience")` has the texts.',
    ),
    "a row of kind `loss`": ("What is needed comes back from the store, or is computed again.", "Nothing."),
    "Quarantine only observes, or is switched off": (
        (
            "Observing (`resilience.quarantine.observe`), nothing is done but what an operator asks for. Switched off "
            "(`resilience.quarantine.enabled: false`), nothing at all."
        ),
        "Observing: `res.quarantine(device, reason)` takes a device out. Switched off: close the worker.",
    ),
    "NOT PROTECTED, or UNPROTECTED worker": (
        "The run goes on; what is computed there is not saved.",
        "Mend what the line gives as the reason. It is no fault of a device.",
    ),
}
"""What else an operator may see: what is done by itself, and what is left to a human."""

PHASES = {
    "active": (
        "It gets tasks. `degraded` only names a trouble.",
        "Nothing tonight. Where it is degraded: what its rule says, by day.",
    ),
    "suspect": (
        "It gets no tasks. Once it answers it is active again; hung for 45 s, with two probes ended, it is evicted.",
        "Wait two minutes. If it comes again and again, look at the host.",
    ),
    "draining": (
        (
            "What only it holds is moved or saved, for `resilience.quarantine.drain` (60 s) at most. Then its worker "
            "is closed."
        ),
        "Wait; then as for `quarantined`.",
    ),
    "quarantined": (
        (
            "It gets no tasks; its worker was closed with its nanny. It comes back, a minute later at the earliest "
            "(5 s without a GPU), when a new process finds nothing wrong and a canary computes right; never so if "
            "`until_released` is true."
        ),
        (
            'What its rule says under "to do". Then bring it back or keep it out, [see below]'
            "(#to-bring-a-device-back-or-to-keep-it-out)."
        ),
    ),
    "probation": (
        (
            "The nanny replaces its process, and the new one gets tasks after a canary: the first at once, later ones "
            "after 5, 20 and 60 s. Three failures in a day, and it is quarantined."
        ),
        "Wait two minutes. If it has no worker then, start one. If it comes again and again, look at the job.",
    ),
}
"""By phase, what is done by itself and what is left to a human."""

CLASSES = {
    "observe": ("nothing", "nothing"),
    "degrade": ("nothing", "by day, what the rule says"),
    "kill": (
        "The process is replaced: `probation`. Without a nanny the device is left, as for `evict`.",
        "nothing, or look at the job if it comes again and again",
    ),
    "drain": ("What it holds is moved or saved, then it is left: `draining`, `quarantined`.", "what the rule says"),
    "evict": (
        "It is left at once: `quarantined`. What it held comes back from the store, or is computed again.",
        "what the rule says",
    ),
}
"""By class, what is done by itself and what is left to a human."""

WORDS = {
    "device": "A GPU, by its UUID; or a worker without a GPU of its own, as `host:<hostname>/<worker name>`.",
    "class": "What a fault asks for. There are five, see [Classes](#classes).",
    "rule": "What makes a class of readings; behind a point stands the row of its table, as in `xid.79`.",
    "fact": "A verdict after which working on is impossible or gives wrong numbers. It is acted on whatever it costs.",
    "judgement": "Any other verdict: it may be wrong, so the breaker may hold it back. As a source of a threshold or a "
    "class it means that no tool or document says so, but we do.",
    "breaker": "It holds judgements back that would take the last device in service, or more than half of them within "
    "five minutes. Facts and operators pass.",
    "doubt": "No class: the device cannot be judged for the time being, and its health is unknown. Only `silence` and "
    "`work.stale-metrics` make it suspect, and not on a host that is overloaded.",
    "suspect": "As a phase: no tasks until it is known whether the device is sick. As a column: who is blamed first "
    "for an error, until the same task has been tried on other devices.",
    "sticky": "After this error every later call of CUDA in the process fails as well, so nothing in it can be read.",
    "strike": "A process that failed on a device, if not for tasks that are to blame. Three in a day cost the device "
    "its service.",
    "baseline": "Where a counter stood when the plugin first saw the device, or when it was reset since. What it has "
    "risen by counts, not its value.",
    "canary": "A product of small integers and a pattern in memory, computed on the device: right, wrong, or not run.",
    "sign": "A new process says that nothing is wrong; of a GPU also that the driver wants nothing done (recovery "
    "action 0).",
    "consequence": "An XID that follows from something else. Beside another XID it is never the primary cause, which "
    "names the verdict; its class counts all the same.",
    "links": "NVLink. The cluster uses them where its protocol is one of UCX (`ucx`, `ucxx`); elsewhere trouble with "
    "them asks for `degrade` at most.",
    "observe": "As a class: noted, no more. As a setting, `resilience.quarantine.observe`: nothing is done but what an "
    "operator asks for.",
    "drain": "As a class, an event, a thing done, an action, a threshold and a setting always the same: what only this "
    "device holds is moved or saved before it is left.",
}
"""Words of this page."""

RULES = """In the order of authority: of rules that ask for the same, the first names the verdict. What a class comes
to stands above: `kill`, `drain` and `evict` are events of the same name, `observe` and `degrade` take nothing out of
service. Names in the column "class" that are not classes are thresholds of the same row; the thresholds themselves
are explained [below](#thresholds-of-verdicts)."""

XID = """The column "class" counts

- for `kill` only where the kernel log says that the XID names this process, or where nothing says whom it names and an
  error of CUDA cost this process its context within 5 s. In all other cases (it names another process, or none, or
  the kernel log cannot be read, as in a container) the column "else" counts;
- for all other classes whichever process is named.

"repeated" is the class from the second incident in a day on, where the first suspect is not the task and a `kill`
names this process. "Fatal" is the class where the line of the kernel log says "Fatal". Rows marked "links" ask for
more than `degrade` only where the cluster uses links, which is where its protocol is one of UCX; also in the column
"Fatal". Rows marked "consequence" are never the primary cause beside another XID. XIDs of one device with no more
than 5 s between them are one incident.

- 154 takes the class of the [recovery action](#nvidias-recovery-action) that its line names; `observe` is for a line
  that names none, or that cannot be read.
- 48, 171 and 172 ask for `degrade` where a 94 with them names another process: the error was contained there.
- A number without a row is a `drain`, to do: open a ticket. [A file of yours](health.md#which-rule) changes rows.

"To do" is NVIDIA's immediate action. What the catalogue adds: 159 wants a reset only where unified memory or vGPU is
used, else nothing; after 163, see to the heat; after 164 and 165 the GPU has to be replaced only if power smoothing
is wanted; 168 comes where ECC is switched off: switch it on, or boot again; 166 and 170 come only with confidential
computing."""

CUDA_TEXT = """Found by their name or code in the text of a task's error. On a worker with a GPU of its own the
class is what is asked for; where tasks are known to be to blame, a canary first says whether the process is sound.
On a worker without one the text is all there is: the first `kill` or `evict` in a day costs a canary; from the
second on what the process holds is moved (5 s), then it is replaced, or its device left where it has no nanny. Where
tasks are to blame there, or others of their kind succeed in the same process, nothing is done. An error of which
NCCL or UCX tells asks for `kill` at most."""

ANSWERS = """What calls of NVML return. Where only one question gets such an answer, only that reading is unknown, and
nothing follows from it. Where the device itself cannot be asked any more, the rule `nvml` takes it as it stands."""

RECOVERY = """NVML field 230. Action 3 asks for `drain` only where the cluster uses links, which is where its protocol
is one of UCX; elsewhere for `degrade`. A number that is not here asks for `drain`."""

ROWS = {
    "recovery-action": "[of its value](#nvidias-recovery-action)",
    "xid": "[of its number](#xids)",
    "nvml": "[of its number](#answers-of-nvml)",
    "cuda": "[of its code](#errors-of-cuda)",
    "stated": "the one that the probe states",
    "event": "[of its kind](#events-of-nvml)",
}
"""What rules ask for whose rows stand in a table of their own."""

FIXES = {"stated": "what its maker says"}

VERDICTS = {
    "dask_resilient.core.xid": ("COALESCE",),
    "dask_resilient.core.stragglers": (
        *("LEAST_TASKS", "LEAST_SECONDS", "HANG_SECONDS"),
        *("STALE_SECONDS", "STALE_BEATS", "ANSWER_SECONDS", "ANSWER_BEATS"),
    ),
    "dask_resilient.scheduler.work": ("ALARM", "ALARM_SECONDS"),
}
LATER = {"dask_resilient.scheduler.keeper": ("SILENT",), "dask_resilient.scheduler.members": ("HOLD_SECONDS",)}
"""More thresholds of verdicts and of actions, by the name of the module."""

NAMED = {
    "OF_TASK": "free retries of a task",
    "OF_LABEL": "free retries of a prefix and code",
    "ALARM": "hang alarm",
    "ALARM_SECONDS": "hang alarm seconds",
    "HOLD_SECONDS": "hold",
}
SAID = {
    "ALARM_SECONDS": "Seconds that such a task must have run as well.",
    "HOLD_SECONDS": " With `admission: strict`, also until it is told that a worker without our side gets no tasks.",
}
"""What constants are called here, and what is said of them beside their own words."""

ACTIONS = {breaker: ("WINDOW", "SHARE")}
BLAME = {retries: ("OF_TASK", "OF_LABEL"), allocations: ("ALLOCATIONS",)}
"""Thresholds that are constants, by module."""


def main() -> None:
    """Write the page."""
    PAGE.write_text(page())


def page() -> str:
    """Give the page."""
    return "\n".join(_page()) + "\n"


def _page() -> Iterator[str]:  # noqa: PLR0915 - one section after the other
    yield HEAD
    yield from _table(("phase", "what is done by itself", "what you do"), _whole(PHASES, actions.Phase))
    yield from ("", "What else the report or the rows may show:", "")
    yield from _table(("what you see", "what is done by itself", "what you do"), _cells(SITUATIONS))
    yield from ("", "By what is asked for, the `class` in `res.workers()`:", "")
    yield from _table(("class", "what is done by itself", "what you do"), _whole(CLASSES, Class))
    yield from ("", BACK)
    yield from _section("To do", 'What the words in the columns "to do" mean. Nothing of it is done by itself.')
    yield from _table(("to do", "what it means"), _members(Fix))
    yield from _section("Words", "What is meant by some words of this page.")
    yield from _table(("word", "what it means"), WORDS.items())
    yield from _section("Classes", "What a fault asks for, the mildest first.")
    yield from _table(("class", "what it asks for"), _members(Class))
    yield from _section("Phases", "Where a device stands.")
    yield from _table(("phase", "what it means"), _members(actions.Phase))
    yield from _section("From phase to phase", "An event that stands nowhere for a phase changes nothing in it.")
    rows = ((before, ask, after, ", ".join(does) or "-") for (before, ask), (after, does) in phases.TABLE.items())
    yield from _table(("phase", "event", "phase after", "what is done to its workers"), rows)
    yield from _section("Events", "What a device or its workers come to.")
    yield from _table(("event", "what it means"), _members(phases.Ask))
    yield from _section("What is done", "To the workers of a device.")
    yield from _table(("word", "what it means"), _members(phases.Do))
    yield from _section("Actions", "Each is about one worker.")
    kinds = (actions.Avoid, actions.Admit, actions.Drain, actions.Evict, actions.Restart, actions.RunCanary)
    yield from _table(("action", "what it does"), ((k.__name__, _words(inspect.getdoc(k))) for k in kinds))
    yield from _section(
        "Facts", "Verdicts that are enacted whatever they cost; so is every process that is dead for CUDA."
    )
    yield from _table(("rule", "the fact"), breaker.FACTS.items())
    yield from _section("Rules", RULES)
    yield from _table(("rule", "what it judges", "class", "thresholds", "to do", "source"), map(_rule, rules.RULES))
    yield from _section("Other names", "They stand where a rule stands, in rows, the report and the log.")
    yield from _table(("name", "what it means"), REASONS.items())
    yield from _section("Signals", "The readings that rules understand; probes of your own may add others.")
    yield from _table(("reading", "what it is"), _members(readings.Name))
    yield from _section("XIDs", XID)
    yield from _table(
        ("XID", "name", "meaning", "class", "else", "repeated", "Fatal", "mark", "suspect", "to do"),
        (_xid(XIDS[n]) for n in sorted(XIDS)),
    )
    yield from _section("Errors of CUDA", CUDA_TEXT)
    yield from _table(
        ("code", "name", "class", "sticky", "suspect", "to do"),
        ((r.code, r.name, r.cls, "yes" if r.sticky else "no", r.suspect, r.fix) for r in CUDA.values()),
    )
    yield from _section("NVIDIA's recovery action", RECOVERY)
    yield from _table(
        ("value", "what the driver wants", "class", "to do"), ((n, *row) for n, row in nvml.RECOVERY.items())
    )
    yield from _section("Answers of NVML", ANSWERS)
    yield from _table(("number", "meaning", "class", "to do"), sorted(_answers()))
    yield from _section("Events of NVML", "Beside XIDs.")
    yield from _table(("event", "meaning", "class", "to do"), ((hex(n), *row) for n, row in nvml.EVENTS.items()))
    yield from _section("Thresholds of verdicts", "Times in seconds.")
    yield from _table(
        ("threshold", "value", "what it is"), [*_fields(limits, limits.Limits), *_constants(_modules(VERDICTS))]
    )
    yield from _section("Thresholds of actions", "Times in seconds.")
    yield from _table(
        ("threshold", "value", "what it is"),
        [*_fields(phases, phases.Times), *_constants(ACTIONS), *_constants(_modules(LATER))],
    )
    yield from _section("Thresholds of blame", "Who is to blame for what tasks met, and what they get for it.")
    yield from _table(
        ("threshold", "value", "what it is"), [*_fields(attribution, attribution.Sprt), *_constants(BLAME)]
    )
    yield from _section("Settings", "Under `resilience`, each explained in [the settings](reference/settings.md).")
    yield from ("```yaml", DEFAULTS.read_text().rstrip(), "```")


def _section(title: str, text: str) -> Iterator[str]:
    yield from ("", f"## {title}", "", text, "")


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterator[str]:
    yield "| " + " | ".join(head) + " |"
    yield "|" + "---|" * len(head)
    for row in rows:
        yield "| " + " | ".join(str(cell).replace("|", "\\|") for cell in row) + " |"


def _cells(rows: Mapping[str, tuple[str, str]]) -> Iterator[tuple[str, ...]]:
    return ((first, *rest) for first, rest in rows.items())


def _whole(rows: Mapping[str, tuple[str, str]], kind: type) -> Iterator[tuple[str, ...]]:
    """Give the cells of a table that has one row for each member of an enumeration."""
    assert list(rows) == [str(member) for member in kind]  # type: ignore[attr-defined]
    return _cells(rows)


def _xid(row: Any) -> tuple[object, ...]:
    other = row.other if row.cls is Class.KILL else "-"
    mark = ", ".join(["links"] * row.nvlink + ["consequence"] * row.consequence)
    return (
        *(row.code, row.name, row.meaning, row.cls, other, row.repeat or "-", row.fatal or "-"),
        *(mark or "-", row.suspect, row.fix),
    )


def _answers() -> Iterator[tuple[object, ...]]:
    for number, row in nvml.LOST.items():
        yield (number, *row)
    for number, words in nvml.NVML_REASONS.items():
        yield number, words, "doubt", nvml.FIXES.get(number, Fix.UNKNOWN)


def _rule(rule: rules.Rule) -> tuple[str, ...]:
    names, classes = _used(rule.judge)
    known = {field.name: field.default for field in fields(limits.Limits)}
    bounds = [f"{n.replace('_', ' ')} {known[n]}" for n in names if isinstance(known.get(n), int | float)]
    tables = [f"{n.replace('_', ' ').lower()} {_plain(getattr(limits, n))}" for n in names if n.isupper()]
    said = {part.partition(":")[0].strip() for part in rule.asks.split(";")} - {""}
    # Some have classes in rows of their own as well.
    assert not said or said >= {*classes}, f"rule {rule.name} asks for {classes}, and says {rule.asks!r}"
    assert said or rule.name in ROWS, f"rule {rule.name} does not say which class it asks for when"
    asks = re.sub(r"(^|; )(\w+)", r"\1**\2**", rule.asks) or ROWS[rule.name]
    limit, what = "; ".join(bounds + tables) or "-", _words(inspect.getdoc(rule.judge))
    return rule.name, what, asks, limit, str(rule.fix or FIXES.get(rule.name, ROWS.get(rule.name))), rule.source


def _plain(table: Mapping[int, float]) -> str:
    return ", ".join(f"{key}: {value:g}" for key, value in table.items())


def _used(judge: Callable[..., object]) -> tuple[list[str], list[str]]:
    """Give the limits that the code of a rule names, and the classes that it asks for, the mildest first."""
    module, names, classes = inspect.getmodule(judge), dict[str, None](), set[str]()
    functions = [judge.__name__]
    for function in functions:
        for node in _asking(ast.parse(inspect.getsource(getattr(module, function)))):
            match node:
                case ast.Attribute(value=ast.Attribute(attr="limits"), attr=limit):
                    names[limit] = None
                case ast.Attribute(value=ast.Name(id="Class"), attr=cls):
                    classes.add(cls)
                case ast.Call(func=ast.Name(id="Finding"), args=[ast.Constant(value=None), *_]):
                    classes.add("")
                case ast.Tuple(elts=[ast.Attribute(value=ast.Name(id="Name")), ast.Constant(value=None)]):
                    classes.add("")
                case ast.Name(id=other):
                    names |= {other: None} if other.isupper() and hasattr(limits, other) else {}
                    functions += {other} - {*functions} if other.startswith("_") and hasattr(module, other) else []
    return list(names), [*(["doubt"] if "" in classes else []), *(str(c) for c in Class if c.name in classes)]


def _asking(node: ast.AST) -> Iterator[ast.AST]:
    """Give a node and those below it, without those that only compare what is asked for."""
    if isinstance(node, ast.Compare) and any(isinstance(op, ast.Is | ast.IsNot) for op in node.ops):
        return
    yield node
    for child in ast.iter_child_nodes(node):
        yield from _asking(child)


def _words(text: str | None) -> str:
    return " ".join((text or "").split("\n\n")[0].split())


def _members(kind: type) -> list[tuple[str, str]]:
    said = _docstrings(inspect.getmodule(kind), kind.__name__)
    return [(str(member.value), said.get(member.name, "")) for member in kind]  # type: ignore[attr-defined]


def _fields(module: ModuleType, kind: type) -> Iterator[tuple[str, object, str]]:
    said = _docstrings(module, kind.__name__)
    for field in fields(kind):
        if field.default is not MISSING:
            yield field.name.replace("_", " "), field.default, said[field.name]


def _constants(of: Mapping[ModuleType, Sequence[str]]) -> Iterator[tuple[str, object, str]]:
    for module, names in of.items():
        said = _docstrings(module, None)
        for name in names:
            words = re.sub(r"`([A-Z_]+)`", lambda found: f"`{_named(found[1])}`", said.get(name, ""))
            yield _named(name), getattr(module, name), words + SAID.get(name, "")


def _named(constant: str) -> str:
    return NAMED.get(constant, constant).replace("_", " ").lower()


def _modules(of: Mapping[str, Sequence[str]]) -> dict[ModuleType, Sequence[str]]:
    return {importlib.import_module(name): names for name, names in of.items()}


def _docstrings(module: ModuleType | None, name: str | None) -> Mapping[str, str]:
    """Give the sentences that stand below the names of a class, or of a module."""
    assert module is not None
    body: list[ast.stmt] = ast.parse(inspect.getsource(module)).body
    if name is not None:
        body = next(node.body for node in body if isinstance(node, ast.ClassDef) and node.name == name)
    found: dict[str, str] = {}
    last: list[str] = []
    for node in body:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            found |= dict.fromkeys(last, _words(node.value.value))
        last = [name.id for name in _assigned(node) if isinstance(name, ast.Name)]
    return found


def _assigned(node: ast.stmt) -> Sequence[ast.expr]:
    """Give what a statement assigns to."""
    match node:
        case ast.Assign(targets=[ast.Tuple(elts=names)]):
            return names
        case ast.Assign(targets=names):
            return names
        case ast.AnnAssign(target=name):
            return [name]
    return []


if __name__ == "__main__":
    main()
