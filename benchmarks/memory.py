"""Peak memory of one case, in a separate process.

`python -m benchmarks.memory CASE`, the case as JSON, prints MB before and after solving.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

from benchmarks.problems import Case
from benchmarks.timing import peak_memory_mb
from gavelpy.policies.base import policy_from


def peak_of(case: Case) -> tuple[float, float]:
    """Peak MB of a fresh process after drawing the problem, and after solving it."""
    command = [sys.executable, "-m", "benchmarks.memory", json.dumps(asdict(case))]
    root = Path(__file__).resolve().parents[1]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, cwd=root).stdout
    before_mb, peak_mb = map(float, printed.split())
    return before_mb, peak_mb


def main() -> None:
    """Solves the case of the first argument."""
    case = Case(**json.loads(sys.argv[1]))
    problem = case.problem()
    before_mb = peak_memory_mb()
    policy_from(case.policy_text).allocate(problem)
    print(before_mb, peak_memory_mb())


if __name__ == "__main__":
    main()
