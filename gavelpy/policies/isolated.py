"""Isolated: each of n jobs gets an n-th of every GPU type. The baseline of finish-time fairness."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from gavelpy.model.allocation import Allocation
from gavelpy.model.arrays import Floats, Ints
from gavelpy.model.problem import AllocationProblem
from gavelpy.policies.base import Guarantee, ProblemInput, ruled
from gavelpy.policies.refusals import refuse_unused
from gavelpy.solve.solver import Solver


@dataclass(frozen=True)
class Isolated:
    """x_jt = (W_t / n) / g_j,  a job's row divided by its sum if that exceeds 1.   Themis (NSDI '20), section 2.

    W_t    GPUs of type t
    n      jobs that can run
    g_j    GPUs of job j

    The original Gavel's formula. A job's part of a type on which it cannot run stays idle. Jobs that cannot run at all
    have no part and do not count in n (the original counts them). The certificate's objective is the GPUs in use. Of
    each further resource, every job has an n-th, too: x_jt is at most that over its demand. Configurations of several
    jobs are not used, and jobs with several sizes are refused.

    >>> p = AllocationProblem.of(["a", "b"], ["v100", "k80"], [1, 1], [[4.0, 1.0], [3.0, 2.0]])
    >>> Isolated().allocate(p).share.tolist()
    [[0.5, 0.5], [0.5, 0.5]]
    """

    name: ClassVar[str] = "isolated"
    summary: ClassVar[str] = "Give every job an equal part of every GPU type, used or not."
    fills_leftover: ClassVar[bool] = True
    time_varying: ClassVar[bool] = False
    uses: ClassVar[frozenset[ProblemInput]] = frozenset({ProblemInput.RESOURCES})
    guarantees: ClassVar[frozenset[Guarantee]] = frozenset(
        {Guarantee.SHARING_INCENTIVE, Guarantee.ENVY_FREE, Guarantee.STRATEGY_PROOF}
    )

    def allocate(self, problem: AllocationProblem, solver: Solver | None = None) -> Allocation:  # noqa: ARG002 the protocol's
        """Equal parts of the cluster for all jobs."""
        refuse_unused(self, problem)
        share = equal_parts(problem, lone_configurations(problem))
        return ruled(problem, share, objective=float((problem.gpus_occupied @ share).sum()))


def lone_configurations(problem: AllocationProblem) -> Ints:
    """Row of the first configuration of each job alone, for jobs that can run, in job order."""
    lone = np.flatnonzero(problem.member_count[problem.member_configuration] == 1)
    jobs, first = np.unique(problem.member_job[lone], return_index=True)
    rows: Ints = problem.member_configuration[lone[first]][problem.can_run[jobs]]
    return rows


def equal_parts(problem: AllocationProblem, configurations: Ints) -> Floats:
    """Shares (C, T) that divide each resource of each type equally among n configurations with disjoint jobs.

    (W_t / n) / g,  or less for the resource of which a configuration needs more; its row is divided by its sum if that
    exceeds 1.
    """
    counts = problem.row_capacity.reshape(len(problem.resources), -1)
    part = counts[0] / max(1, len(configurations)) / problem.gpus_occupied[configurations, None]
    for amount, need in zip(counts[1:], problem.occupied[configurations, 1:].T, strict=True):
        room = np.divide(
            amount / max(1, len(configurations)), need[:, None], where=need[:, None] > 0, out=part + np.inf
        )
        part = np.minimum(part, room)
    share: Floats = np.zeros(problem.fits.shape)
    share[configurations] = part / np.maximum(part.sum(axis=1, keepdims=True), 1.0)
    return share


def fastest_alone(problem: AllocationProblem) -> Ints:
    """Row of the configuration in which each job alone is fastest on each type, (J, T); -1 = it cannot run there.

    Ties: the first. The number of GPUs is ignored: a type may have too few.
    """
    lone = np.flatnonzero(problem.member_count[problem.member_configuration] == 1)[::-1]  # the first overwrites
    jobs, rates = problem.member_job[lone], problem.member_rate_steps_per_s[lone]
    best = (rates > 0) & (rates == problem.rate_alone_steps_per_s[jobs])
    fastest = np.full((problem.job_count, len(problem.gpu_types)), -1)
    member, gpu_type = np.nonzero(best)
    fastest[jobs[member], gpu_type] = problem.member_configuration[lone[member]]
    return fastest
