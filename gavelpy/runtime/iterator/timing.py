"""The measured rate of a training loop, and when it must begin to stop so that its last checkpoint is complete."""

from __future__ import annotations

from collections import deque
from typing import Final

from gavelpy.model.checkpoint_interval import checkpoint_interval_s
from gavelpy.runtime.lease_files import LeaseTerms

MARGIN_S: Final = 0.1
GANG_MARGIN_S: Final = 0.5  # for proposals to reach all ranks
LEAD_STEPS: Final = 2  # how far ahead of itself a rank proposes to stop
FIRST_GUESS_S: Final = 5.0
FIRST_GUESS_SHARE: Final = 0.1  # of the lease
SLACK: Final = 1.25  # over the longest of the last checkpoints
WARM_UP_STEPS: Final = 3  # compile, allocate and fill caches
SAMPLE_S: Final = 0.5
SAMPLES: Final = 120  # the last minute


class RateMeter:
    """Steps per second without the first steps and without checkpoints. Times are of one clock, in seconds."""

    def __init__(self, now_s: float, steps: int) -> None:
        self._first_steps = steps
        self._idle_s = 0.0
        self._samples: deque[tuple[float, int]] = deque([(now_s, steps)], maxlen=SAMPLES)

    def add_idle(self, seconds: float) -> None:
        """Excludes time since the last sample that was not spent on steps."""
        self._idle_s += seconds

    def sample(self, now_s: float, steps: int) -> None:
        """Records that a step has just finished."""
        taken = steps - self._first_steps
        busy_s = now_s - self._idle_s
        if len(self._samples) == 1 and 1 <= taken <= WARM_UP_STEPS:
            self._samples[0] = (busy_s, steps)  # measure from after this step
            return
        if busy_s - self._samples[-1][0] >= SAMPLE_S or len(self._samples) == 1:
            self._samples.append((busy_s, steps))

    def rate_steps_per_s(self) -> float:
        """The rate over the last minute of steps; 0 before there are enough samples."""
        (began_s, began_steps), (ended_s, ended_steps) = self._samples[0], self._samples[-1]
        return (ended_steps - began_steps) / (ended_s - began_s) if ended_s > began_s else 0.0


def stop_at_s(lease: LeaseTerms, checkpoint_s: float, step_s: float, world: int) -> float:
    """When to begin to stop: one more step would leave too little time for the checkpoint."""
    gang_s = GANG_MARGIN_S + LEAD_STEPS * step_s if world > 1 else 0.0
    return lease.until_clock_s - checkpoint_s - step_s - gang_s - MARGIN_S


def must_stop(now_s: float, steps: int, lease: LeaseTerms, stop_s: float) -> bool:
    """Whether to stop now: by order, by time or by steps."""
    return lease.stop or lease.kill or now_s >= stop_s or 0 < lease.steps_max <= steps


def expected_checkpoint_s(known_s: float, lease_s: float) -> float:
    """Expected duration of a checkpoint: that of earlier ones with slack, or at first a share of the lease."""
    if known_s > 0:
        return SLACK * known_s
    return max(0.0, min(FIRST_GUESS_S, FIRST_GUESS_SHARE * lease_s))


def save_every_s(stated_s: float, mtbf_s: float, known_s: float) -> float:
    """Seconds between checkpoints: as stated, or those that lose the least time to saves and failures; 0 = none.

    `mtbf_s`: mean time between failures; `known_s`: duration of the last checkpoint; 0 = not known.
    """
    if stated_s or not mtbf_s:
        return stated_s
    return checkpoint_interval_s(known_s or FIRST_GUESS_S, mtbf_s)
