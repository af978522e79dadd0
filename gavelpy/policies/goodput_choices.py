"""Places (a GPU type and a number of GPUs) of jobs that can grow and shrink, with goodput, growth and restart factors.

Shared by the policies that choose one place for each job by goodput: `sia` and `pollux`.
"""

from __future__ import annotations

import json

import numpy as np

from gavelpy.model.arrays import Bools, Floats
from gavelpy.model.problem import AllocationProblem
from gavelpy.policies.memory import as_memory
from gavelpy.policies.places import PlacesAlone

GROWTH_MAX = 2.0  # in one round, of the most GPUs that a job has had
LEAST_FACTOR = 1e-3  # of a restart: a job that has only restarted so far can still be moved


class PastOfJobs:
    """What jobs held before: kept by id, since rows change. `most` and `starts` include what they hold now, (J,)."""

    def __init__(self, problem: AllocationProblem) -> None:
        self._problem = problem
        told: dict[str, list[float]] = json.loads(problem.memory or b"{}")  # id -> [type, GPUs, most GPUs, starts]
        held, asked = problem.gpu_type_held, problem.gpus_asked
        self.gpus: Floats = np.where(held >= 0, np.where(problem.gpus_held > 0, problem.gpus_held, asked), 0.0)
        self._before = np.array([told.get(job, [-1, 0, 0, 0]) for job in problem.job_ids]).reshape(-1, 4)
        is_new = (held >= 0) & ((self._before[:, 0] != held) | (self._before[:, 1] != self.gpus))
        self.most: Floats = np.maximum(self._before[:, 2], self.gpus)
        self.starts: Floats = self._before[:, 3] + is_new

    def memory(self) -> bytes:
        """The memory for the next call: of jobs that have run; the latest of them, if it would be too large."""
        ids, held = self._problem.job_ids, self._problem.gpu_type_held
        rows = np.flatnonzero(self.starts > 0).tolist()
        columns = np.column_stack([held, self.gpus, self.most, self.starts])
        kept = {ids[row]: columns[row].tolist() for row in rows}
        return as_memory(kept, kept) if kept else b""


class GoodputChoices:
    """The places (configuration and GPU type) where each job may run next, K of them.

    `goodput` is the rate over the least rate of the job's places, times its least number of GPUs, as in Sia's paper.
    """

    def __init__(self, problem: AllocationProblem, past: PastOfJobs) -> None:
        self.row, self.job, self.gpu_type, self.rate = PlacesAlone.of(problem)
        self.gpus: Floats = problem.gpus_occupied[self.row]
        J, R = problem.job_count, len(problem.resources)
        worst, fewest = np.full(J, np.inf), np.full(J, np.inf)
        np.minimum.at(worst, self.job, self.rate)
        np.minimum.at(fewest, self.job, self.gpus)
        self.goodput: Floats = self.rate / worst[self.job] * fewest[self.job]
        most = np.maximum(GROWTH_MAX * past.most, fewest)
        self._keep(self.gpus <= most[self.job])
        amounts = np.zeros((len(self.row), R, len(problem.gpu_types)))
        amounts[np.arange(len(self.row)), :, self.gpu_type] = problem.occupied[self.row]
        self.demand: Floats = amounts.reshape(len(self.row), R * len(problem.gpu_types))  # (K, R T), as `row_capacity`
        self._problem = problem

    def _keep(self, kept: Bools) -> None:
        for name in ("row", "job", "gpus", "gpu_type", "rate", "goodput"):
            setattr(self, name, getattr(self, name)[kept])

    def factor(self, past: PastOfJobs) -> Floats:
        """f of each choice, (K,)."""
        p, job = self._problem, self.job
        restart_s, age_s = p.restart_s, p.age_s
        spent = np.divide(
            age_s - past.starts * restart_s, age_s + restart_s, out=np.ones(p.job_count), where=restart_s > 0
        )
        moved = np.clip(spent, LEAST_FACTOR, 1.0)[job]
        stays = (p.gpu_type_held[job] < 0) | ((p.gpu_type_held[job] == self.gpu_type) & (past.gpus[job] == self.gpus))
        return np.where(stays, 1.0, moved)
