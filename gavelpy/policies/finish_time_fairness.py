"""Finish-time fairness: minimises the worst ratio of a job's finish time to that on its own part of the cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from gavelpy.model.allocation import Allocation
from gavelpy.model.arrays import Floats
from gavelpy.model.explanation import Goal, Transform
from gavelpy.model.problem import AllocationProblem
from gavelpy.policies.base import COUNTED, Guarantee, ProblemInput, flag
from gavelpy.policies.isolated import lone_configurations
from gavelpy.solve.ladder import solve
from gavelpy.solve.objective import MinMaxFinishTime
from gavelpy.solve.solver import Solver


@dataclass(frozen=True)
class FinishTimeFairness:
    """Minimise  max_j  ρ_j = (a_j + n_j / r_j(x)) / (h_j + n_j / i_j).   Themis (NSDI '20) 3; Gavel (OSDI '20) 4.2.

    r_j(x)     steps/s of job j under shares x
    a_j, n_j   its age in s, its steps remaining
    i_j        its rate alone on its part of the GPUs of every type: 1 / n of them, n the jobs that can run
    h_j        time that the steps done so far would have taken on its part (booked as they are done)

    As in Themis and Gavel, weights have no effect. With `weighted` the parts are  w_j / Σ_k w_k  instead, and ρ_j <= 1
    still means that the job is no worse off than on its own part. A job of weight 2 is then owed about twice the rate,
    as under max-min fairness, but not more than it can use, and only ratios of weights count. (Dividing ρ by the weight
    would achieve neither, as no share lowers the part of ρ that is age.) The history h_j is recorded for equal parts;
    the ratio of the present rates on both parts converts it.

    The certificate's objective is 1 / max ρ_j. A job that has waited long may have the worst ratio at any share. It
    then runs at its best rate, and the others are balanced among themselves; in the papers and the original it
    determines the shares of all.

    >>> p = AllocationProblem.of("ab", ["v100"], [1], [[4.0], [3.0]], steps_remaining=[400.0, 90.0], age_s=[0.0, 25.0])
    >>> allocation = FinishTimeFairness().allocate(p)
    >>> allocation.share.round(6).tolist(), round(1 / allocation.certificate.objective, 6)
    ([[0.4], [0.6]], 1.25)
    """

    weighted: bool = False

    name: ClassVar[str] = "finish_time_fairness"
    summary: ClassVar[str] = "Minimise the worst ratio of finish time to that on a part of the cluster of one's own."
    fills_leftover: ClassVar[bool] = True
    time_varying: ClassVar[bool] = True
    uses: ClassVar[frozenset[ProblemInput]] = frozenset(
        {ProblemInput.STEPS_REMAINING, ProblemInput.AGE, ProblemInput.ISOLATED, ProblemInput.PAIRS, *COUNTED}
    )
    relative_to_cluster: ClassVar[bool] = True  # with twice the GPUs the part for comparison doubles, too
    optimises: ClassVar[Goal] = Goal("the worst job's finish-time ratio", Transform.RECIPROCAL, "lower")
    guarantees: ClassVar[frozenset[Guarantee]] = frozenset({Guarantee.SHARING_INCENTIVE, Guarantee.PARETO_EFFICIENT})

    def __post_init__(self) -> None:
        object.__setattr__(self, "weighted", flag("weighted", self.weighted))

    def allocate(self, problem: AllocationProblem, solver: Solver | None = None) -> Allocation:
        """Shares whose certificate's objective is 1 / the worst finish-time ratio."""
        on_part_s = isolated_s(problem, weighted=self.weighted)
        return solve(problem, MinMaxFinishTime(problem.steps_remaining, problem.age_s, on_part_s), solver)


def isolated_s(problem: AllocationProblem, *, weighted: bool = False) -> Floats:
    """Time from submission to finish of each job on its own part of the cluster, (J,): h_j + n_j / i_j above.

    1 for jobs that cannot run: they have no part.
    """
    owed = _rate_on_part(problem, problem.can_run / max(1, int(problem.can_run.sum())))
    steps = steps_in_all(problem)
    if weighted:
        weight = np.where(problem.can_run, problem.weight, 0.0)
        owed = _rate_on_part(problem, weight / (weight.sum() or 1.0))
    return np.divide(steps, owed, out=np.ones(problem.job_count), where=owed > 0)


def steps_in_all(problem: AllocationProblem) -> Floats:
    """Steps of each job, (J,): those remaining, and what it did, as its isolated time at the present isolated rate."""
    equal = _rate_on_part(problem, problem.can_run / max(1, int(problem.can_run.sum())))
    return np.asarray(problem.isolated_s * equal + problem.steps_remaining)


def _rate_on_part(problem: AllocationProblem, part: Floats) -> Floats:
    """Rate of each job alone on a part (J,) of the GPUs of every type, at most all the time, (J,). As in `isolated`."""
    share = part[:, None] * problem.gpu_counts / problem.gpus_asked[:, None]
    if len(problem.resources) > 1:
        room = _room_of_others(problem)
        share = np.minimum(share, np.multiply(part[:, None], room, where=np.isfinite(room), out=share.copy()))
    share /= np.maximum(share.sum(axis=1, keepdims=True), 1.0)
    rates: Floats = (problem.rate_as_requested_steps_per_s * share).sum(axis=1)
    return rates


def _room_of_others(problem: AllocationProblem) -> Floats:
    """Share of each type that all of its other resources would allow each job as requested, (J, T)."""
    lone = lone_configurations(problem)
    need = np.zeros((problem.job_count, 1, len(problem.resources) - 1))
    need[problem.can_run, 0] = problem.occupied[lone, 1:]
    amount = problem.row_capacity.reshape(len(problem.resources), -1)[1:].T
    room: Floats = np.divide(amount, need, where=need > 0, out=np.full((len(need), *amount.shape), np.inf)).min(axis=2)
    return room
