"""Max-min fairness, repeated: what the worst-off jobs leave is divided among the others by the same rule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gavelpy.model.allocation import Allocation
from gavelpy.model.explanation import Goal
from gavelpy.model.problem import AllocationProblem
from gavelpy.policies.base import COUNTED, Guarantee, ProblemInput, equal_share_rate
from gavelpy.solve.ladder import solve
from gavelpy.solve.objective import MaxMinLexicographic
from gavelpy.solve.solver import Solver


@dataclass(frozen=True)
class MaxMinFairnessWaterFilling:
    """Maximise the least  g_j r_j(x) / (w_j r_j(x_equal)),  then the second least, and so on.   Gavel (OSDI '20), 4.1.

    r_j(x)     steps/s of job j under shares x
    x_equal    the job alone, its time split over the GPU types in proportion to their GPUs
    g_j, w_j   GPUs requested, weight

    All levels rise together (water filling). A job is saturated when it can rise only if a job at the same or a lower
    level falls; the others keep rising. The levels are unique. The original's MILP may stop too many jobs (with 1,024
    jobs it leaves GPUs idle); here shadow prices identify the saturated jobs and prove the result. Jobs that cannot run
    are left out. The certificate's objective, bound and shadow prices are those of the lowest level.

    >>> p = AllocationProblem.of(["a", "b", "c"], ["v100", "k80"], [1, 1], [[4.0, 0.0], [4.0, 0.0], [0.0, 3.0]])
    >>> MaxMinFairnessWaterFilling().allocate(p).share.round(6).tolist()
    [[0.5, 0.0], [0.5, 0.0], [0.0, 1.0]]
    """

    name: ClassVar[str] = "max_min_fairness_water_filling"
    summary: ClassVar[str] = (
        "Maximise the worst job's rate relative to an equal share, then the next worst's, and so on."
    )
    fills_leftover: ClassVar[bool] = True
    time_varying: ClassVar[bool] = False
    uses: ClassVar[frozenset[ProblemInput]] = frozenset({ProblemInput.WEIGHT, ProblemInput.PAIRS, *COUNTED})
    optimises: ClassVar[Goal] = Goal("the worst job's share")
    guarantees: ClassVar[frozenset[Guarantee]] = frozenset({Guarantee.PARETO_EFFICIENT, Guarantee.SHARING_INCENTIVE})

    def allocate(self, problem: AllocationProblem, solver: Solver | None = None) -> Allocation:
        """Shares in which no job can gain except at the cost of a job at the same or a lower level."""
        scale = problem.gpus_asked / (problem.weight * equal_share_rate(problem))
        return solve(problem, MaxMinLexicographic(scale), solver)
