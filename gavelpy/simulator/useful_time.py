"""Useful GPU time: the time that a job's GPUs spent on the steps that the job kept.

A job makes steps in segments of one rate. A segment of `steps` steps counts `steps` / rate x GPUs, at the rate without
the slowdowns of conditions, so starts, checkpoints, moves, unfinished steps and slowdowns count nothing. Where
conditions make a job faster than stated, its actual rate counts, so useful time never exceeds leased time. Steps after
the last checkpoint that a lost node destroys, or that a job without checkpoints repeats, are taken out again. Two jobs
that make steps on the same GPUs count half of them each, because leased time counts a shared GPU once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gavelpy.model.arrays import Bools, Floats, Ints

if TYPE_CHECKING:
    from gavelpy.simulator.virtual_leases import VirtualLeases


class UsefulTime:
    """GPU-seconds of each job, (J,); rows are serials."""

    def __init__(self, jobs: int) -> None:
        self.gpu_s = np.zeros(jobs)  # (J,) of steps that are counted
        self.saved_gpu_s = np.zeros(jobs)  # (J,) of those in the last checkpoint
        self._held = np.zeros(jobs)  # (J,) GPUs of the job's lease
        self._counted = np.zeros(jobs)  # (J,) the same, or half of them while they are shared

    def begin(self, rows: Ints | int, gpus: Ints | int) -> None:
        """These jobs make their next steps on so many GPUs."""
        self._held[rows] = self._counted[rows] = gpus
        self.saved_gpu_s[rows] = self.gpu_s[rows]

    def share(self, rows: Ints, is_shared: Bools) -> None:
        """These jobs make their next steps with a second job on their GPUs, or alone."""
        self._counted[rows] = np.where(is_shared, 0.5, 1.0) * self._held[rows]

    def of(self, rows: Ints, steps: Floats, rate: Floats) -> Floats:
        """GPU-seconds of these steps at these rates."""
        time_s = np.divide(steps, rate, out=np.zeros(len(rows)), where=rate > 0)
        found: Floats = time_s * self._counted[rows]
        return found

    def add(self, rows: Ints, steps: Floats, rate: Floats) -> None:
        """These jobs made so many steps."""
        self.gpu_s[rows] += self.of(rows, steps, rate)

    def add_one(self, row: int, steps: float, rate: float) -> None:
        """As `add`, for one job."""
        if rate > 0:
            self.gpu_s[row] += steps / rate * self._counted.item(row)

    def save(self, rows: Ints, steps: Floats, rate: Floats) -> None:
        """These jobs saved, after so many steps since the last ones that were added."""
        self.saved_gpu_s[rows] = self.gpu_s[rows] + self.of(rows, steps, rate)

    def lose(self, rows: Ints) -> None:
        """These jobs are back at their last checkpoints."""
        self.gpu_s[rows] = self.saved_gpu_s[rows]

    def until(self, cluster: VirtualLeases, now_s: float) -> Floats:
        """GPU-seconds of each job up to now, (J,), also of steps since the last change of a rate."""
        running, found = (cluster.lease >= 0).nonzero()[0], self.gpu_s.copy()
        made = cluster.steps_of(running, now_s) - cluster.steps_at_start[running]
        found[running] += self.of(running, made, cluster.useful_rate(running))
        return found
