"""Runs the random problems of tests/policies/many.py or wide.py: every policy, and the errors of its answers.

Verdicts are appended to a file, one line of JSON each; a stopped run continues where it ended.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from gavelpy.solve.solver import Solver
from tests.policies.many import Verdict, slow_ones

LOOSE = 1e-8  # relative gap


def run(first: int, problems: int, log: Path | None, judge: Callable[..., Verdict]) -> None:
    """Prints a table of policies, and a line for every wrong or slow answer."""
    done = {v.number: v for v in _read(log)} if log is not None and log.exists() else {}
    solver = Solver()
    for number in range(first, first + problems):
        if number in done:
            continue
        if number % 100 == 0:
            print(f"policies: {number:,}", file=sys.stderr)
        done[number] = judge(number, solver)
        if log is not None:
            with log.open("a") as lines:
                lines.write(json.dumps(asdict(done[number])) + "\n")
    verdicts = [verdict for number, verdict in sorted(done.items()) if first <= number < first + problems]
    _show(verdicts, slow_ones(verdicts, judge))


def _read(log: Path) -> list[Verdict]:
    lines = log.read_text().splitlines()
    return [Verdict(**json.loads(line)) for line in lines if line.endswith("}")]


def _show(verdicts: list[Verdict], slow: list[Verdict]) -> None:
    total, packed, refused, loose, warned, wrong = (
        Counter(v.policy for v in some)
        for some in (
            verdicts,
            [v for v in verdicts if v.packed],
            [v for v in verdicts if v.path == "refused"],
            [v for v in verdicts if v.gap > LOOSE],
            [v for v in verdicts if v.warned],
            [v for v in verdicts if v.wrong],
        )
    )
    print(f"{'policy':34} {'problems':>8} {'packed':>8} {'refused':>8} {'> 1e-8':>8} {'warned':>8} {'wrong':>8}")
    for policy in sorted(total):
        counts = (total, packed, refused, loose, warned, wrong)
        print(f"  {policy:32} " + " ".join(f"{count[policy]:8}" for count in counts))
    in_all = f"wrong: {sum(wrong.values())}; warned: {sum(warned.values())}; slow: {len(slow)}"
    print(f"{len(verdicts):,} problems; {in_all}")
    for verdict in verdicts:
        if verdict.wrong:
            print(f"  number {verdict.number}, {verdict.policy}: {verdict.path}, {verdict.wrong}")
    for verdict in slow:
        print(
            f"  number {verdict.number}, {verdict.policy}, {verdict.jobs} jobs: {verdict.cpu_s:.2f} s, {verdict.path}"
        )
