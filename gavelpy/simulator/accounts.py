"""GPU time under lease by what it was used for: work that counts, and each cost.

The time of a lease is divided when the lease ends. Before its first step, a job starts, moves and loads; after it, the
job works and saves. Work is divided by the steps that were made: see `UsefulTime`. Steps that count took `useful` time,
lost steps took `lost_work` time, and the rest is `slowdown`: time that the same steps would not take at stated rates.

The parts of all leases add up to the GPU time under lease of the history, and with idle GPUs and GPUs of absent nodes
to the capacity.
"""

from __future__ import annotations

import math
from enum import IntEnum

import numpy as np

from gavelpy.model.arrays import Floats, Ints

NONE = -1


class Use(IntEnum):
    """What GPU time under lease was used for."""

    USEFUL = 0
    START = 1
    RESTORE = 2
    MIGRATION = 3
    CHECKPOINT = 4
    LOST_WORK = 5
    SLOWDOWN = 6


class LeaseAccounts:
    """Columns of the running lease of each job (J,), and GPU time of leases that ended. Rows of jobs are serials."""

    def __init__(self, jobs: int, gpu_types: int) -> None:
        self.gpu_s = [[0.0] * gpu_types for _ in Use]
        self.gpus = np.zeros(jobs, dtype=np.int64)  # of the lease; 0 = its time is in `gpu_s` already
        self.gpu_type = np.zeros(jobs, dtype=np.int64)
        self.start_s = np.full(jobs, math.inf)
        self.first_step_s = np.full(jobs, math.inf)
        self.restoring_s = np.zeros(jobs)
        self.migrating_s = np.zeros(jobs)
        self.useful_before_gpu_s = np.zeros(jobs)  # of the job at its start
        self.stopping = np.full(jobs, NONE)  # lease that is saving its last checkpoint
        self.stopping_gpus = np.zeros(jobs, dtype=np.int64)
        self.stopping_type = np.zeros(jobs, dtype=np.int64)
        self.stopped_s = np.full(jobs, math.inf)
        self.unsaved_gpu_s = np.zeros(jobs)  # of useful time that is lost if this save fails
        self.steps_before = np.zeros(jobs)  # saved before this save

    def add_type(self) -> None:
        """Counts another GPU type."""
        for row in self.gpu_s:
            row.append(0.0)

    def started(
        self, rows: Ints, gpus: Ints, gpu_types: Ints, start_s: Floats, first_step_s: Floats, useful_gpu_s: Floats,
        restoring_s: Floats | float = 0.0, migrating_s: Floats | float = 0.0,
    ) -> None:  # fmt: skip
        """Leases begin at `start_s` (K,); `useful_gpu_s` (K,) of their jobs before."""
        self.gpus[rows], self.gpu_type[rows] = gpus, gpu_types
        self.start_s[rows], self.first_step_s[rows] = start_s, first_step_s
        self.useful_before_gpu_s[rows] = useful_gpu_s
        self.restoring_s[rows], self.migrating_s[rows] = restoring_s, migrating_s

    def started_one(
        self, row: int, gpus: int, gpu_type: int, start_s: float, first_step_s: float, useful_gpu_s: float,
        migrating_s: float,
    ) -> None:  # fmt: skip
        """As `started`, of one lease."""
        self.gpus[row], self.gpu_type[row] = gpus, gpu_type
        self.start_s[row], self.first_step_s[row] = start_s, first_step_s
        self.useful_before_gpu_s[row] = useful_gpu_s
        self.restoring_s[row], self.migrating_s[row] = 0.0, migrating_s

    def ended(self, rows: Ints, now_s: float, worked_s: Floats, made_gpu_s: Floats, kept_gpu_s: Floats) -> None:
        """Leases stop now; `worked_s` is the time in which steps were made.

        `made_gpu_s` and `kept_gpu_s` are the useful time of their jobs by now, before and without what is lost.
        """
        count = self.gpus[rows]
        length_s = np.maximum(now_s - self.start_s[rows], 0.0) * (count > 0)
        before_s = self.first_step_s[rows] - self.start_s[rows]
        starting_s = np.minimum(length_s, before_s)
        part = np.divide(starting_s, before_s, out=np.zeros(len(rows)), where=before_s > 0)
        restore_s, migration_s = self.restoring_s[rows] * part, self.migrating_s[rows] * part
        working_s = length_s - starting_s
        works, before_gpu_s = working_s > 0, self.useful_before_gpu_s[rows]
        made_gpu_s, kept_gpu_s = (made_gpu_s - before_gpu_s) * works, (kept_gpu_s - before_gpu_s) * works
        worked_s = np.minimum(worked_s, working_s)
        parts = {
            Use.USEFUL: kept_gpu_s,
            Use.START: (starting_s - restore_s - migration_s) * count,
            Use.RESTORE: restore_s * count,
            Use.MIGRATION: migration_s * count,
            Use.CHECKPOINT: (working_s - worked_s) * count,
            Use.LOST_WORK: made_gpu_s - kept_gpu_s,
            Use.SLOWDOWN: worked_s * count - made_gpu_s,
        }
        kinds = self.gpu_type[rows]
        for use, part_gpu_s in parts.items():
            for kind, total in enumerate(np.bincount(kinds, part_gpu_s, len(self.gpu_s[0])).tolist()):
                self.gpu_s[use][kind] += total
        self.gpus[rows] = 0

    def ended_one(self, row: int, now_s: float, worked_s: float, made_gpu_s: float) -> None:
        """As `ended`, of one lease that has made steps and loses none."""
        gpus, kind = self.gpus.item(row), self.gpu_type.item(row)
        start_s, first_step_s = self.start_s.item(row), self.first_step_s.item(row)
        restore_s, migration_s = self.restoring_s.item(row), self.migrating_s.item(row)
        useful_gpu_s = made_gpu_s - self.useful_before_gpu_s.item(row)
        gpu_s = self.gpu_s
        gpu_s[Use.USEFUL][kind] += useful_gpu_s
        gpu_s[Use.START][kind] += (first_step_s - start_s - restore_s - migration_s) * gpus
        gpu_s[Use.RESTORE][kind] += restore_s * gpus
        gpu_s[Use.MIGRATION][kind] += migration_s * gpus
        gpu_s[Use.CHECKPOINT][kind] += (now_s - first_step_s - worked_s) * gpus
        gpu_s[Use.SLOWDOWN][kind] += worked_s * gpus - useful_gpu_s
        self.gpus[row] = 0

    def saving(self, rows: Ints, leases: Ints, gpus: Ints, now_s: float, steps: Floats, unsaved_gpu_s: Floats) -> None:
        """Leases that `ended` write a last checkpoint from now on.

        If that fails, the jobs are back at `steps` (K,), and `unsaved_gpu_s` (K,) of their useful time are lost.
        """
        self.stopping[rows], self.stopping_gpus[rows] = leases, gpus
        self.stopping_type[rows] = self.gpu_type[rows]
        self.stopped_s[rows], self.steps_before[rows], self.unsaved_gpu_s[rows] = now_s, steps, unsaved_gpu_s

    def saved(self, rows: Ints, leases: Ints, now_s: float) -> None:
        """Last checkpoints of those of these leases that write one are complete, or given up."""
        rows = rows[self.stopping[rows] == leases]
        time_s = (now_s - self.stopped_s[rows]) * self.stopping_gpus[rows]
        np.add.at(checkpoint := np.array(self.gpu_s[Use.CHECKPOINT]), self.stopping_type[rows], time_s)
        self.gpu_s[Use.CHECKPOINT] = checkpoint.tolist()
        self.stopping[rows] = NONE

    def save_failed(self, rows: Ints, now_s: float) -> None:
        """The last checkpoints that these jobs are writing are lost."""
        self.saved(rows, self.stopping[rows], now_s)
        for row in rows.tolist():
            kind, lost = self.stopping_type.item(row), self.unsaved_gpu_s.item(row)
            self.gpu_s[Use.USEFUL][kind] -= lost
            self.gpu_s[Use.LOST_WORK][kind] += lost
        self.useful_before_gpu_s[rows] -= self.unsaved_gpu_s[rows]

    def until(self, now_s: float, worked_s: Floats, useful_gpu_s: Floats) -> Floats:
        """GPU time by use and GPU type up to now, (U, T); `worked_s` and `useful_gpu_s` (J,) are the jobs'."""
        before, columns = [row.copy() for row in self.gpu_s], (self.gpus.copy(), self.stopping.copy())
        running = np.flatnonzero(self.gpus)
        self.ended(running, now_s, worked_s[running], useful_gpu_s[running], useful_gpu_s[running])
        stopping = np.flatnonzero(self.stopping != NONE)
        self.saved(stopping, self.stopping[stopping], now_s)
        found = np.array(self.gpu_s)
        self.gpu_s, (self.gpus, self.stopping) = before, columns
        return found
