"""The compiled queue against numpy: the same shares for 2,000 random problems."""

from __future__ import annotations

import numpy as np

from gavelpy.model.problem import AllocationProblem
from gavelpy.policies import queue, queue_kernels

PROBLEMS = 2000


def random_problem(rng: np.random.Generator) -> AllocationProblem:
    J, T = int(rng.integers(1, 30)), int(rng.integers(1, 5))
    return AllocationProblem.of(
        [str(job) for job in range(J)],
        [f"type{kind}" for kind in range(T)],
        rng.integers(0, 12, T),
        rng.choice([0.0, 1.0, 1.0, 2.0, 3.0], (J, T)),
        gpus=rng.choice([1, 1, 2, 4, 8], J),
        gpu_type_held=rng.integers(-1, T, J),
    )


def test_the_compiled_queue_gives_the_shares_of_numpy() -> None:
    rng = np.random.default_rng(0)
    for number in range(PROBLEMS):
        problem = random_problem(rng)
        order = rng.permutation(problem.job_count)

        plain = queue.take_gpus_alone(problem, order, blocks=number % 2 == 0)
        compiled = queue_kernels.take_gpus_alone(problem, order, blocks=number % 2 == 0)

        assert plain.tolist() == compiled.tolist()
