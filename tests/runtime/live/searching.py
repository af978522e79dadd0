"""A training script of a search: 90 steps with a loss that depends on its parameter, which it reports. It resumes."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from gavelpy import LeaseIterator


def main() -> None:
    """Trains until the lease or the work is over. Arguments: the parameter, seconds per step."""
    rate, pause_s = float(sys.argv[1]), float(sys.argv[2])
    steps = LeaseIterator(range(90), save, load=lambda _: None)
    for _ in steps:
        time.sleep(pause_s)
        steps.report_metric("loss", abs(rate - 0.3) + 1.0 / steps.step)


def save(directory: Path) -> None:
    (directory / "state").write_text("saved")


if __name__ == "__main__":
    main()
