"""Minimum cost: maximises throughput per dollar; with deadlines, meets as many as possible and explains the others."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from gavelpy.errors import InvalidInput
from gavelpy.model.allocation import Allocation
from gavelpy.model.arrays import Bools, Floats, floats
from gavelpy.model.explanation import Goal
from gavelpy.model.job import JobId
from gavelpy.model.problem import AllocationProblem
from gavelpy.policies.base import ProblemInput, flag
from gavelpy.policies.isolated import fastest_alone
from gavelpy.policies.refusals import refuse_unused
from gavelpy.solve.feasible_floors import KEPT, FeasibleFloors, max_feasible_floors
from gavelpy.solve.ladder import solve
from gavelpy.solve.objective import MaxSum
from gavelpy.solve.solver import Solver

if TYPE_CHECKING:
    import pandas as pd


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
    delivered exactly. The mechanism delivers them to within about a round plus `move_lag_s`, and starts take time.
    Therefore left_j becomes (left_j - slack_s) work, and a job that meets its deadline with less slack gets all that
    it can use. The simulator and the daemon set both parameters if they are not given: slack_s to a round plus the cost
    of a stop and a start plus `move_lag_s` (a round at most), work to the fraction of a round that remains for steps.

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

    @property
    def uses(self) -> frozenset[ProblemInput]:
        """Deadlines and steps only with `deadlines`."""
        on_time = {ProblemInput.DEADLINE, ProblemInput.STEPS_REMAINING} if self.deadlines else set()
        return frozenset({ProblemInput.PRICE, ProblemInput.PAIRS, ProblemInput.RESOURCES} | on_time)

    def over_rounds(self, round_s: float, turn_s: float, move_lag_s: float) -> MinCost:
        """This policy with slack for a round, for the lag of a job and for `turn_s`, a stop and a start, unless set.

        More than a round of slack for the lag met no more deadlines in simulations.
        """
        if not self.deadlines or self.slack_s or self.work < 1:
            return self
        slack_s = round_s + turn_s + min(move_lag_s, round_s)
        return replace(self, slack_s=slack_s, work=max(1.0 - turn_s / round_s, _WORK_MIN))

    def allocate(self, problem: AllocationProblem, solver: Solver | None = None) -> Allocation:
        """Shares whose certificate's objective is the sum, in steps/s per dollar and hour."""
        refuse_unused(self, problem)
        if self.deadlines:
            return self._keeping_deadlines(problem, solver).allocation
        return solve(problem, _per_dollar(problem), solver)

    def verdicts(self, problem: AllocationProblem, solver: Solver | None = None) -> DeadlineVerdicts:
        """Deadline outcomes under the shares of `allocate` with `deadlines` (also if that is not set)."""
        refuse_unused(self, problem)
        found = self._keeping_deadlines(problem, solver)
        return verdicts_of(problem, found.kept, found.most)

    def _keeping_deadlines(self, problem: AllocationProblem, solver: Solver | None) -> FeasibleFloors:
        floors = feasible_deadline_floors(problem, self.slack_s, self.work)
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


class DeadlineVerdict(StrEnum):
    """Outcome of a job's deadline under the current shares."""

    NONE = "none"  # it has no deadline
    KEPT = "kept"  # it gets the rate that it needs
    MISSED = "missed"  # the deadline has passed
    CANNOT_RUN = "cannot_run"  # the job runs on no GPU type of the cluster
    TOO_SLOW = "too_slow"  # the job would be late even with the whole cluster
    CROWDED_OUT = "crowded_out"  # it could be met, but only if at least as many others were missed


@dataclass(frozen=True, eq=False)
class DeadlineVerdicts:
    """The deadline outcome of each job.

    `most` is a proved upper bound on the number of deadlines that any shares meet. Up to a size that the policy
    documents it equals `kept_count`; above, the difference bounds the loss.
    """

    job_ids: tuple[JobId, ...]  # J labels
    verdicts: tuple[DeadlineVerdict, ...]  # J
    needed_steps_per_s: Floats  # (J,) steps remaining over time left; 0 = no deadline, infinite = it has passed
    possible_steps_per_s: Floats  # (J,) the highest rate with the whole cluster
    most: int

    def __post_init__(self) -> None:
        for name in ("needed_steps_per_s", "possible_steps_per_s"):
            object.__setattr__(self, name, floats(name, getattr(self, name), (len(self.job_ids),)))

    @property
    def kept_count(self) -> int:
        """Number of deadlines met."""
        return self.verdicts.count(DeadlineVerdict.KEPT)

    def of(self, verdict: DeadlineVerdict) -> tuple[JobId, ...]:
        """The jobs with that verdict, in row order."""
        return tuple(job for job, mine in zip(self.job_ids, self.verdicts, strict=True) if mine is verdict)

    def by_job(self) -> pd.DataFrame:
        """A frame with one row per job: verdict, needed rate, possible rate."""
        import pandas as pd

        columns = {
            "verdict": [str(verdict) for verdict in self.verdicts],
            "needed_steps_per_s": self.needed_steps_per_s,
            "possible_steps_per_s": self.possible_steps_per_s,
        }
        return pd.DataFrame(columns, index=pd.Index(list(self.job_ids), name="job"))


