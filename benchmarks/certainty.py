"""Runs the random problems of tests/solve/many.py: counts answers by rung and by kind of proof, and lists wrong ones.

python -m benchmarks certainty [--problems 2000] [--first 0]
python -m benchmarks certainty --policies [--problems 10000] [--first 0] [--log FILE]    tests/policies/many.py
python -m benchmarks certainty --wide [--problems 10000] [--first 0] [--log FILE]        tests/policies/wide.py
python -m benchmarks certainty --together [--problems 10000] [--first 0] [--log FILE]    the same, all inputs at once
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from benchmarks import certainty_of_policies
from gavelpy.solve.solver import Solver
from tests.policies.many import PROBLEMS as OF_POLICIES
from tests.policies.many import judged as judged_policy
from tests.policies.wide import judged_together, judged_wide
from tests.solve.many import PROBLEMS, WAYS, Verdict, judged, sizes_of


def run(arguments: Sequence[str] = ()) -> None:
    """Prints, for each way to choose a rung, two tables and a line for every problem without a right answer."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks certainty", description=__doc__)
    parser.add_argument(
        "--problems", type=int, default=0, help=f"how many (default: {PROBLEMS:,}, of policies {OF_POLICIES:,})"
    )
    parser.add_argument("--policies", action="store_true", help="problems of all policies instead of all rungs")
    parser.add_argument("--wide", action="store_true", help="problems of all policies, with sizes and resources")
    parser.add_argument("--together", action="store_true", help="of optimising policies, with all that they use")
    parser.add_argument(
        "--log", type=Path, help="of policies: verdicts go to this file, and those in it are not repeated"
    )
    parser.add_argument("--first", type=int, default=0, help="number of the first (default: 0)")
    options = parser.parse_args(arguments)
    if options.policies or options.wide or options.together:
        judge = judged_together if options.together else judged_wide if options.wide else judged_policy
        certainty_of_policies.run(options.first, options.problems or OF_POLICIES, options.log, judge)
        return
    options.problems = options.problems or PROBLEMS
    for name in WAYS:
        solver, began_s, verdicts = Solver(), time.perf_counter(), []
        with sizes_of(name):
            for seed in range(options.first, options.first + options.problems):
                if seed % 100 == 0:
                    print(f"{name}: {seed:,}", file=sys.stderr)
                verdicts.append(judged(seed, solver))
        took_s = time.perf_counter() - began_s
        print(f"{options.problems:,} problems from number {options.first}, {name}, {took_s:.0f} s with checks")
        _table("answered by", Counter((v.kind, v.path.split(" x ")[0]) for v in verdicts))  # without the rounds
        _table("right by", Counter((v.kind, v.by or "NOT RIGHT") for v in verdicts))
        worst = max((v.gap for v in verdicts if v.by), default=0.0)
        falls = ", ".join(f"{rung} {count}" for rung, count in sorted(solver.falls.items())) or "none"
        print(f"largest gap {worst:.1e}; falls by rung: {falls}; not right: {sum(not v.by for v in verdicts)}")
        for wrong in (v for v in verdicts if not v.by):
            print(f"  {_told(wrong)}")


def _table(title: str, counts: Counter[tuple[str, str]]) -> None:
    """Prints counts with kinds of objectives as rows and outcomes as columns."""
    columns = sorted({column for _, column in counts})
    widths = [max(len(column), 6) for column in columns]
    print(f"{title:21} " + "  ".join(f"{c:>{w}}" for c, w in zip(columns, widths, strict=True)))
    for kind in [*sorted({kind for kind, _ in counts}), "all"]:
        found = (sum(n for (k, c), n in counts.items() if c == column and kind in (k, "all")) for column in columns)
        print(f"  {kind:19} " + "  ".join(f"{n or '':>{w}}" for n, w in zip(found, widths, strict=True)))


def _told(verdict: Verdict) -> str:
    return f"number {verdict.seed}, {verdict.kind}: {verdict.path}, {verdict.detail}"
