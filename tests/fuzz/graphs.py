"""Random graphs: chains, layers, trees, shuffles, diamonds, several outputs over shared ancestors; 8 to 170 tasks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from random import Random

Spec = Mapping[str, Sequence[str]]
"""Which keys each key is computed from."""


def chains(rng: Random) -> dict[str, list[str]]:
    """Chains side by side, and one task over their ends."""
    n, depth = rng.randint(4, 12), rng.randint(2, 8)
    spec = {f"c{j}-{i}": [f"c{j - 1}-{i}"] if j else [] for i in range(n) for j in range(depth)}
    return {**spec, "sum-0": [f"c{depth - 1}-{i}" for i in range(n)]}


def layers(rng: Random) -> dict[str, list[str]]:
    """Layers whose tasks need one to three of the layer before."""
    width, depth = rng.randint(4, 20), rng.randint(2, 8)
    spec: dict[str, list[str]] = {f"l0-{i}": [] for i in range(width)}
    for j in range(1, depth):
        before = [f"l{j - 1}-{i}" for i in range(width)]
        spec.update({f"l{j}-{i}": rng.sample(before, rng.randint(1, 3)) for i in range(width)})
    return spec


def tree(rng: Random) -> dict[str, list[str]]:
    """A reduction, two by two."""
    level, now = 0, [f"t0-{i}" for i in range(rng.choice([8, 16, 32]))]
    spec: dict[str, list[str]] = {key: [] for key in now}
    while len(now) > 1:
        level += 1
        pairs = {f"t{level}-{i // 2}": now[i : i + 2] for i in range(0, len(now), 2)}
        spec.update(pairs)
        now = list(pairs)
    return spec


def shuffle(rng: Random) -> dict[str, list[str]]:
    """Sources that are split, every part of each joined with those of the others."""
    n = rng.randint(3, 10)
    spec: dict[str, list[str]] = {f"src-{i}": [] for i in range(n)}
    spec.update({f"split-{i * n + j}": [f"src-{i}"] for i in range(n) for j in range(n)})
    spec.update({f"join-{j}": [f"split-{i * n + j}" for i in range(n)] for j in range(n)})
    spec.update({f"post-{j}": [f"join-{j}"] for j in range(n)})
    return spec


def diamonds(rng: Random) -> dict[str, list[str]]:
    """Diamonds on top of each other."""
    spec: dict[str, list[str]] = {"d-0": []}
    for i in range(rng.randint(3, 12)):
        middle = [f"m{j}-{i}" for j in range(rng.randint(2, 4))]
        spec.update({key: [f"d-{i}"] for key in middle})
        spec[f"d-{i + 1}"] = middle
    return spec


def outputs(rng: Random) -> dict[str, list[str]]:
    """One ancestor of everything, several outputs."""
    n = rng.randint(5, 40)
    spec: dict[str, list[str]] = {"a-0": [], **{f"b-{i}": ["a-0"] for i in range(4)}}
    spec.update({f"m-{i}": [f"b-{j}" for j in sorted(rng.sample(range(4), 2))] for i in range(n)})
    spec.update({f"o-{i}": [f"m-{j}" for j in rng.sample(range(n), 5)] for i in range(5)})
    return spec


KINDS = (chains, layers, tree, shuffle, diamonds, outputs)


def random_graph(rng: Random) -> dict[str, list[str]]:
    """Give a graph of a random kind; keys come behind all that they are computed from."""
    return rng.choice(KINDS)(rng)


def sinks(spec: Spec) -> list[str]:
    """Give the keys that nothing is computed from."""
    needed = {dep for deps in spec.values() for dep in deps}
    return [key for key in spec if key not in needed]


def without(spec: Spec, gone: Iterable[str]) -> dict[str, list[str]]:
    """Give a graph without some keys; what was computed from them does without."""
    gone = set(gone)
    return {key: [dep for dep in deps if dep not in gone] for key, deps in spec.items() if key not in gone}
