"""Run many seeds: ``python -m tests.fuzz --runs 2000``."""

from __future__ import annotations

import argparse
import faulthandler
import gc
import json
import logging
import sys
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
    if args.without:
        with MUTATIONS[args.without]():
            figures = many(args)
    else:
        figures = many(args)
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
        if not runs % 100:
            print(f"{runs} runs, {bad} bad", file=sys.stderr, flush=True)  # noqa: T201
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


def table(figures: dict[str, Any]) -> str:
    """Give the figures as lines."""
    lines = []
    for name, value in figures.items():
        text = ", ".join(f"{k} {v}" for k, v in value.items()) or "-" if isinstance(value, dict) else value
        lines.append(f"{name:12} {text}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
