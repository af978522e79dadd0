"""Minimum cost: the most throughput per dollar, with or without deadlines."""

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
from gavelpy.solve.keepable import Keepable, keeping_most
from gavelpy.solve.ladder import solve
from gavelpy.solve.objective import MaxSum
from gavelpy.solve.solver import Solver

_WORK_MIN = 0.1


@dataclass(frozen=True)
class MinCost:
    """Maximise  Σ_j Σ_t r_jt(x) / c_t,  with `deadlines` subject to  r_j(x) >= steps_j / left_j  wherever that can be.

    r_jt(x)    steps/s of job j on GPU type t under shares x
    c_t        dollars for an hour of one GPU of type t
    steps_j    steps remaining; left_j: seconds to the deadline

    Gavel (OSDI '20), section 4.2, wants the ratio of throughput and cost; like the original's code we take the sum of
    ratios, which is an LP, and charge a gang the price of one GPU. Steps are the jobs' own, as in max_sum_throughput's
    raw sum, with the same consequence: without a deadline a job may starve. Where no type has a price all cost the
    same; prices of some types only are refused.

    Deadlines that cannot all be kept: the original then drops every one. Here as many as possible are kept, exactly up
    to 1,000 deadlines and with a proved limit above (gavelpy.solve.keepable); among sets of that size one whose members
    came early, by the sum of their places in the queue. `verdicts` says job by job what became of each. A floor is the
    job's average rate from now on, so a deadline that is kept at every solve is kept in the end, if shares are kept
    exactly. Rounds keep them to about a round, and starts take time: there left_j is  (left_j - slack_s) work,  and a
    deadline that is kept with less to spare gets all that its job can use. The simulator and the daemon set
    both (a round and the cost of a turn; the part of a round that it leaves) where they are not given.

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
    summary: ClassVar[str] = "Maximise throughput per dollar (deadlines: keep as many of them as possible)."
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
        """This policy for a mechanism of such rounds, in which a turn costs a job `turn_s`; what was given stays."""
        if not self.deadlines or self.slack_s or self.work < 1:
            return self
        return replace(self, slack_s=round_s + turn_s, work=max(1.0 - turn_s / round_s, _WORK_MIN))

    def allocate(self, problem: AllocationProblem, solver: Solver | None = None) -> Allocation:
        """Shares whose certificate's objective is the sum, in steps/s per dollar and hour."""
        if self.deadlines:
            return self._keeping_deadlines(problem, solver).allocation
        return solve(problem, _per_dollar(problem), solver)

    def verdicts(self, problem: AllocationProblem, solver: Solver | None = None) -> DeadlineVerdicts:
        """Which deadlines the shares of `allocate` keep, and why not the others; as with `deadlines`, set or not."""
        found = self._keeping_deadlines(problem, solver)
        return verdicts_of(problem, found.kept, found.most)

    def _keeping_deadlines(self, problem: AllocationProblem, solver: Solver | None) -> Keepable:
        floors = keepable_floors(problem, self.slack_s, self.work)
        return keeping_most(problem, _per_dollar(problem), floors, solver)


def _per_dollar(problem: AllocationProblem) -> MaxSum:
    return MaxSum(np.ones(problem.job_count), gpu_type_worth=_hours_per_dollar(problem))


def _hours_per_dollar(problem: AllocationProblem) -> Floats:
    """GPU-hours of each type for a dollar, (T,); 1 where no type has a price, 0 for a type without GPUs or price."""
    price = problem.price_usd_per_gpu_h
    missing = (price == 0) & (problem.gpu_counts > 0)
    if missing.any() and price.any():
        gpu_type = problem.gpu_types[int(np.argmax(missing))]
        raise InvalidInput(f"price_usd_per_gpu_h must be > 0 for every GPU type or 0 for all, got 0 for {gpu_type!r}")
    hours: Floats = np.divide(1.0, price, out=np.zeros(len(price)), where=price > 0)
    return hours if price.any() else np.ones(len(price))
