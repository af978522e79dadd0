"""Random queues of jobs that wait for GPUs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from gavelpy.model.problem import AllocationProblem


def random_queue(
    seed: int, *, jobs: int, gpu_counts: Sequence[int], gpus: npt.ArrayLike = 1, only: Sequence[int] | None = None
) -> AllocationProblem:
    """Jobs of all lengths, each with its own rates and age; if `only` is given, just these of them."""
    rng, types = np.random.default_rng(seed), len(gpu_counts)
    rates, steps, age_s = rng.uniform(1.0, 20.0, (jobs, types)), 10 ** rng.uniform(1, 4, jobs), rng.uniform(0, 99, jobs)
    rows = list(range(jobs)) if only is None else list(only)
    return AllocationProblem.of(
        [f"job-{row}" for row in rows],
        [f"type-{i}" for i in range(types)],
        gpu_counts,
        rates[rows],
        gpus=gpus,
        steps_remaining=steps[rows],
        age_s=age_s[rows],
    )
