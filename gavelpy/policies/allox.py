"""AlloX: minimises the average completion time by assigning jobs to GPUs and positions in their queues."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from gavelpy.errors import InvalidInput
from gavelpy.model.allocation import Allocation
from gavelpy.model.arrays import Bools, Floats, Ints
from gavelpy.model.problem import AllocationProblem
from gavelpy.policies.base import ProblemInput, ruled
from gavelpy.policies.isolated import fastest_alone
from gavelpy.policies.refusals import refuse_unused
from gavelpy.solve.assignment import least_completion_time
from gavelpy.solve.solver import Solver

JOBS_MAX = 64  # in a plan; or
JOBS_MAX_PER_GPU = 16  # per free GPU, if that is more: other jobs would not start now


@dataclass(frozen=True)
class AlloX:
    """Minimise  Σ_j k_j p_jt(j)  over a type t(j) and a position k_j from the end of one of its GPUs' queues.

    p_jt    steps_j / r_jt, seconds that job j has left on type t

    AlloX (EuroSys '20), section 4, as in the original Gavel. Of the jobs assigned to a type, those with the least time
    left run now, on whole GPUs; the next call computes the rest of the plan again. A job that holds GPUs
    (`gpu_type_held`) keeps them until it finishes. For fairness, `alpha` below 1 restricts the plan to the oldest jobs:
    as many as there are free GPUs, or the fraction alpha of the waiting jobs if that is more. Ties: order of arrival.

    AlloX does not define gangs (the original stops). Here a type has as many machines as its free GPUs hold gangs of
    mean size, and a gang of g GPUs delays those behind it by  p g / mean g,  its GPU time as machine time. With gangs
    of one size this is AlloX with gangs as jobs. In a type's queue the least GPU time p g goes first, and gangs that do
    not fit are skipped, so a large one may wait long. A gang larger than a type never runs there.

    If more than 64 jobs, and more than 16 per free GPU, are waiting, only the 64 (or 16 per GPU) with the least GPU
    time are planned; the others would come after them. (With a single type all are planned.) 2,048 jobs on 512 free
    GPUs of 3 types take half a second. The certificate's objective is the plan's average completion time in s,
    including ages. Jobs are not co-located.

    >>> p = AllocationProblem.of(
    ...     ["a", "b"], ["v100", "k80"], [1, 1], [[4.0, 1.0], [4.0, 3.0]], steps_remaining=[40.0, 36.0]
    ... )
    >>> AlloX().allocate(p).share.tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """

    alpha: float = 1.0

    name: ClassVar[str] = "allox"
    summary: ClassVar[str] = "Minimise the average completion time by an assignment of jobs to GPUs and positions."
    fills_leftover: ClassVar[bool] = False  # a job on a leftover GPU would keep it until it finishes
    time_varying: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not 0 < self.alpha <= 1:
            raise InvalidInput(f"alpha must be in (0, 1], got {self.alpha!r}")

    @property
    def uses(self) -> frozenset[ProblemInput]:
        """Ages only with `alpha` below 1."""
        oldest = {ProblemInput.AGE} if self.alpha < 1 else set()
        return frozenset({ProblemInput.STEPS_REMAINING, ProblemInput.GPU_TYPE_HELD} | oldest)

    def allocate(self, problem: AllocationProblem, solver: Solver | None = None) -> Allocation:  # noqa: ARG002 the protocol's
        """Shares of 0 and 1."""
        refuse_unused(self, problem)
        ways = _Ways(problem)
        share: Floats = np.zeros(problem.fits.shape)
        left = ways.keep_held(share)
        jobs = self._planned(problem, ways, left, share)
        mean_gpus = ways.mean_gpus(jobs, left > 0)
        machines = np.where(left > 0, np.maximum(np.floor(left / mean_gpus), 1.0), 0.0).astype(np.int64)
        plan = least_completion_time(ways.time_s[jobs], ways.gpus[jobs] / mean_gpus, machines)
        ways.start(share, left, jobs, plan.gpu_type)
        average_s = (plan.total_s + float(problem.age_s[jobs].sum())) / max(1, len(jobs))
        return ruled(problem, share, objective=average_s)

    def _planned(self, problem: AllocationProblem, ways: _Ways, left: Floats, share: Floats) -> Ints:
        """Rows of the jobs to plan: those waiting for a type with free GPUs."""
        has_gpus = np.zeros(problem.job_count, dtype=np.bool_)
        has_gpus[problem.member_job[share[problem.member_configuration].any(axis=1)]] = True
        can_start = np.isfinite(ways.time_s) & (left > 0)
        waiting = np.flatnonzero(~has_gpus & can_start.any(axis=1))
        oldest = waiting[np.argsort(-problem.age_s[waiting], kind="stable")]
        jobs = oldest[: max(int(left.sum()), int(self.alpha * len(waiting)), 1)]
        if (left > 0).sum() > 1:
            area = np.where(can_start, ways.time_s * ways.gpus, np.inf).min(axis=1)
            jobs = jobs[np.argsort(area[jobs], kind="stable")][: max(JOBS_MAX, int(JOBS_MAX_PER_GPU * left.sum()))]
        return np.sort(jobs)


class _Ways:
    """Time and GPUs of each job alone on each type that has enough GPUs."""

    def __init__(self, problem: AllocationProblem) -> None:
        self._problem = problem
        fastest = fastest_alone(problem)
        rows = np.maximum(fastest, 0)
        runs = (fastest >= 0) & problem.is_whole[rows, np.arange(len(problem.gpu_types))] & (problem.gpu_counts > 0)
        rate = np.where(runs, problem.rate_alone_steps_per_s, 1.0)
        self._configuration = rows  # (J, T)
        self.time_s = np.where(runs, problem.steps_remaining[:, None] / rate, np.inf)  # (J, T)
        self.gpus = np.where(runs, problem.gpus_occupied[rows], 1.0)  # (J, T)

    def keep_held(self, share: Floats) -> Floats:
        """Sets `share` for jobs that hold a type, and returns the GPUs left of each type, (T,)."""
        held = self._problem.gpu_type_held
        jobs = np.flatnonzero(held >= 0)
        left = self._problem.gpu_counts.copy()
        self._take(share, left, jobs[np.isfinite(self.time_s[jobs, held[jobs]])], held)
        return left

    def mean_gpus(self, jobs: Ints, is_free: Bools) -> float:
        """Mean size of these gangs, each over the types with free GPUs that it can run on; 1 without jobs."""
        if not len(jobs):
            return 1.0
        usable = np.isfinite(self.time_s[jobs]) & is_free
        return float(np.average(self.gpus[jobs], axis=1, weights=usable).mean())

    def start(self, share: Floats, left: Floats, jobs: Ints, gpu_type: Ints) -> None:
        """Sets `share` for the first of `jobs` on their types, until no GPUs are `left`."""
        area = self.time_s[jobs, gpu_type] * self.gpus[jobs, gpu_type]
        order = np.argsort(area, kind="stable")
        types = np.zeros(self._problem.job_count, dtype=np.int64)
        types[jobs] = gpu_type
        self._take(share, left, jobs[order], types)

    def _take(self, share: Floats, left: Floats, jobs: Ints, gpu_type: Ints) -> None:
        for job in jobs.tolist():
            on = int(gpu_type[job])
            if self.gpus[job, on] <= left[on]:
                left[on] -= self.gpus[job, on]
                share[self._configuration[job, on], on] = 1.0
