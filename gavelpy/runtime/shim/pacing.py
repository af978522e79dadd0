"""When a job on a node that plays a slower one may run: a share of each short period, the same on every node.

Periods are aligned to the clock, so that the ranks of a gang pause together instead of waiting for each other.
"""

from __future__ import annotations

from typing import Final

PERIOD_S: Final = 0.08


def may_run(clock_s: float, factor: float) -> bool:
    """Whether this moment is in the running part of its period."""
    return factor >= 1.0 or clock_s % PERIOD_S < factor * PERIOD_S


def until_change_s(clock_s: float, factor: float) -> float:
    """Seconds until `may_run` changes; infinite where it never does."""
    if factor >= 1.0:
        return float("inf")
    within_s = clock_s % PERIOD_S
    running_s = factor * PERIOD_S
    return running_s - within_s if within_s < running_s else PERIOD_S - within_s
