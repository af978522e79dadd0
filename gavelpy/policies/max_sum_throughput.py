"""Maximum total throughput: as many steps as possible over all jobs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from gavelpy.model.allocation import Allocation
from gavelpy.model.explanation import Goal
from gavelpy.model.problem import AllocationProblem
from gavelpy.policies.base import COUNTED, Guarantee, ProblemInput, equal_share_rate, flag
from gavelpy.solve.ladder import solve
from gavelpy.solve.objective import MaxSum
from gavelpy.solve.solver import Solver


@dataclass(frozen=True)
class MaxSumThroughput:
    """Maximise  Σ_j r_j(x),  or with `normalised`  Σ_j w_j r_j(x) / r_j(x_equal).   Gavel (OSDI '20), section 4.2.

    r_j(x)     steps/s of job j under shares x
    x_equal    the job alone, its time split over the GPU types in proportion to their GPUs
    w_j        weight; the raw sum ignores it

    The raw sum is the original's (whose code computes a scale but does not use it). It can starve jobs: each job
    defines its own step, so GPUs go to the jobs with the most steps/s, and a job with large batches and few steps gets
    nothing while one with small batches is present. In the example, a step of b is 100 times as much work as a step of
    a, and the k80 slows b down more; still the raw sum gives b the k80. With `normalised`, rates are relative to an
    equal share of every type, so the units cancel and each type goes to the jobs that it speeds up most. Neither sum
    guarantees a job any share. For fairness see max_min_fairness; nash_welfare is between the two.

    >>> p = AllocationProblem.of(["a", "b"], ["v100", "k80"], [1, 1], [[300.0, 200.0], [2.0, 0.2]])
    >>> MaxSumThroughput().allocate(p).share.round(6).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    >>> MaxSumThroughput(normalised=True).allocate(p).share.round(6).tolist()
    [[0.0, 1.0], [1.0, 0.0]]
    """

    normalised: bool = False

    name: ClassVar[str] = "max_sum_throughput"
    summary: ClassVar[str] = "Maximise the sum of the jobs' rates in steps/s (normalised: relative to an equal share)."
    fills_leftover: ClassVar[bool] = True
    time_varying: ClassVar[bool] = False
    optimises: ClassVar[Goal] = Goal("the sum of rates")
    guarantees: ClassVar[frozenset[Guarantee]] = frozenset({Guarantee.PARETO_EFFICIENT})

    def __post_init__(self) -> None:
        object.__setattr__(self, "normalised", flag("normalised", self.normalised))

    @property
    def uses(self) -> frozenset[ProblemInput]:
        """Weights only with `normalised`."""
        return frozenset({ProblemInput.PAIRS, *COUNTED} | ({ProblemInput.WEIGHT} if self.normalised else set()))

    def allocate(self, problem: AllocationProblem, solver: Solver | None = None) -> Allocation:
        """Shares whose certificate's objective is the sum, in steps/s or in equal shares."""
        gain = problem.weight / equal_share_rate(problem) if self.normalised else np.ones(problem.job_count)
        return solve(problem, MaxSum(gain), solver)
