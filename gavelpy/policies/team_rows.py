"""A policy's allocation within the quotas of teams, and with what is guaranteed to them left for their jobs.

Each quota is a row of the problem: the jobs of a team need their GPUs of it (see `model.team_limits`). Any policy that
counts resources keeps to it, and prices it. What is guaranteed makes more rows than can be listed, so the policy is
called again with those that its answer exceeds, until it exceeds none. An optimum over fewer rows that keeps to all of
them is an optimum over all of them, and its certificate holds for it.
"""

from __future__ import annotations

from gavelpy.errors import InvalidInput
from gavelpy.model.allocation import Allocation
from gavelpy.model.problem import AllocationProblem
from gavelpy.model.team_limits import TeamLimits
from gavelpy.model.team_problem import TeamProblem
from gavelpy.policies.base import Policy, ProblemInput, uses_of
from gavelpy.solve.solver import Solver


def allocate_within(
    policy: Policy, problem: AllocationProblem, limits: TeamLimits | None, solver: Solver | None = None
) -> Allocation:
    """The policy's allocation within these limits; None = without any.

    The allocation's problem has the rows of teams that limit it as further resources, with their prices.
    """
    if limits is None:
        return policy.allocate(problem, solver)
    check_counts_teams(policy)
    given = TeamProblem(limits.fitted(TeamProblem(limits, problem).capacity), problem)
    rows = given.quotas()
    while True:
        answer = policy.allocate(given.with_rows(rows), solver)
        more = [row for row in given.exceeded(answer.share) if row not in rows]
        if not more:
            return answer
        rows += more


def check_counts_teams(policy: Policy) -> None:
    """Raises InvalidInput for a policy that would ignore quotas and guaranteed GPUs of teams."""
    if ProblemInput.RESOURCES not in (uses_of(policy) or ()):
        raise InvalidInput(
            f"policy {policy.name!r} does not use {ProblemInput.RESOURCES.in_words}, "
            "so it cannot keep to quotas and guaranteed GPUs of teams"
        )
