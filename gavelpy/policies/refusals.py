"""Finds what problems and jobs request and a policy does not use, and refuses what it must not ignore."""

from __future__ import annotations

from collections.abc import Iterable

from gavelpy.errors import InvalidInput
from gavelpy.model.job import JobSpec
from gavelpy.model.problem import AllocationProblem
from gavelpy.policies.base import COUNTED, REQUESTS, Policy, ProblemInput, uses_of


def not_used(policy: Policy, problem: AllocationProblem) -> list[ProblemInput]:
    """What the problem requests and the policy does not use, so that it changes nothing."""
    uses = uses_of(policy)
    if uses is None:
        return []
    return [each for each in REQUESTS if each not in uses and each.is_given(problem)]


def refuse_unused(policy: Policy, problem: AllocationProblem) -> None:
    """Raises InvalidInput if the problem has sizes or further resources and the policy does not use them."""
    if problem.is_plain and not problem.has_sizes:
        return
    uses = uses_of(policy) or frozenset()
    for each in COUNTED:
        if each not in uses and each.is_given(problem):
            of = f": {', '.join(problem.resources[1:])}" if each is ProblemInput.RESOURCES else ""
            raise InvalidInput(f"policy {policy.name!r} does not use {each.in_words}, got a problem with them{of}")


def refuse_needs(policy: Policy, specs: Iterable[JobSpec]) -> None:
    """Raises InvalidInput if one of these jobs declares CPU cores or memory and the policy does not count them."""
    needy = [spec for spec in specs if spec.cpus_per_gpu or spec.memory_gib_per_gpu]
    if needy and ProblemInput.RESOURCES not in (uses_of(policy) or ()):
        name = "cpus_per_gpu" if needy[0].cpus_per_gpu else "memory_gib_per_gpu"
        raise InvalidInput(
            f"{name} must be 0 with the policy {policy.name}, which does not count CPU cores and memory "
            f"(`gavel policies`), got {getattr(needy[0], name):g} of job {needy[0].id!r}"
        )


def refuse_sizes(policy: Policy, specs: Iterable[JobSpec]) -> None:
    """Raises InvalidInput if one of these jobs has several sizes and the policy does not use them."""
    several = next((spec for spec in specs if spec.sizes), None)
    if several is not None and ProblemInput.SIZES not in (uses_of(policy) or ()):
        raise InvalidInput(
            f"policy {policy.name!r} does not use sizes (`gavel policies`): gpus must be one number, "
            f"got {', '.join(map(str, several.sizes))} for job {several.id!r}"
        )
