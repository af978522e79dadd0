"""Partial allocation: Nash welfare shares, reduced so that no job gains by declaring false rates."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from gavelpy.model.allocation import Allocation
from gavelpy.model.arrays import Floats, Ints
from gavelpy.model.problem import AllocationProblem
from gavelpy.policies.base import Guarantee, ProblemInput, ruled
from gavelpy.policies.refusals import refuse_unused
from gavelpy.solve.ladder import solve
from gavelpy.solve.objective import MaxSumLog
from gavelpy.solve.program import classes_of, singletons
from gavelpy.solve.solver import Solver


@dataclass(frozen=True)
class StrategyProof:
    """f_j x*_j,  where x* are the shares of nash_welfare and  f_j = (Π_{k≠j} (r_k(x*) / r_k(x*_{-j}))^{w_k})^{1 / w_j}.

    x*_{-j}    the shares of nash_welfare without job j
    r_k, w_k   steps/s of job k, its weight

    The partial allocation mechanism of Cole, Gkatzelis and Goel, Mechanism design for fair division (EC '13); as in
    the original Gavel, but with weights, and defined for a single job. Job j's rate f_j r_j is Π_k r_k^{w_k} to the
    power 1 / w_j, divided by a term that does not depend on j's declaration: j gains most if nash_welfare maximises
    the true product. f_j is 1 if j takes nothing from others, and at least 1/e. The withheld GPUs must stay idle. The
    proof assumes jobs that run alone: configurations of several jobs are not used.

    Only the optimal values V and V_{-j} of the welfare problems matter: log f_j = (V - w_j log r_j - V_{-j}) / w_j.
    That is one more problem per class of equal jobs, so the time grows with the square of their number. V_{-j} is a
    certified bound, so the withheld part is never too small. The certificate's objective is the remaining welfare,
    Σ_j w_j log(f_j r_j).

    >>> p = AllocationProblem.of(["a", "b"], ["v100"], [1], [[4.0], [50.0]])
    >>> StrategyProof().allocate(p).share.round(6).tolist()
    [[0.25], [0.25]]
    """

    name: ClassVar[str] = "strategy_proof"
    summary: ClassVar[str] = "Maximise the product of rates, and withhold enough that no job gains by false rates."
    fills_leftover: ClassVar[bool] = False
    time_varying: ClassVar[bool] = False
    uses: ClassVar[frozenset[ProblemInput]] = frozenset({ProblemInput.WEIGHT})
    guarantees: ClassVar[frozenset[Guarantee]] = frozenset({Guarantee.STRATEGY_PROOF})

    def allocate(self, problem: AllocationProblem, solver: Solver | None = None) -> Allocation:
        """Shares of nash_welfare times each job's factor."""
        refuse_unused(self, problem)
        solver = Solver() if solver is None else solver
        lone = np.flatnonzero(problem.member_count == 1)
        alone = _only(problem, lone)
        welfare = solve(alone, MaxSumLog(alone.weight), solver)
        factor = _factors(welfare, solver)
        share = np.zeros(problem.fits.shape)
        share[lone] = welfare.share * factor[alone.member_job, None]
        runs = alone.can_run
        left = alone.weight[runs] @ np.log(factor[runs] * welfare.rate_steps_per_s[runs])
        return ruled(problem, share, objective=float(left))


def _only(problem: AllocationProblem, configurations: Ints) -> AllocationProblem:
    """The problem with these configurations of one job each, in order."""
    members = np.flatnonzero(np.isin(problem.member_configuration, configurations))
    return replace(
        problem,
        demand=problem.demand[configurations],
        member_configuration=np.arange(len(configurations)),
        member_job=problem.member_job[members],
        member_rate_steps_per_s=problem.member_rate_steps_per_s[members],
    )


def _factors(welfare: Allocation, solver: Solver) -> Floats:
    """f of each job, (J,); 1 for jobs that cannot run."""
    problem, J = welfare.problem, welfare.problem.job_count
    features = (problem.rate_alone_steps_per_s, problem.gpus_asked, problem.weight)
    classes = classes_of(np.column_stack(features)) if problem.runs_alone else singletons(J)
    logarithm = np.zeros(len(classes.representative))
    for row, job in enumerate(classes.representative.tolist()):
        if problem.can_run[job]:
            weight, rate = problem.weight[job], welfare.rate_steps_per_s[job]
            others = welfare.certificate.objective - weight * np.log(rate)
            logarithm[row] = (others - _best_without(problem, job, solver)) / weight
    return np.exp(np.minimum(logarithm, 0.0))[classes.of_job]


def _best_without(problem: AllocationProblem, job: int, solver: Solver) -> float:
    """Certified upper bound on Σ_k w_k log r_k without `job`."""
    rates = np.where((problem.member_job == job)[:, None], 0.0, problem.member_rate_steps_per_s)
    without = replace(problem, member_rate_steps_per_s=rates)
    return solve(without, MaxSumLog(problem.weight), solver).certificate.bound
