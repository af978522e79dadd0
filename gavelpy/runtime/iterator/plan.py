"""When a loop must begin to stop, so that its last checkpoint is whole before its lease ends: pure functions."""

from __future__ import annotations

from typing import Final

from gavelpy.runtime.lease_files import Lease

MARGIN_S: Final = 0.1
GANG_MARGIN_S: Final = 0.5  # for all ranks to hear of it
LEAD_STEPS: Final = 2  # how far ahead of itself a rank proposes to stop
FIRST_GUESS_S: Final = 5.0
FIRST_GUESS_SHARE: Final = 0.1  # of the lease
SLACK: Final = 1.25  # over the longest of the last checkpoints


def stop_at_s(lease: Lease, checkpoint_s: float, step_s: float, world: int) -> float:
    """When to begin: one more step would no longer leave time for the checkpoint."""
    gang_s = GANG_MARGIN_S + LEAD_STEPS * step_s if world > 1 else 0.0
    return lease.until_clock_s - checkpoint_s - step_s - gang_s - MARGIN_S


def wants_stop(now_s: float, steps: int, lease: Lease, begins_s: float) -> bool:
    """Whether to stop now: by order, by time or by steps."""
    return lease.stop or lease.kill or now_s >= begins_s or 0 < lease.steps_max <= steps


def checkpoint_guess_s(known_s: float, lease_s: float) -> float:
    """How long a checkpoint will take: as the last ones did, with some slack, or at first a share of the lease."""
    if known_s > 0:
        return SLACK * known_s
    return max(0.0, min(FIRST_GUESS_S, FIRST_GUESS_SHARE * lease_s))
