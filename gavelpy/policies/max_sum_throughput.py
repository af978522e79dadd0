"""Maximum total throughput: as many steps as possible, whoever makes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from gavelpy.model.allocation import Allocation
from gavelpy.model.marginal_value import Goal
from gavelpy.model.problem import AllocationProblem
from gavelpy.policies.base import equal_share_rate
from gavelpy.policies.guarantees import Guarantee
from gavelpy.policies.parameters import flag
from gavelpy.solve.ladder import solve
from gavelpy.solve.objective import MaxSum
from gavelpy.solve.solver import Solver


@dataclass(frozen=True)
class MaxSumThroughput:
    """Maximise  Σ_j r_j(x),  or with `normalised`  Σ_j w_j r_j(x) / r_j(x_equal).   Gavel (OSDI '20), section 4.2.

    r_j(x)     steps/s of job j under shares x
    x_equal    its time split over the GPU types as their GPUs are, alone
    w_j        weight; the raw sum knows none

    The raw sum is the original's (its code works out a scale and does not use it), and it starves: a step is whatever
    a job calls one, so a GPU goes to the job with the most steps/s on it, and a job with large batches, few steps and
    the same need gets nothing for as long as one with small batches is there. Below, b's steps are 100 times as much
    work as a's, and b is the one that a k80 slows down; raw, it has the k80 and a the v100. Normalised, a job counts
    relative to what an equal share of every type would give it, so the units cancel and types go to whom they speed up.
    Neither promises anybody anything: the least productive job may still get nothing. For fairness see
    max_min_fairness, and nash_welfare between the two.

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

    def allocate(self, problem: AllocationProblem, solver: Solver | None = None) -> Allocation:
        """Shares whose certificate's objective is the sum, in steps/s or in equal shares."""
        relative = problem.weight / equal_share_rate(problem)
        return solve(problem, MaxSum(relative if self.normalised else np.ones(problem.job_count)), solver)
