"""Periodic checkpoints of virtual jobs, without an event for each.

A job works for an interval, saves, and so on: after x seconds since its first step, it has completed
n = floor(x / (interval + save)) checkpoints, and has worked for n interval + min(x - n (interval + save), interval).

The interval that loses the least time: a checkpoint of d seconds after each interval of t seconds loses d per interval,
and a failure, every M seconds on average, loses half of an interval. J. W. Young (A first order approximation to the
optimum checkpoint interval, Communications of the ACM 17(9), 1974) finds t = sqrt(2 d M). J. T. Daly (A higher order
estimate of the optimum checkpoint interval for restart dumps, Future Generation Computer Systems 22(3), 2006, equation
37) finds

    t = sqrt(2 d M) (1 + 1/3 sqrt(d / 2M) + 1/9 (d / 2M)) - d    for d < 2 M,    else t = M

for failures at exponential times. Both are work between two checkpoints, without the checkpoints themselves.
"""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from gavelpy.errors import InvalidInput
from gavelpy.model.arrays import Floats, Ints
from gavelpy.simulator.settings import StepCount
from gavelpy.simulator.virtual_leases import VirtualLeases

INTERVAL_S_MIN = 1.0
NEVER_S = 1e12  # an interval that no job reaches
ROUNDING = 1e-9  # of an interval: work that ends with an interval needs no checkpoint after it


class PeriodicSaves(StepCount):
    """Steps of jobs that save after each interval of work. Rows of jobs are serials."""

    saves_meanwhile: ClassVar[bool] = True

    def __init__(self, interval_s: Floats, save_s: Floats) -> None:
        self.interval_s, self.save_s = interval_s, save_s  # (J,) of work; of a checkpoint

    def worked_s(self, cluster: VirtualLeases, rows: Ints, now_s: float | Floats, since_s: Floats) -> Floats:
        """As StepCount, without the time for checkpoints."""
        first_s = cluster.accounts.first_step_s[rows]
        return np.asarray(np.maximum(self._work_s(rows, first_s, now_s) - self._work_s(rows, first_s, since_s), 0.0))

    def worked_at_s(self, cluster: VirtualLeases, rows: Ints, work_s: Floats) -> Floats:
        """As StepCount, with the time for checkpoints."""
        first_s, interval_s = cluster.accounts.first_step_s[rows], self.interval_s[rows]
        total_s = self._work_s(rows, first_s, cluster.counted_s[rows]) + work_s
        saves = np.maximum(np.ceil(total_s / interval_s - ROUNDING) - 1.0, 0.0)
        return np.asarray(first_s + total_s + np.where(np.isfinite(saves), saves, 0.0) * self.save_s[rows])

    def book_saves(self, cluster: VirtualLeases, rows: Ints, now_s: float) -> None:
        """Books the last checkpoint that each of these jobs has completed by now."""
        first_s, interval_s = cluster.accounts.first_step_s[rows], self.interval_s[rows]
        time_s = _since(now_s, first_s)
        saved_s = np.floor(time_s / (interval_s + self.save_s[rows])) * interval_s
        counted_s = self._work_s(rows, first_s, cluster.counted_s[rows])
        made = cluster.rate[rows] * (saved_s - counted_s)
        steps = np.minimum(cluster.steps_at_start[rows] + made, cluster.steps_total[rows])
        is_new = (saved_s > 0) & (saved_s >= counted_s) & (steps > cluster.steps_saved[rows])
        rows, steps = rows[is_new], steps[is_new]
        cluster.steps_saved[rows] = steps
        cluster.useful.save(rows, steps - cluster.steps_at_start[rows], cluster.useful_rate(rows))

    def _work_s(self, rows: Ints, first_s: Floats, until_s: float | Floats) -> Floats:
        """Work of these jobs from their first steps until a time."""
        interval_s = self.interval_s[rows]
        cycle_s, time_s = interval_s + self.save_s[rows], _since(until_s, first_s)
        saves = np.floor(time_s / cycle_s)
        return np.asarray(saves * interval_s + np.minimum(time_s - saves * cycle_s, interval_s))


def _since(until_s: float | Floats, first_s: Floats) -> Floats:
    if isinstance(until_s, float) and math.isfinite(until_s):
        return np.asarray(np.maximum(until_s - first_s, 0.0))  # 0 where the first step is never
    is_known = np.isfinite(first_s) & np.isfinite(until_s)
    return np.asarray(np.maximum(np.subtract(until_s, first_s, out=np.zeros(len(first_s)), where=is_known), 0.0))


def intervals_s(save_s: Floats, mtbf_s: Floats) -> Floats:
    """Intervals of work between the checkpoints of each job, (J,), for its mean time between failures, (J,)."""
    found = [checkpoint_interval_s(*each) for each in zip(save_s.tolist(), mtbf_s.tolist(), strict=True)]
    return np.asarray(np.minimum(np.array(found, dtype=np.float64), NEVER_S))


def checkpoint_interval_s(save_s: float, mtbf_s: float) -> float:
    """Seconds of work between two checkpoints, by Daly's formula; at least 1, infinite if there are no failures.

    `save_s`: seconds that a checkpoint stops the job; `mtbf_s`: mean time between failures of the job.

    >>> round(checkpoint_interval_s(save_s=60, mtbf_s=86_400))
    3180
    """
    if not save_s >= 0 or math.isinf(save_s):
        raise InvalidInput(f"save_s must be finite and >= 0, got {save_s!r}")
    if not mtbf_s > 0:
        raise InvalidInput(f"mtbf_s must be > 0, got {mtbf_s!r}")
    if math.isinf(mtbf_s):
        return math.inf
    if save_s >= 2 * mtbf_s:
        return max(mtbf_s, INTERVAL_S_MIN)
    ratio = save_s / (2 * mtbf_s)
    young_s = math.sqrt(2 * save_s * mtbf_s)
    return max(young_s * (1 + math.sqrt(ratio) / 3 + ratio / 9) - save_s, INTERVAL_S_MIN)
