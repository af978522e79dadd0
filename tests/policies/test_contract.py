"""Every registered policy keeps the contract on every problem of the family."""

from __future__ import annotations

import pytest

from gavelpy.model.problem import AllocationProblem
from gavelpy.policies.contract import CHECKS, Check, problems
from gavelpy.policies.registry import registered

PROBLEMS = {f"{name}, seed {seed}": problem for seed in (0, 1) for name, problem in problems(seed).items()}


@pytest.mark.parametrize("policy_name", registered())
@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS)
@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
def test_policy_keeps_its_contract(check: Check, problem: AllocationProblem, policy_name: str) -> None:
    policy = registered()[policy_name]()

    check(policy, problem)  # raises AssertionError with what was promised
