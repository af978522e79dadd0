"""What policies keep between calls is of a limited size, whatever the number of jobs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gavelpy.model.allocation import MEMORY_BYTES_MAX
from gavelpy.model.problem import AllocationProblem
from gavelpy.policies.base import policy_from


@pytest.mark.parametrize(
    "name",
    [
        "tiresias",
        "tiresias:order=gittins",
        "themis",
        "shockwave",
        "pop:k=2",
        pytest.param("gandiva_fair", marks=pytest.mark.slow),  # trades between 2,000 users
    ],
)
def test_memory_stays_below_its_limit_with_many_long_names_and_the_policy_answers_again(name: str) -> None:
    J = 2_000
    problem = AllocationProblem.of(
        [f"{'n' * 700}-{row}" for row in range(J)],
        ["v100"],
        [J],
        np.ones((J, 1)),
        attained_gpu_s=np.full(J, 60.0),
        age_s=np.full(J, 100.0),
        steps_remaining=np.full(J, 1e4),
    )
    policy = policy_from(name)

    first = policy.allocate(problem)
    again = policy.allocate(replace(problem, memory=first.memory))

    assert MEMORY_BYTES_MAX / 4 < len(first.memory) <= MEMORY_BYTES_MAX
    assert len(again.memory) <= MEMORY_BYTES_MAX
    assert first.job_share.sum() == again.job_share.sum() == J
