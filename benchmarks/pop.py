"""POP against the exact answer: CPU time of the policy, and what is lost of its objective.

`python -m benchmarks.pop [JOBS ...]` prints one row for each policy, number of jobs and number of parts: medians of
three random problems with distinct jobs, after one problem that compiles and loads what is needed.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

import numpy as np

from gavelpy.model.allocation import Allocation
from gavelpy.model.arrays import Floats
from gavelpy.model.problem import AllocationProblem
from gavelpy.policies.base import Policy, equal_share_rate, policy_from
from gavelpy.solve.solver import Solver

SEEDS = (0, 1, 2)
PARTS = (2, 4, 8, 16)
PER_JOB = 0.5  # GPUs


def scaled(answer: Allocation) -> Floats:
    p = answer.problem
    return answer.rate_steps_per_s * p.gpus_asked / (p.weight * equal_share_rate(p))


# The objective of each policy, as a number of which more is better.
OBJECTIVES: dict[str, Callable[[Allocation], float]] = {
    "max_min_fairness": lambda answer: float(scaled(answer).min()),
    "max_min_fairness_water_filling": lambda answer: float(scaled(answer).mean()),
    "max_sum_throughput": lambda answer: float(answer.rate_steps_per_s.sum()),
    "finish_time_fairness": lambda answer: float(scaled(answer).min()),  # of new jobs: 1 / ρ
    "nash_welfare": lambda answer: float(np.exp(np.log(scaled(answer)).mean())),
}


def random_problem(jobs: int, seed: int) -> AllocationProblem:
    rng = np.random.default_rng(seed)
    rates = rng.uniform(1.0, 20.0, (jobs, 1)) * rng.uniform(0.1, 1.0, (jobs, 3))
    counts = np.maximum(1, np.rint(np.full(3, PER_JOB * jobs / 3)))
    return AllocationProblem.of(
        [f"j{row}" for row in range(jobs)], ["v100", "p100", "k80"], counts, rates,
        gpus=rng.choice([1, 2, 4, 8], jobs, p=[0.7, 0.1, 0.15, 0.05]), steps_remaining=rng.uniform(1e3, 1e6, jobs),
    )  # fmt: skip


def measured(policy: Policy, problem: AllocationProblem) -> tuple[float, Allocation]:
    """CPU seconds with a new solver, and the answer."""
    began_s = time.process_time()
    answer = policy.allocate(problem, Solver())
    return time.process_time() - began_s, answer


def main(sizes: list[int]) -> None:
    for jobs in sizes:
        for name, objective in OBJECTIVES.items():
            measured(policy_from(name), random_problem(jobs, len(SEEDS)))
            problems = [random_problem(jobs, seed) for seed in SEEDS]
            exact = [measured(policy_from(name), problem) for problem in problems]
            exact_s = statistics.median(spent for spent, _ in exact)
            print(f"{name:32} {jobs:7} jobs  exact {exact_s:8.3f} s")
            for k in PARTS:
                found = [measured(policy_from(f"pop:k={k}:policy={name}"), problem) for problem in problems]
                ratio = statistics.median(whole / spent for (spent, _), (whole, _) in zip(found, exact, strict=True))
                losses = [
                    1 - objective(ours) / objective(best) for (_, ours), (_, best) in zip(found, exact, strict=True)
                ]
                print(f"{'':32} {k:7} parts {ratio:8.2f} x as fast, loss {statistics.median(losses):8.3%}")


if __name__ == "__main__":
    main([int(text) for text in sys.argv[1:]] or [512, 2048])
