"""A training script that knows its own length: two epochs of 20 steps. It logs each step, and resumes."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from gavelpy import LeaseIterator


def main() -> None:
    """Trains until the lease or the work is over."""
    for step in (steps := LeaseIterator(range(20), save, load=lambda _: None, epochs=2)):
        time.sleep(float(sys.argv[1]))
        print(f"epoch {steps.epoch} step {step}", flush=True)  # noqa: T201 its output is evidence


def save(directory: Path) -> None:
    (directory / "state").write_text("saved")


if __name__ == "__main__":
    main()
