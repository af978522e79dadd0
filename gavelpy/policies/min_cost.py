"""Minimum cost: maximises throughput per dollar, with or without deadlines."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from gavelpy.errors import InvalidInput
from gavelpy.model.allocation import Allocation
from gavelpy.model.arrays import Floats
from gavelpy.model.marginal_value import Goal
from gavelpy.model.problem import AllocationProblem
from gavelpy.policies.deadlines import DeadlineVerdicts, keepable_floors, verdicts_of
from gavelpy.policies.parameters import flag
from gavelpy.solve.feasible_floors import FeasibleFloors, max_feasible_floors
from gavelpy.solve.ladder import solve
from gavelpy.solve.objective import MaxSum
from gavelpy.solve.solver import Solver

_WORK_MIN = 0.1


@dataclass(frozen=True)
class MinCost:
    """Maximise  Σ_j Σ_t r_jt(x) / c_t,  with `deadlines` subject to  r_j(x) >= steps_j / left_j  where feasible.

    r_jt(x)    steps/s of job j on GPU type t under shares x
    c_t        dollars for an hour of one GPU of type t
    steps_j    steps remaining; left_j: seconds to the deadline

    Gavel (OSDI '20), section 4.2, defines the ratio of throughput and cost; like the original's code, this policy uses
    the sum of ratios, which is an LP, and charges a gang the price of one GPU. Each job defines its own step, as in
    max_sum_throughput's raw sum, with the same consequence: without a deadline a job may starve. If no type has a
    price, all cost the same; prices for some types only are refused.

    If not all deadlines can be met, the original drops all of them. This policy meets as many as possible: exactly up
    to 1,000 deadlines, above with a proved bound (solve.feasible_floors). Among equally large sets it prefers early
    jobs, by the sum of their positions in the queue. `verdicts` returns the outcome of each job. A floor is the average
    rate that a job needs from now on, so a deadline that is met at every solve is met in the end if shares are
    delivered exactly. Rounds deliver them to within about a round, and starts take time. Therefore left_j becomes
    (left_j - slack_s) work,  and a job that meets its deadline with less slack gets all that it can use. The simulator
    and the daemon set both parameters if they are not given: slack_s to a round plus the cost of a stop and a start,
    work to the fraction of a round that remains for steps.

    >>> p = AllocationProblem.of(
    ...     ["a", "b"], ["v100"], [1], [[4.0], [4.0]], steps_remaining=[60.0, 90.0], deadline_s=[20.0, 30.0]
    ... )
    >>> MinCost(deadlines=True).verdicts(p).by_job()["verdict"].to_dict()
    {'a': 'kept', 'b': 'crowded_out'}
    """

    deadlines: bool = False
    slack_s: float = 0.0
    work: float = 1.0

    name: ClassVar[str] = "min_cost"
    summary: ClassVar[str] = "Maximise throughput per dollar (deadlines: meet as many of them as possible)."
    fills_leftover: ClassVar[bool] = True
    time_varying: ClassVar[bool] = True
    optimises: ClassVar[Goal] = Goal("the throughput per dollar")

    def __post_init__(self) -> None:
        object.__setattr__(self, "deadlines", flag("deadlines", self.deadlines))
        if not (math.isfinite(self.slack_s) and self.slack_s >= 0):
            raise InvalidInput(f"slack_s must be finite and >= 0, got {self.slack_s!r}")
        if not 0 < self.work <= 1:
            raise InvalidInput(f"work must be in (0, 1], got {self.work!r}")

    def over_rounds(self, round_s: float, turn_s: float) -> MinCost:
        """This policy with slack for this round length and for `turn_s`, the cost of a stop and a start, unless set."""
        if not self.deadlines or self.slack_s or self.work < 1:
            return self
        return replace(self, slack_s=round_s + turn_s, work=max(1.0 - turn_s / round_s, _WORK_MIN))

    def allocate(self, problem: AllocationProblem, solver: Solver | None = None) -> Allocation:
        """Shares whose certificate's objective is the sum, in steps/s per dollar and hour."""
        if self.deadlines:
            return self._keeping_deadlines(problem, solver).allocation
        return solve(problem, _per_dollar(problem), solver)

    def verdicts(self, problem: AllocationProblem, solver: Solver | None = None) -> DeadlineVerdicts:
        """Deadline outcomes under the shares of `allocate` with `deadlines` (also if that is not set)."""
        found = self._keeping_deadlines(problem, solver)
        return verdicts_of(problem, found.kept, found.most)

    def _keeping_deadlines(self, problem: AllocationProblem, solver: Solver | None) -> FeasibleFloors:
        floors = keepable_floors(problem, self.slack_s, self.work)
        return max_feasible_floors(problem, _per_dollar(problem), floors, solver)


def _per_dollar(problem: AllocationProblem) -> MaxSum:
    return MaxSum(np.ones(problem.job_count), gpu_type_worth=_hours_per_dollar(problem))


def _hours_per_dollar(problem: AllocationProblem) -> Floats:
    """GPU-hours of each type per dollar, (T,); 1 if no type has a price, 0 for a type without GPUs or price."""
    price = problem.price_usd_per_gpu_h
    missing = (price == 0) & (problem.gpu_counts > 0)
    if missing.any() and price.any():
        gpu_type = problem.gpu_types[int(np.argmax(missing))]
        raise InvalidInput(f"price_usd_per_gpu_h must be > 0 for every GPU type or 0 for all, got 0 for {gpu_type!r}")
    hours: Floats = np.divide(1.0, price, out=np.zeros(len(price)), where=price > 0)
    return hours if price.any() else np.ones(len(price))
