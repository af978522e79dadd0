"""Every registered policy satisfies the contract on every problem of the family."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from gavelpy.model.allocation import Allocation
from gavelpy.model.problem import AllocationProblem
from gavelpy.policies.base import Policy, registered
from gavelpy.policies.contract import CHECKS, QUICK_CHECKS, Check, problems
from gavelpy.solve.solver import Solver

NOT_RANDOM = frozenset({"all oversized", "one job", "no jobs", "equal jobs", "no GPUs"})  # the same for every seed
PROBLEMS = {
    (name, seed): p for seed in (0, 1) for name, p in problems(seed).items() if not seed or name not in NOT_RANDOM
}
COSTLY = "strategy_proof"  # solves a problem for each job; every run has only the smaller problems
LARGER_THAN = 6  # jobs
CASES = [
    pytest.param(
        problem,
        policy,
        id=f"{name}, seed {seed}-{policy}",
        marks=[pytest.mark.slow] * (seed > 0 or (policy == COSTLY and problem.job_count > LARGER_THAN)),
    )
    for (name, seed), problem in PROBLEMS.items()
    for policy in registered()
]


class Remembering:
    """A policy that caches its answers: most checks compare an answer with the answer to another problem."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._answers: dict[AllocationProblem, Allocation] = {}

    def __getattr__(self, name: str) -> Any:  # attributes that the policy declares
        return getattr(self._policy, name)

    def allocate(self, problem: AllocationProblem, solver: Solver | None = None) -> Allocation:
        if problem not in self._answers:
            self._answers[problem] = self._policy.allocate(problem, solver)
        return self._answers[problem]


def keep_contract(policy: Policy, problem: AllocationProblem, checks: Mapping[str, Check]) -> None:
    """Raises AssertionError with the violated clause."""
    checks["deterministic"](policy, problem)
    remembering: Any = Remembering(policy)
    for name, check in checks.items():
        if name != "deterministic":
            check(remembering, problem)


@pytest.mark.parametrize(("problem", "policy_name"), CASES)
def test_policy_keeps_its_contract(
    problem: AllocationProblem, policy_name: str, request: pytest.FixtureRequest
) -> None:
    is_slow = request.node.get_closest_marker("slow") is not None

    # The slow tests, and test_uses.py for problems in which all inputs are given, change one input at a time.
    keep_contract(registered()[policy_name](), problem, CHECKS if is_slow else QUICK_CHECKS)


def test_problems_left_out_are_those_of_another_seed() -> None:
    assert all(_bytes(problems(1)[name]) == _bytes(problems(0)[name]) for name in NOT_RANDOM)


def _bytes(problem: AllocationProblem) -> list[bytes]:
    return [problem.member_rate_steps_per_s.tobytes(), problem.capacity.tobytes(), problem.gpus_asked.tobytes()]
