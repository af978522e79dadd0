"""Nash welfare: proportional fairness over GPU types."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gavelpy.model.allocation import Allocation
from gavelpy.model.explanation import Goal, Transform
from gavelpy.model.problem import AllocationProblem
from gavelpy.policies.base import COUNTED, Guarantee, ProblemInput
from gavelpy.solve.ladder import solve
from gavelpy.solve.objective import MaxSumLog
from gavelpy.solve.solver import Solver


@dataclass(frozen=True)
class NashWelfare:
    """Maximise  Σ_j w_j log r_j(x),  the logarithm of the weighted product of rates.   Nash, Econometrica 18 (1950).

    r_j(x)     steps/s of job j under shares x
    w_j        weight

    The shares do not depend on the unit of a job's steps. At the optimum no change of shares raises the weighted sum of
    relative changes, Σ_j w_j Δr_j / r_j <= 0: proportional fairness (Kelly, Maulloo and Tan, JORS 49, 1998). The policy
    is between max_min_fairness, which raises the worst job at any cost to the others, and max_sum_throughput, which may
    starve it: a job's rate is halved only if the product of the other rates at least doubles. Jobs limited by their
    time, not by GPUs, leave GPUs to others; so, unlike in markets of goods (Cole, Gkatzelis and Goel, EC '13), a job
    may envy another or be slower than with an n-th of every type.

    >>> p = AllocationProblem.of(["a", "b"], ["v100"], [1], [[4.0], [50.0]], weight=[1.0, 3.0])
    >>> NashWelfare().allocate(p).share.round(6).tolist()
    [[0.25], [0.75]]
    """

    name: ClassVar[str] = "nash_welfare"
    summary: ClassVar[str] = "Maximise the weighted product of the jobs' rates (proportional fairness)."
    fills_leftover: ClassVar[bool] = True
    time_varying: ClassVar[bool] = False
    uses: ClassVar[frozenset[ProblemInput]] = frozenset({ProblemInput.WEIGHT, ProblemInput.PAIRS, *COUNTED})
    optimises: ClassVar[Goal] = Goal("the geometric mean of rates", Transform.LOGARITHM)
    guarantees: ClassVar[frozenset[Guarantee]] = frozenset({Guarantee.PARETO_EFFICIENT})

    def allocate(self, problem: AllocationProblem, solver: Solver | None = None) -> Allocation:
        """Shares whose certificate's objective is Σ_j w_j log r_j over the jobs that can run."""
        return solve(problem, MaxSumLog(problem.weight), solver)
