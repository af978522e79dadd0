"""Minimum makespan: minimises the time until the last of the current jobs finishes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gavelpy.model.allocation import Allocation
from gavelpy.model.explanation import Goal, Transform
from gavelpy.model.problem import AllocationProblem
from gavelpy.policies.base import COUNTED, Guarantee, ProblemInput
from gavelpy.solve.ladder import solve
from gavelpy.solve.objective import MaxMin
from gavelpy.solve.solver import Solver


@dataclass(frozen=True)
class MinMakespan:
    """Minimise  max_j  steps_j / r_j(x)   as   maximise  min_j  r_j(x) / steps_j.   Gavel (OSDI '20), section 4.2.

    r_j(x)     steps/s of job j under shares x
    steps_j    steps remaining

    The certificate's objective is 1 / makespan, in 1/s. The original bisects on the makespan and stops up to 5 % above
    the optimum; the max-min form is one exact LP.

    >>> p = AllocationProblem.of(["a", "b"], ["v100"], [1], [[4.0], [4.0]], steps_remaining=[300.0, 100.0])
    >>> MinMakespan().allocate(p).share.round(6).tolist()
    [[0.75], [0.25]]
    """

    name: ClassVar[str] = "min_makespan"
    summary: ClassVar[str] = "Minimise the time until the last of the current jobs finishes."
    fills_leftover: ClassVar[bool] = True
    time_varying: ClassVar[bool] = True
    uses: ClassVar[frozenset[ProblemInput]] = frozenset({ProblemInput.STEPS_REMAINING, ProblemInput.PAIRS, *COUNTED})
    optimises: ClassVar[Goal] = Goal("the makespan", Transform.RECIPROCAL, "shorter")
    guarantees: ClassVar[frozenset[Guarantee]] = frozenset({Guarantee.PARETO_EFFICIENT})

    def allocate(self, problem: AllocationProblem, solver: Solver | None = None) -> Allocation:
        """Shares whose certificate's objective is 1 / makespan."""
        return solve(problem, MaxMin(1.0 / problem.steps_remaining), solver)
