"""Nash welfare: proportional fairness over GPU types."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gavelpy.model.allocation import Allocation
from gavelpy.model.marginal_value import Goal, Transform
from gavelpy.model.problem import AllocationProblem
from gavelpy.policies.guarantees import Guarantee
from gavelpy.solve.ladder import solve
from gavelpy.solve.objective import MaxSumLog
from gavelpy.solve.solver import Solver


@dataclass(frozen=True)
class NashWelfare:
    """Maximise  Σ_j w_j log r_j(x),  the logarithm of the weighted product of rates.   Nash, Econometrica 18 (1950).

    r_j(x)     steps/s of job j under shares x
    w_j        weight

    Whatever unit a job counts its steps in, the shares are the same. At the optimum no other shares raise the weighted
    sum of relative changes, Σ_j w_j Δr_j / r_j <= 0: that is proportional fairness (Kelly, Maulloo and Tan, JORS 49,
    1998). It lies between max_min_fairness, which lifts the worst job at any cost to the rest, and max_sum_throughput,
    which starves it: a job's rate is halved only where the product of the others' at least doubles. Where time, not
    GPUs, is what a job has too little of, it makes room for those who need the GPUs more; so unlike in markets of goods
    alone (Cole, Gkatzelis and Goel, EC '13) somebody may envy, and be slower than with an n-th of everything.

    >>> p = AllocationProblem.of(["a", "b"], ["v100"], [1], [[4.0], [50.0]], weight=[1.0, 3.0])
    >>> NashWelfare().allocate(p).share.round(6).tolist()
    [[0.25], [0.75]]
    """

    name: ClassVar[str] = "nash_welfare"
    summary: ClassVar[str] = "Maximise the weighted product of the jobs' rates (proportional fairness)."
    fills_leftover: ClassVar[bool] = True
    time_varying: ClassVar[bool] = False
    optimises: ClassVar[Goal] = Goal("the geometric mean of rates", Transform.LOGARITHM)
    guarantees: ClassVar[frozenset[Guarantee]] = frozenset({Guarantee.PARETO_EFFICIENT})

    def allocate(self, problem: AllocationProblem, solver: Solver | None = None) -> Allocation:
        """Shares whose certificate's objective is Σ_j w_j log r_j over the jobs that can run."""
        return solve(problem, MaxSumLog(problem.weight), solver)
