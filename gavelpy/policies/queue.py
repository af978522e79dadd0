"""What FIFO and shortest job first have in common: jobs that take whole GPUs one after another."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gavelpy.model.arrays import Floats, Ints
from gavelpy.model.problem import AllocationProblem


def whole_shares(problem: AllocationProblem, order: Ints, *, blocks: bool) -> Floats:
    """Shares 0 or 1, (C, T): the jobs of `order` (rows) each take the fastest type that has enough GPUs left.

    Equal rates: the type it holds now, then the one with most GPUs left, then type order. A job for which no type has
    enough GPUs left stops the queue when `blocks`, and is passed over otherwise. Always passed over: a job that can run
    nowhere, and one for which there are enough GPUs, but only of types where it cannot run. Jobs run alone, never with
    others.
    """
    share: Floats = np.zeros(problem.fits.shape)
    choices = _LoneChoices(problem)
    jobs = order[problem.can_run[order]]
    least_behind = np.minimum.accumulate(choices.least_demand[jobs][::-1])[::-1]  # of a job and all behind it
    left = problem.capacity[:, 0].tolist()
    for job, least in zip(jobs.tolist(), least_behind.tolist(), strict=True):
        most_left = max(left)
        if most_left < least or (blocks and most_left < choices.least_demand[job]):
            break  # no GPUs for anybody who still waits, or for the one whom all wait for
        fitting = [choice for choice in choices.of(job) if choice[-1] <= left[choice[1]]]
        if fitting:
            held = int(problem.gpu_type_held[job])
            _, gpu_type, configuration, demand = max(fitting, key=lambda c: (c[0], c[1] == held, left[c[1]]))
            share[configuration, gpu_type] = 1.0
            left[gpu_type] -= demand
    return share


class _LoneChoices:
    """Where each job can run by itself."""

    def __init__(self, problem: AllocationProblem) -> None:
        self._problem = problem
        lone = np.flatnonzero(problem.member_count[problem.member_configuration] == 1)
        self._members = lone[np.argsort(problem.member_job[lone], kind="stable")]  # grouped by job
        self._first = np.searchsorted(problem.member_job[self._members], np.arange(problem.job_count + 1)).tolist()
        demand = problem.demand[problem.member_configuration[lone], 0]
        self.least_demand = np.full(problem.job_count, np.iinfo(np.int64).max)  # (J,) thousandths of a GPU
        np.minimum.at(self.least_demand, problem.member_job[lone], demand)

    def of(self, job: int) -> Iterator[tuple[float, int, int, int]]:
        """(rate, GPU type, configuration, demand in thousandths) of each way to run the job, in type order."""
        p = self._problem
        for member in self._members[self._first[job] : self._first[job + 1]].tolist():
            configuration = int(p.member_configuration[member])
            demand = int(p.demand[configuration, 0])
            for gpu_type, rate in enumerate(p.member_rate_steps_per_s[member].tolist()):
                if rate > 0:
                    yield rate, gpu_type, configuration, demand
