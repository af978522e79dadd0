"""Periodic checkpoints of virtual jobs, without an event for each.

A job works for an interval, saves, and so on: after x seconds since its first step, it has completed
n = floor(x / (interval + save)) checkpoints, and has worked for n interval + min(x - n (interval + save), interval).
"""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from gavelpy.model.arrays import Floats, Ints
from gavelpy.model.checkpoint_interval import checkpoint_interval_s
from gavelpy.simulator.settings import StepCount
from gavelpy.simulator.virtual_leases import VirtualLeases

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
