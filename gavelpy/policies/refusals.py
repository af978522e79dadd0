"""Finds what problems and jobs request and a policy does not use, and refuses what it must not ignore."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from gavelpy.errors import InvalidInput
from gavelpy.model.job import JobSpec
from gavelpy.model.problem import AllocationProblem
from gavelpy.policies.base import COUNTED, REQUESTS, Policy, ProblemInput, needs_of, uses_of

_BY_JOBS = (ProblemInput.WEIGHT, ProblemInput.ENTITY, ProblemInput.DEADLINE, ProblemInput.COMPLETION_VALUE)


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


def requests_of(spec: JobSpec) -> list[ProblemInput]:
    """What a job requests of a policy, other than sizes, CPU cores and memory."""
    return [each for each in _BY_JOBS if _states(spec, each)]


def unused_requests(policy: Policy, requests: Iterable[ProblemInput]) -> str:
    """Those that the policy does not use, so that they change nothing, in words; empty = none, or it is not known."""
    uses = uses_of(policy)
    return " and ".join(each.in_words for each in requests if uses is not None and each not in uses)


def refuse_missing(policy: Policy, specs: Iterable[JobSpec]) -> None:
    """Raises InvalidInput if one of these jobs does not state what the policy needs of each."""
    needs = [each for each in _BY_JOBS if each in needs_of(policy)]
    for spec in specs if needs else ():
        if missing := [each for each in needs if not _states(spec, each)]:
            raise InvalidInput(
                f"{missing[0]} must be given with the policy {policy.name}, which needs the {missing[0].in_words} of "
                f"all jobs, got none of job {spec.id!r}"
            )


def refuse_needs(policy: Policy, specs: Sequence[JobSpec]) -> None:
    """Raises InvalidInput if one of these jobs declares CPU cores or memory and the policy does not count them.

    Also if it does not state what the policy needs.
    """
    refuse_missing(policy, specs)
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


def _states(spec: JobSpec, request: ProblemInput) -> bool:
    match request:
        case ProblemInput.WEIGHT:
            return spec.weight != 1.0
        case ProblemInput.DEADLINE:
            return math.isfinite(spec.deadline_s)
        case _:
            return bool(getattr(spec, request))
