"""Every registered policy keeps the contract on every problem of the family."""

from __future__ import annotations

import pytest

from gavelpy.model.problem import AllocationProblem
from gavelpy.policies.contract import CHECKS, Check, problems
from gavelpy.policies.registry import registered

PROBLEMS = {f"{name}, seed {seed}": problem for seed in (0, 1) for name, problem in problems(seed).items()}
DEAR = "strategy_proof"  # solves a problem for each job, and has one seed in every run
CASES = [
    pytest.param(problem, policy, id=f"{name}-{policy}", marks=[pytest.mark.slow] * (policy == DEAR and "1" in name))
    for name, problem in PROBLEMS.items()
    for policy in registered()
]


@pytest.mark.parametrize(("problem", "policy_name"), CASES)
@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
def test_policy_keeps_its_contract(check: Check, problem: AllocationProblem, policy_name: str) -> None:
    policy = registered()[policy_name]()

    check(policy, problem)  # raises AssertionError with what was promised
