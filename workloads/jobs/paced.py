"""A job that only sleeps, at a rate given for each GPU type: for tests of the scheduler and for trying it out.

It needs nothing but gavelpy itself, and almost no CPU, so that many of them can share a machine without slowing each
other down. A checkpoint contains the job's step and the leases under which it ran, one entry per lease: a reader can
check that no step was counted twice or left out. Stdout gets a JSON line at the start, one per checkpoint, and one at
the end.

    python paced.py --steps 600 --rate v100=20 --rate k80=4 --save-s 0.2
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gavelpy import LeaseIterator

STATE_FILE = "state.json"
STEPS_DEFAULT = 200
RATE_DEFAULT = 10.0


class Pace:
    """Steps at a fixed rate: a late step does not delay later ones."""

    def __init__(self, rate_steps_per_s: float) -> None:
        self.step_s = 1 / rate_steps_per_s
        self.due_s = time.monotonic()

    def step(self) -> None:
        """Sleeps until the step is over."""
        self.due_s += self.step_s
        left_s = self.due_s - time.monotonic()
        if left_s > 0:
            time.sleep(left_s)

    def pause(self, seconds: float) -> None:
        """Time that is spent on something else, and not caught up."""
        time.sleep(seconds)
        self.due_s = max(self.due_s + seconds, time.monotonic() - self.step_s)


class Paced:
    """A job that records spans of steps, each done under one lease."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given = given
        self.lease = int(os.environ.get("GAVEL_LEASE") or -1)
        self.rank = int(os.environ.get("RANK") or 0)
        self.pace = Pace(rate_of(given.rate, os.environ.get("GAVEL_GPU_TYPE", "")))
        self.before: list[list[int]] = []  # [lease, first step, last step + 1] of earlier leases
        self.first = self.steps = 0

    def run(self) -> bool:
        """Steps until the job or its lease is over; returns whether the job is."""
        time.sleep(self.given.start_s)
        loop = LeaseIterator(
            Turns(),
            self.save,
            load=self.load,
            steps_total=self.given.steps,
            checkpoint_directory=self.given.checkpoints or None,
        )
        if loop.steps_done != self.steps:
            raise ValueError(f"the checkpoint must be of step {loop.steps_done}, but its content is of {self.steps}")
        self.say("start", resumed_from=str(loop.resume_directory or ""))
        self.pace.due_s = time.monotonic()
        for _ in loop:
            self.pace.step()
            self.steps += 1
            if 0 <= self.given.fail_at <= self.steps:
                raise RuntimeError(f"failed at step {self.steps}, as set by --fail-at")
        self.say("finish" if loop.finished else "stop", rate_steps_per_s=round(loop.rate_steps_per_s, 3))
        return loop.finished

    def save(self, directory: Path) -> None:
        self.pace.pause(self.given.save_s)
        (directory / STATE_FILE).write_text(json.dumps({"steps": self.steps, "spans": self.spans()}))
        self.say("checkpoint")

    def load(self, directory: Path) -> None:
        time.sleep(self.given.load_s)
        state = json.loads((directory / STATE_FILE).read_text())
        self.steps = self.first = state["steps"]
        self.before = state["spans"]

    def spans(self) -> list[list[int]]:
        own = [[self.lease, self.first, self.steps]] if self.steps > self.first else []
        return [*self.before, *own]

    def say(self, what: str, **more: Any) -> None:  # Any: JSON values
        line = {"event": what, "steps": self.steps, "lease": self.lease, "rank": self.rank, **more}
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()


class Turns:
    """Endless empty items; can resume anywhere."""

    def __iter__(self) -> Iterator[None]:
        while True:
            yield None

    def resume_at(self, epoch: int, position: int) -> None:
        """Does nothing: all positions are equal."""


def rate_of(rates: dict[str, float], gpu_type: str) -> float:
    """The rate on this type; if it has none, the rate given without a type."""
    return rates.get(gpu_type) or rates.get("") or RATE_DEFAULT


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    steps = int(float(os.environ.get("GAVEL_STEPS_TOTAL") or 0)) or STEPS_DEFAULT
    parser.add_argument("--steps", type=int, default=steps, help=f"in all; GAVEL_STEPS_TOTAL if left out, else {steps}")
    parser.add_argument(
        "--rate",
        type=_rate,
        action="append",
        default=[],
        metavar="[TYPE=]X",
        help=f"steps/s on a GPU type, or on all others; {RATE_DEFAULT:g}",
    )
    parser.add_argument("--start-s", type=_seconds, default=0.0, metavar="S", help="that a start takes")
    parser.add_argument("--save-s", type=_seconds, default=0.0, metavar="S", help="that a checkpoint takes")
    parser.add_argument("--load-s", type=_seconds, default=0.0, metavar="S", help="that reading one takes")
    parser.add_argument("--fail-at", type=int, default=-1, metavar="STEP", help="ends with an error there")
    parser.add_argument("--checkpoints", default="", metavar="DIR", help="where to keep and find them outside a lease")
    given = parser.parse_args(arguments)
    if given.steps < 1:
        parser.error(f"--steps must be 1 or more, got {given.steps}")
    given.rate = dict(given.rate)
    return given


def _rate(text: str) -> tuple[str, float]:
    gpu_type, _, rate = text.rpartition("=")
    value = float(rate)
    if not 0 < value < 1e6:
        raise argparse.ArgumentTypeError(f"must be in (0, 1e6), got {value:g}")
    return gpu_type, value


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 86400:
        raise argparse.ArgumentTypeError(f"must be in [0, 86400], got {value:g}")
    return value


if __name__ == "__main__":
    Paced(_parse(None)).run()
