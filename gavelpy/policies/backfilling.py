"""Backfilling: jobs in order of arrival, of which later ones may start in gaps, by the times at which jobs will end.

Nothing is preempted: a job that holds GPUs keeps them until it ends. A job runs for its steps at its rate on the type
that it holds, or would get; the cost of starts is not counted. The jobs that run are named for the round, and no
others, so that GPUs which become free wait for the next answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from gavelpy.model.allocation import Allocation
from gavelpy.model.arrays import Floats, Ints
from gavelpy.model.problem import AllocationProblem
from gavelpy.policies.base import ruled
from gavelpy.policies.in_order import places
from gavelpy.policies.isolated import lone_configurations
from gavelpy.policies.queue import jobs_running

TICK_S = 1e-3  # times that differ by no more are equal


class JobStarts:
    """The jobs that hold GPUs, the free GPUs, and the jobs that start now."""

    def __init__(self, problem: AllocationProblem) -> None:
        self._problem = problem
        self._row = np.full(problem.job_count, -1)
        lone = lone_configurations(problem)
        self._row[problem.member_job[np.searchsorted(problem.member_configuration, lone)]] = lone
        self.rate = np.where(self._row[:, None] >= 0, problem.rate_alone_steps_per_s, 0.0)
        self.rate *= (problem.demand[self._row, 0][:, None] <= problem.capacity[:, 0]) & (problem.gpu_counts > 0)
        self.gpus = problem.gpus_occupied[self._row]
        self.free = problem.gpu_counts.copy()
        self.started: list[int] = []
        self._type = np.full(problem.job_count, -1)
        held = problem.gpu_type_held
        for job in np.flatnonzero(held >= 0).tolist():
            if self.rate[job, held[job]] > 0 and self.gpus[job] <= self.free[held[job]]:
                self.start(job, int(held[job]))
        self.waiting: list[int] = [
            job for job in np.flatnonzero((self.rate > 0).any(axis=1)).tolist() if self._type[job] < 0
        ]

    def waiting_with_fewest(self) -> Iterator[tuple[int, float]]:
        """The waiting jobs in order, each with the fewest GPUs of any from it on: with less free, none can start."""
        fewest = np.minimum.accumulate(self.gpus[self.waiting][::-1])[::-1]
        return zip(self.waiting, fewest.tolist(), strict=True)

    def start(self, job: int, gpu_type: int) -> None:
        """Gives GPUs of this type to the job."""
        self._type[job] = gpu_type
        self.free[gpu_type] -= self.gpus[job]
        self.started.append(job)

    def runs_for_s(self, job: int, gpu_type: int) -> float:
        """Seconds until the job ends on this type if it runs from now on; at least two ticks, so that it counts."""
        return max(float(self._problem.steps_remaining[job] / self.rate[job, gpu_type]), 2 * TICK_S)

    def by_speed(self, job: int) -> list[int]:
        """The types on which the job can run, the fastest first; ties in type order."""
        order = np.argsort(-self.rate[job], kind="stable")
        return [t for t in order.tolist() if self.rate[job, t] > 0]

    def ends(self, gpu_type: int) -> list[tuple[float, float]]:
        """(seconds from now, GPUs) at which jobs that run on this type will end, in order of time."""
        jobs = [job for job in self.started if self._type[job] == gpu_type]
        return sorted((self.runs_for_s(job, gpu_type), float(self.gpus[job])) for job in jobs)

    def answer(self) -> Allocation:
        """The jobs that hold GPUs or start now, each with a share of 1 on its type."""
        jobs: Ints = np.array(self.started, dtype=np.int64)
        share: Floats = np.zeros(self._problem.fits.shape)
        share[self._row[jobs], self._type[jobs]] = 1.0
        named = places(self._problem, jobs, share)
        only = named[share[named[:, 0], named[:, 1]] > 0]
        return replace(ruled(self._problem, share, objective=jobs_running(self._problem, share)), next_round=only)