def needed_steps_per_s(problem: AllocationProblem) -> Floats:
    """Least rate with which each job meets its deadline, (J,); 0 = no deadline, infinite = it has passed."""
    left_s = problem.deadline_s
    rate = np.divide(problem.steps_remaining, left_s, out=np.full(len(left_s), np.inf), where=left_s > 0)
    return np.where(np.isposinf(left_s), 0.0, rate)


def possible_steps_per_s(problem: AllocationProblem) -> Floats:
    """Highest rate of each job with the whole cluster, (J,).

    That is its best type all of the time. A gang larger than its best type has that type, in the papers' sense, for the
    fraction W / g of its time, and its next best types for the rest.
    """
    configuration = fastest_alone(problem)
    here = (configuration >= 0) & (problem.gpu_counts > 0)
    gpus = np.where(here, problem.gpus_occupied[configuration], 1.0)
    rates = np.where(here, problem.rate_alone_steps_per_s, 0.0)
    order = np.argsort(-rates, axis=1, kind="stable")
    room = np.minimum(problem.gpu_counts / gpus, 1.0)
    for resource in range(1, len(problem.resources)):
        need, amount = (
            problem.occupied[configuration, resource],
            problem.row_capacity.reshape(-1, len(room[0]))[resource],
        )
        room = np.minimum(room, np.divide(amount, need, out=np.full(need.shape, np.inf), where=need > 0))
    part = np.take_along_axis(np.where(here, room, 0.0), order, axis=1)
    before = np.cumsum(part, axis=1) - part
    best: Floats = (np.take_along_axis(rates, order, axis=1) * np.clip(1.0 - before, 0.0, part)).sum(axis=1)
    if not problem.runs_alone:  # rates may be higher with a co-located job
        fits = problem.fits[problem.member_configuration]
        np.maximum.at(best, problem.member_job, np.where(fits, problem.member_rate_steps_per_s, 0.0).max(axis=1))
    return np.where(problem.can_run, best, 0.0)


def feasible_deadline_floors(problem: AllocationProblem, slack_s: float = 0.0, work: float = 1.0) -> Floats:
    """Rate floors, (J,), for the deadlines that each job could meet with the whole cluster; 0 = none.

    The floors plan for a finish `slack_s` before the deadline, with the fraction `work` of a job's time spent on steps.
    A job that cannot finish that early even alone gets its highest possible rate as floor.
    """
    needed, possible = needed_steps_per_s(problem), possible_steps_per_s(problem)
    left_s = (problem.deadline_s - slack_s) * work
    planned = np.divide(problem.steps_remaining, left_s, out=np.full(len(left_s), np.inf), where=left_s > 0)
    planned = np.where(needed == 0, 0.0, np.maximum(np.minimum(planned, possible), needed))
    return np.where(needed * KEPT <= possible, planned, 0.0)


def verdicts_of(problem: AllocationProblem, kept: Bools, most: int) -> DeadlineVerdicts:
    """The verdict of each job, given which deadlines are `kept`, (J,)."""
    needed, possible = needed_steps_per_s(problem), possible_steps_per_s(problem)
    reasons = [
        (needed == 0, DeadlineVerdict.NONE),
        (kept, DeadlineVerdict.KEPT),
        (np.isinf(needed), DeadlineVerdict.MISSED),
        (~problem.can_run, DeadlineVerdict.CANNOT_RUN),
        (needed * KEPT > possible, DeadlineVerdict.TOO_SLOW),
    ]
    first = np.select([holds for holds, _ in reasons], list(range(len(reasons))), default=len(reasons))
    names = [*(verdict for _, verdict in reasons), DeadlineVerdict.CROWDED_OUT]
    return DeadlineVerdicts(problem.job_ids, tuple(names[i] for i in first.tolist()), needed, possible, most)


_WORK_MIN = 0.1
