"""Time of `import gavelpy`, compared with numpy, in fresh interpreters. Goal: under 0.2 s."""

from __future__ import annotations

import statistics
import subprocess
import sys

RUNS = 7
TIMED = "import time; t = time.perf_counter(); import {}; print(time.perf_counter() - t)"


def run() -> None:
    """Prints medians over fresh interpreters."""
    for module in ("gavelpy", "gavelpy.model.problem", "numpy"):
        print(f"import {module:22} {median_s(module):6.3f} s")


def median_s(module: str) -> float:
    """Median seconds of importing a module in a fresh interpreter."""
    command = [sys.executable, "-c", TIMED.format(module)]
    times = [float(subprocess.run(command, capture_output=True, text=True, check=True).stdout) for _ in range(RUNS)]
    return statistics.median(times)
