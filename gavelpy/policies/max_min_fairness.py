"""Max-min fairness: the original Gavel's default policy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gavelpy.model.allocation import Allocation
from gavelpy.model.explanation import Goal
from gavelpy.model.problem import AllocationProblem
from gavelpy.policies.base import COUNTED, Guarantee, ProblemInput, equal_share_rate
from gavelpy.solve.ladder import solve
from gavelpy.solve.objective import MaxMin
from gavelpy.solve.solver import Solver


@dataclass(frozen=True)
class MaxMinFairness:
    """Maximise  min_j  g_j r_j(x) / (w_j r_j(x_equal)).   Gavel (OSDI '20), section 4.1.

    r_j(x)     steps/s of job j under shares x
    x_equal    the job alone, its time split over the GPU types in proportion to their GPUs
    g_j, w_j   GPUs requested, weight

    Blind to GPU types, this is least attained service (LAS): a job's level is then its share of time. The remaining
    capacity maximises the sum of levels, so no usable GPU is idle (the paper leaves this to the solver). Jobs that
    cannot run are left out; with them the paper's minimum would be zero.

    >>> p = AllocationProblem.of(["a", "b"], ["v100", "k80"], [1, 1], [[4.0, 1.0], [3.0, 3.0]])
    >>> MaxMinFairness().allocate(p).share.round(6).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """

    name: ClassVar[str] = "max_min_fairness"
    summary: ClassVar[str] = "Maximise the worst job's rate relative to an equal share of every GPU type."
    fills_leftover: ClassVar[bool] = True
    time_varying: ClassVar[bool] = False
    uses: ClassVar[frozenset[ProblemInput]] = frozenset({ProblemInput.WEIGHT, ProblemInput.PAIRS, *COUNTED})
    optimises: ClassVar[Goal] = Goal("the worst job's share")
    guarantees: ClassVar[frozenset[Guarantee]] = frozenset({Guarantee.PARETO_EFFICIENT, Guarantee.SHARING_INCENTIVE})

    def allocate(self, problem: AllocationProblem, solver: Solver | None = None) -> Allocation:
        """Shares whose certificate's objective is the worst job's level."""
        scale = problem.gpus_asked / (problem.weight * equal_share_rate(problem))
        return solve(problem, MaxMin(scale), solver)
