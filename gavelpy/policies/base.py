"""What a policy is, and the figures that several of them share."""

from __future__ import annotations

from typing import ClassVar, Protocol

import numpy as np

from gavelpy.model.allocation import Allocation, Certificate
from gavelpy.model.arrays import Floats
from gavelpy.model.marginal_value import Goal
from gavelpy.model.problem import AllocationProblem
from gavelpy.policies.guarantees import Guarantee
from gavelpy.solve.solver import Solver


class Policy(Protocol):
    """A formula with its hyper-parameters: a frozen dataclass, registered under the group `gavelpy.policies`.

    `allocate` is pure: same problem, same bytes, with or without a warm `solver`. Jobs that can run nowhere get no
    share. `gavelpy.policies.contract` holds the checks that every policy must pass.

    A policy that plans with the length of rounds and the cost of a turn has `over_rounds(round_s, turn_s) -> Policy`;
    `planned_over_rounds` calls it.

    Three more declarations are a policy's own choice, so they are no part of the protocol; `goal_of`,
    `guarantees_of` and `varies_with_time` read them:

        optimises: ClassVar[Goal]                 what its prices are told in; a rule has none
        guarantees: ClassVar[frozenset[Guarantee]]    what it promises, a property each (`guarantee_checks`)
        time_varying: ClassVar[bool]                  whether its answer depends on age, attained service, deadlines or
                                                      steps that are done or left; it does unless declared otherwise
    """

    name: ClassVar[str]
    summary: ClassVar[str]  # what it optimises, in a sentence
    fills_leftover: ClassVar[bool]  # whether GPUs that are left over may go to jobs with a share of zero

    def allocate(self, problem: AllocationProblem, solver: Solver | None = None) -> Allocation:
        """Shares of time for every configuration of `problem`."""
        ...  # a protocol's body


def goal_of(policy: Policy | type[Policy]) -> Goal:
    """What the policy declares to optimise, or "the objective"."""
    goal: Goal = getattr(policy, "optimises", Goal())
    return goal


def guarantees_of(policy: Policy | type[Policy]) -> frozenset[Guarantee]:
    """What the policy declares to guarantee, or nothing."""
    guarantees: frozenset[Guarantee] = getattr(policy, "guarantees", frozenset())
    return guarantees


def varies_with_time(policy: Policy | type[Policy]) -> bool:
    """Whether the policy's answer changes while the same jobs run, so that it is to be asked again after some time."""
    varies: bool = getattr(policy, "time_varying", True)
    return varies


def planned_over_rounds(policy: Policy, round_s: float, turn_s: float) -> Policy:
    """The policy for a mechanism of such rounds, in which a turn costs a job `turn_s`, if it plans with them."""
    adapt = getattr(policy, "over_rounds", None)
    planned: Policy = policy if adapt is None else adapt(round_s, turn_s)
    return planned


def equal_share_rate(problem: AllocationProblem) -> Floats:
    """Rate of each job alone with its time split over the types as their GPUs are, (J,): Σ_t rate_t W_t / Σ_t W_t.

    1 where that is zero, for then nothing may be divided by it. Gavel (OSDI '20) section 4.1 calls it X_equal; it
    depends on no other job.
    """
    total = problem.gpu_counts.sum()
    rates: Floats = problem.rate_alone_steps_per_s @ problem.gpu_counts / (total if total > 0 else 1.0)
    return np.where(rates > 0, rates, 1.0)


def ruled(problem: AllocationProblem, share: Floats, objective: float) -> Allocation:
    """The allocation of a rule that optimises nothing: its certificate proves only that it is feasible."""
    used, gpus = problem.gpus_occupied @ share, problem.gpu_counts
    time = np.zeros(problem.job_count)
    np.add.at(time, problem.member_job, share.sum(axis=1)[problem.member_configuration])
    over = ((used - gpus) / np.where(gpus > 0, gpus, 1.0)).max(initial=0.0)
    violation = max(0.0, float(over), float((time - 1.0).max(initial=0.0)))
    certificate = Certificate(objective, objective, gap=0.0, violation=violation, path="rule", solve_s=0.0)
    return Allocation(problem, share, np.full(len(problem.gpu_types), np.nan), certificate)
