"""One case: graph, settings and the sequence of faults; made of a seed, or written down once it was found and shrunk.

Each step has a seed of its own, so that what it chooses stays as it was when other steps are left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from random import Random

from tests.fuzz.graphs import Spec, random_graph, sinks

Step = tuple[float, str, int]
"""Seconds that pass before it, name of the fault, seed of its choices."""

FOR_EVER = 1_000_000


@dataclass(frozen=True, slots=True)
class Case:
    """What the judge and the cluster are given."""

    spec: Spec
    outputs: Sequence[str]
    steps: Sequence[Step]
    marked: Sequence[str] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)
    """How long each function takes; half of it after its value is saved."""
    errors: Mapping[str, int] = field(default_factory=dict)
    """How many times a function raises before it works."""
    retries: int = 0
    resources: Sequence[str] = ()
    """Keys that need a resource, which every worker has."""
    pinned: Sequence[str] = ()
    """Keys pinned to the first worker."""
    priorities: bool = False
    settled: bool = False
    """Whether the first graph is done and saved before the faults begin."""
    workers: int = 2
    threads: int = 1
    saturation: float = 1.1
    stealing: bool = False
    amm: bool = False
    timeout: float = 2.0
    """Seconds after which a load that hangs is given up."""

    def __repr__(self) -> str:
        """Give the literal that goes into `tests/fuzz/cases.py`."""
        lines = []
        for f in fields(self):
            value = getattr(self, f.name)
            default = f.default_factory() if callable(f.default_factory) else f.default
            if value != default or f.name in ("spec", "outputs", "steps"):
                text = (
                    "[\n" + "".join(f"        {step!r},\n" for step in value) + "    ]" if f.name == "steps" else value
                )
                lines.append(f"    {f.name}={text},\n")
        return f"case(\n{''.join(lines)})".replace("'", '"').replace("inf,", 'float("inf"),')


case = Case


LOUD = (
    *(["kill"] * 3 + ["kill loader"] * 3 + ["damage"] * 3 + ["second graph"] * 2),
    *("kill two", "kill twice running", "racing close", "retire", "pause", "amm", "replicate", "release", "cancel"),
    *("resubmit", "steal", "hold writes", "commit then kill", "store away", "store hangs", "store fails to write"),
    *(
        "load raises",
        "odd error",
        "drop",
        "other function",
        "overtake",
        "newcomer",
        "bare newcomer",
        "restart",
        "nothing",
    ),
    *("exact graph", "exact loss", "exact loss", "let go while loading", "break"),
    *("uninstall", "unregister", "register twice", "register over", "reinstall"),
)
"""Faults of even seeds."""

QUIET = (
    *(["second graph"] * 6 + ["commit then kill"] * 5 + ["release"] * 2 + ["hold writes"] * 2),
    *("nothing", "kill", "resubmit", "damage", "drop", "other function", "overtake", "let go while loading", "break"),
    *(["exact graph"] * 2 + ["exact loss"] * 2),
)
"""Faults of odd seeds: few, but many new graphs on keys released long ago, and copies that turn up while a task runs.

Random faults alone found few bugs.
"""

LEAVING = frozenset({"uninstall", "unregister", "register over", "restart"})
"""Faults that end most of what there is to see, so they are rare."""


def random_case(seed: int) -> Case:
    """Make the case of a seed."""
    rng = Random(seed)
    quiet = bool(seed % 2)
    spec = random_graph(rng)
    keys = list(spec)
    ends = sinks(spec)
    outputs = rng.sample(ends, min(len(ends), 3)) + rng.sample(keys, rng.randint(1, max(1, min(16, len(keys) // 3))))
    errors = {}
    if rng.random() < 0.15:
        errors = dict.fromkeys(rng.sample(keys, 2), FOR_EVER)
    retries = 3 if rng.random() < 0.2 else 0
    if retries:
        errors = {**{key: rng.randint(1, 2) for key in rng.sample(keys, min(4, len(keys)))}, **errors}
    slow = rng.choice([0.0, 0.002, 0.01])
    resources = rng.sample(keys, len(keys) // 2) if rng.random() < 0.2 else []
    marked = rng.sample(keys, int(len(keys) * rng.choice([0.3, 0.6, 1])))
    return Case(
        spec=spec,
        outputs=list(dict.fromkeys(outputs)),
        steps=[_step(rng, quiet) for _ in range(rng.randint(3, 10) if quiet else rng.randint(2, 12))],
        marked=marked,
        seconds={key: rng.choice([0.001, 0.004, 0.01, slow]) for key in keys if slow and rng.random() < 0.7},
        errors=errors,
        retries=retries,
        resources=resources,
        pinned=rng.sample(marked, min(len(marked), 3)) if rng.random() < 0.15 else [],
        priorities=rng.random() < 0.3,
        settled=rng.random() < 0.6,
        workers=rng.randint(2, 4),
        threads=rng.choice([1, 1, 2]),
        saturation=rng.choice([1.1, 1.0, float("inf")]),
        stealing=rng.random() < 0.6,
        amm=rng.random() < 0.3,
        timeout=rng.choice([0.1, 2.0]),
    )


def _step(rng: Random, quiet: bool) -> Step:
    name = rng.choice(QUIET if quiet else LOUD)
    if name in LEAVING and rng.random() < 0.5:
        name = "kill"
    wait = rng.choice([0.01, 0.05, 0.1] if quiet else [0, 0, 0.002, 0.005, 0.01, 0.03, 0.06])
    return wait, name, rng.randrange(1_000_000)
