"""A job that only records where it runs: it steps at the rate of its GPU type, and writes one line per action.

`python witness.py DIRECTORY v100=40,p100=20,k80=10` writes DIRECTORY/<job>-<lease>-<rank>.evidence. Its checkpoint
contains its last step, so that a resumed witness knows its progress. Once the file DIRECTORY/hurry exists, it runs 100
times as fast: a test that has seen enough need not wait for the rest.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from gavelpy import LeaseIterator

RAN_EVERY_S = 0.05
HURRY = "hurry"


class Evidence:
    """Appends whole lines with one write each."""

    def __init__(self, directory: Path) -> None:
        environment = os.environ
        self.who = " ".join(environment[name] for name in ("GAVEL_JOB_ID", "GAVEL_LEASE", "RANK", "GAVEL_NODE_ID"))
        self.gpus = environment["CUDA_VISIBLE_DEVICES"]
        name = "-".join(self.who.split(" ")[:3])
        self.file = os.open(directory / f"{name}.evidence", os.O_CREAT | os.O_APPEND | os.O_WRONLY)
        self.ran_s = 0.0

    def write(self, kind: str, steps: int) -> None:
        at_s = time.clock_gettime(time.CLOCK_BOOTTIME)
        self.ran_s = at_s
        os.write(self.file, f"{at_s:.6f} {kind} {self.who} {self.gpus} {steps}\n".encode())

    def ran(self, steps: int) -> None:
        if time.clock_gettime(time.CLOCK_BOOTTIME) - self.ran_s >= RAN_EVERY_S:
            self.write("ran", steps)


class Paced:
    """Steps at a fixed rate on a busy machine too: it catches up after a late step."""

    samples_per_item = 1  # on any number of ranks

    def __init__(self, rate_steps_per_s: float, hurry: Path) -> None:
        self.rate_steps_per_s = rate_steps_per_s
        self.hurry = hurry

    def resume_at(self, epoch: int, position: int) -> None:
        """Does nothing: earlier steps need no skipping."""

    def __iter__(self) -> Iterator[None]:
        due_s = time.monotonic()
        while True:
            times = 100.0 if self.hurry.exists() else 1.0
            due_s = max(due_s + 1.0 / (times * self.rate_steps_per_s), time.monotonic() - 1.0)
            time.sleep(max(0.0, due_s - time.monotonic()))
            yield


def main(directory: Path, rates: dict[str, float]) -> None:
    """Runs until the lease or the work is over."""
    evidence = Evidence(directory)
    steps = 0

    def save(into: Path) -> None:
        (into / "steps").write_text(str(steps))

    def load(origin: Path) -> None:
        nonlocal steps
        steps = int((origin / "steps").read_text())

    iterator = LeaseIterator(Paced(rates[os.environ["GAVEL_GPU_TYPE"]], directory / HURRY), save, load=load)
    assert steps == iterator.steps_done, f"the checkpoint says {steps}, the iterator {iterator.steps_done}"
    evidence.write("began", steps)
    saved = iterator.steps_saved
    for _ in iterator:
        steps += 1
        evidence.ran(steps)
        if iterator.steps_saved > saved:
            saved = iterator.steps_saved
            evidence.write("saved", saved)
    if iterator.steps_saved > saved:
        evidence.write("saved", iterator.steps_saved)
    evidence.write("finished" if iterator.finished else "stopped", iterator.steps_done)


if __name__ == "__main__":
    main(Path(sys.argv[1]), {k: float(v) for k, v in (pair.split("=") for pair in sys.argv[2].split(","))})
