"""Run many seeds: ``python -m tests.fuzz --runs 2000``."""

from __future__ import annotations

import argparse
import faulthandler
import gc
import json
import logging
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import distributed

from tests.fuzz.case import random_case
from tests.fuzz.log import LOGGERS
from tests.fuzz.mutations import MUTATIONS
from tests.fuzz.run import run_case
from tests.fuzz.shrink import shrink

CHUNK = 100
"""Runs of one process: Dask keeps every scheduler and worker that ever was in a process, 1.8 MB a run, and looking for
garbage among them takes longer and longer."""


def main(argv: list[str] | None = None) -> int:
    """Run, print a table, and give the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0, help="the first one")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no run after that")
    parser.add_argument("--shrink", action="store_true", help="shrink the failing seeds and print them as cases")
    parser.add_argument("--json", type=Path, help="write the figures there")
    parser.add_argument("--stop", action="store_true", help="stop at the first failing seed")
    parser.add_argument("--without", choices=MUTATIONS, help="switch a rule off: failures are wanted then")
    args = parser.parse_args(argv)
    faulthandler.enable()
    for name in LOGGERS:
        logger = logging.getLogger(name)
        logger.propagate = False
        logger.handlers.clear()  # what they say is judged, and not printed
    if args.runs > CHUNK:
        figures = chunks(args)
    elif args.without:
        with MUTATIONS[args.without]():
            figures = many(args)
    else:
        figures = many(args)
    if args.json is None or args.runs > CHUNK:
        print(table(figures))  # noqa: T201
    if args.json is not None:
        args.json.write_text(json.dumps(figures, indent=1))
    return 1 if figures["bad"] else 0


def many(args: argparse.Namespace) -> dict[str, Any]:
    """Run the seeds and give the figures."""
    begin = time.monotonic()
    faults, endings, failures = Counter[str](), Counter[str](), Counter[str]()
    runs = bad = functions = loads = 0
    for seed in range(args.seed, args.seed + args.runs):
        if time.monotonic() - begin > args.seconds:
            break
        outcome = run_case(random_case(seed))
        if not seed % 10:
            gc.collect()
        runs += 1
        faults += outcome.faults
        endings += outcome.endings
        functions += outcome.runs
        loads += outcome.loads
        if outcome.problems:
            bad += 1
            failures.update(outcome.kinds)
            print(f"seed {seed}, {outcome.seconds:.1f} s", *outcome.problems, sep="\n    ", flush=True)  # noqa: T201
            if args.shrink:
                print(shrink(random_case(seed), outcome.kinds), flush=True)  # noqa: T201
            if args.stop:
                break
    return {
        "distributed": distributed.__version__,
        "python": sys.version.split()[0],
        "without": args.without,
        "first seed": args.seed,
        "runs": runs,
        "bad": bad,
        "failures": dict(failures.most_common()),
        "functions": functions,
        "loads": loads,
        "endings": dict(endings.most_common()),
        "faults": dict(faults.most_common()),
        "seconds": round(time.monotonic() - begin, 1),
    }


def chunks(args: argparse.Namespace) -> dict[str, Any]:
    """Run the seeds, some at a time in a process of their own, and give the figures of all."""
    begin = time.monotonic()
    total: dict[str, Any] = {}
    for first in range(args.seed, args.seed + args.runs, CHUNK):
        left = args.seconds - (time.monotonic() - begin)
        if left <= 0 or (args.stop and total.get("bad")):
            break
        runs = min(CHUNK, args.seed + args.runs - first)
        with tempfile.TemporaryDirectory() as directory:
            file = Path(directory) / "figures.json"
            command = [sys.executable, "-m", "tests.fuzz", f"--runs={runs}", f"--seed={first}", f"--json={file}"]
            command += [f"--{name}" for name in ("shrink", "stop") if getattr(args, name)]
            command += [f"--seconds={left}"] + ([f"--without={args.without}"] if args.without else [])
            subprocess.run(command, check=False)
            add(total, json.loads(file.read_text()))
        print(f"{total['runs']} runs, {total['bad']} bad", file=sys.stderr, flush=True)  # noqa: T201
    return {**total, "first seed": args.seed, "seconds": round(time.monotonic() - begin, 1)}


def add(total: dict[str, Any], figures: dict[str, Any]) -> None:
    """Add figures to others: numbers and counts are summed, texts stay."""
    for name, value in figures.items():
        if isinstance(value, dict):
            total[name] = dict((Counter(total.get(name, {})) + Counter(value)).most_common())
        elif isinstance(value, int | float):
            total[name] = total.get(name, 0) + value
        else:
            total.setdefault(name, value)


def table(figures: dict[str, Any]) -> str:
    """Give the figures as lines."""
    lines = []
    for name, value in figures.items():
        text = ", ".join(f"{k} {v}" for k, v in value.items()) or "-" if isinstance(value, dict) else value
        lines.append(f"{name:12} {text}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
