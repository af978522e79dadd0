"""Max-min fairness to the last job: what the worst leaves is divided as fairly again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gavelpy.model.allocation import Allocation
from gavelpy.model.marginal_value import Goal
from gavelpy.model.problem import AllocationProblem
from gavelpy.policies.base import equal_share_rate
from gavelpy.policies.guarantees import Guarantee
from gavelpy.solve.ladder import solve
from gavelpy.solve.objective import MaxMinLexicographic
from gavelpy.solve.solver import Solver


@dataclass(frozen=True)
class MaxMinFairnessWaterFilling:
    """Maximise the least  g_j r_j(x) / (w_j r_j(x_equal)),  then the second least, and so on.   Gavel (OSDI '20), 4.1.

    r_j(x)     steps/s of job j under shares x
    x_equal    its time split over the GPU types as their GPUs are, alone
    g_j, w_j   GPUs asked for, weight

    All levels rise together, like water; a job stops where it could rise only if one no better off fell, and the others
    rise on. The levels are unique. The original's MILP looks for the jobs that stop and may stop too many (with 1,024
    jobs it leaves GPUs idle); here prices say which do, and prove it.
    Jobs that can run nowhere are left out. The certificate's objective, bound and prices are those of the least level.

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
    optimises: ClassVar[Goal] = Goal("the worst job's share")
    guarantees: ClassVar[frozenset[Guarantee]] = frozenset({Guarantee.PARETO_EFFICIENT, Guarantee.SHARING_INCENTIVE})

    def allocate(self, problem: AllocationProblem, solver: Solver | None = None) -> Allocation:
        """Shares in which nobody can gain but at the cost of somebody no better off."""
        scale = problem.gpus_asked / (problem.weight * equal_share_rate(problem))
        return solve(problem, MaxMinLexicographic(scale), solver)
