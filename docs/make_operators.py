# ruff: noqa: INP001 - a script beside the page that it writes
"""Writes ``docs/operators.md``: every signal, rule, action, threshold and setting, from the tables that the code uses.

Run it after a change of a table: ``python docs/make_operators.py``. A test fails while the page is not what this gives.
"""

from __future__ import annotations

import ast
import inspect
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
from dask_resilient.core.xid import TABLE as XIDS

PAGE = Path(__file__).with_name("operators.md")

HEAD = """<!-- Written by docs/make_operators.py from the tables of the code: change those, then run it. -->
# For operators: every signal, rule, action, threshold and setting

What is read of a device becomes a verdict by rules ([health](health.md)); a verdict becomes a phase of the device and
actions on its workers ([quarantine](quarantine.md)). This page is made from the tables that the code itself uses.
"""

RULES = """In the order of authority: of rules that ask for the same, the first names the verdict. What a class comes to
stands above: `kill`, `drain` and `evict` are events of the same name, `observe` and `degrade` take nothing out of
service, and where a rule only doubts, a device that does not answer is `suspect`. Trouble with links is no more than
`degrade` where the cluster's protocol is not UCX's."""

ROWS = {
    "recovery-action": "[of its value](#nvidias-recovery-action)",
    "xid": "[of its number](#xids)",
    "cuda": "[of its code](#errors-of-cuda)",
    "stated": "the one that the probe states",
    "event": "[of its kind](#events-of-nvml)",
    "fabric": "degrade, drain",
}
"""What rules ask for whose rows stand in a table of their own."""

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
    yield from _table(("rule", "what it judges", "class", "thresholds", "source"), map(_rule, rules.RULES))
    yield from _section("Signals", "The readings that rules understand; probes of your own may add others.")
    yield from _table(("reading", "what it is"), _members(readings.Name))
    yield from _section("XIDs", "A number without a row is a DRAIN, as an unknown one; a file of yours changes rows.")
    yield from _table(
        ("XID", "name", "meaning", "class", "of another process", "repeated", "suspect"),
        (_xid(XIDS[n]) for n in sorted(XIDS)),
    )
    yield from _section("Errors of CUDA", "Found by their name or code in the text of a task's error.")
    yield from _table(
        ("code", "name", "class", "sticky", "suspect"),
        ((r.code, r.name, r.cls, "yes" if r.sticky else "no", r.suspect) for r in CUDA.values()),
    )
    yield from _section("NVIDIA's recovery action", "NVML field 230.")
    yield from _table(("value", "what the driver wants", "class"), ((n, *row) for n, row in nvml.RECOVERY.items()))
    yield from _section("Events of NVML", "Beside XIDs.")
    yield from _table(("event", "meaning", "class"), ((hex(n), *row) for n, row in nvml.EVENTS.items()))
    yield from _section("Thresholds of verdicts", "Times in seconds.")
    yield from _table(("threshold", "value", "what it is"), _fields(limits, limits.Limits))
    yield from _section("Thresholds of actions", "Times in seconds.")
    yield from _table(("threshold", "value", "what it is"), [*_fields(phases, phases.Times), *_constants(ACTIONS)])
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


def _xid(row: Any) -> tuple[object, ...]:
    return row.code, row.name, row.meaning, row.cls, row.other, row.repeat or "-", row.suspect


def _rule(rule: rules.Rule) -> tuple[str, ...]:
    names, classes = _used(rule.judge)
    known = {field.name: field.default for field in fields(limits.Limits)}
    bounds = [f"{n.replace('_', ' ')} {known[n]}" for n in names if isinstance(known.get(n), int | float)]
    tables = [f"{n.replace('_', ' ').lower()} {_plain(getattr(limits, n))}" for n in names if n.isupper()]
    asks = ROWS.get(rule.name) or ", ".join(classes)
    return rule.name, _words(inspect.getdoc(rule.judge)), asks, "; ".join(bounds + tables) or "-", rule.source


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
            what = {"OF_TASK": "free retries of a task", "OF_LABEL": "free retries of a prefix and code"}.get(
                name, name
            )
            yield what.lower(), getattr(module, name), said[name]


def _docstrings(module: ModuleType | None, name: str | None) -> Mapping[str, str]:
    """Give the sentences that stand below the names of a class, or of a module."""
    assert module is not None
    body: list[ast.stmt] = ast.parse(inspect.getsource(module)).body
    if name is not None:
        body = next(node.body for node in body if isinstance(node, ast.ClassDef) and node.name == name)
    found, last = {}, ""
    for node in body:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            if last:
                found[last] = _words(node.value.value)
            last = ""
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            last = node.target.id
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            last = node.targets[0].id
        else:
            last = ""
    return found


if __name__ == "__main__":
    main()
