"""Max-min and max-sum with several sizes and with several resources, against one size on GPUs alone, side by side.

CPU time of the policy on new problems, medians of some runs in turn. The jobs are those of one GPU with all different
rates; the other sizes are 2, 4 and 8 GPUs with efficiencies of 0.6 to 1. With `cpu`, each job also needs 1 to 12 CPU
cores, of 4 for each GPU.
"""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from gavelpy.model.arrays import Floats
from gavelpy.model.problem import AllocationProblem
from gavelpy.policies.base import Policy
from gavelpy.policies.max_min_fairness import MaxMinFairness
from gavelpy.policies.max_sum_throughput import MaxSumThroughput
from gavelpy.solve.solver import Solver

JOBS, LOADS, SIZES = (1_024, 8_192, 131_072), (0.1, 0.33, 0.6), 4
RUNS, RUNS_OF_MANY = 7, 3


def run() -> None:
    """Prints a line for each policy, number of jobs and number of GPUs."""
    print(f"{'policy':20} {'jobs':>8} {'GPUs of a type':>15} {'one size':>10} {'four sizes':>18} {'one size, cpu':>18}")
    for policy in (MaxMinFairness(), MaxSumThroughput(normalised=True)):
        for jobs in JOBS:
            for load in LOADS:
                _line(policy, jobs, load)


def _line(policy: Policy, jobs: int, load: float) -> None:
    one = _with_sizes(jobs, load, 1)
    problems = [one, _with_sizes(jobs, load, SIZES), _with_cpus(one)]
    answers = [policy.allocate(problem, Solver()) for problem in problems]  # compiled steps are loaded here
    taken: list[list[float]] = [[] for _ in problems]
    for _ in range(RUNS if jobs < JOBS[-1] else RUNS_OF_MANY):
        for problem, times in zip(problems, taken, strict=True):
            new, began_s = replace(problem), time.process_time()
            policy.allocate(new, Solver())
            times.append(time.process_time() - began_s)
    ms = [1000.0 * float(np.median(times)) for times in taken]
    assert all(answer.certificate.gap <= 1e-8 for answer in answers)
    ratios = "".join(f"{each:9.1f} ms {each / ms[0]:4.1f} x" for each in ms[1:])
    print(f"{policy.name:20} {jobs:8,} {load:13g} n {ms[0]:7.1f} ms{ratios}", flush=True)


def _with_sizes(jobs: int, load: float, sizes: int) -> AllocationProblem:
    rng = np.random.default_rng(0)
    rates = rng.uniform(0.5, 20.0, (jobs, 1)) * rng.uniform(0.1, 1.0, (jobs, 3))
    problem = AllocationProblem.of(
        [f"j{i}" for i in range(jobs)], "vpk", [int(load * jobs)] * 3, rates, weight=rng.choice([1.0, 1.0, 5.0], jobs)
    )
    gpus = 2.0 ** np.arange(1, sizes)
    efficiency = np.sort(rng.uniform(0.6, 1.0, (jobs, sizes - 1)), axis=1)[:, ::-1]
    faster: Floats = rates[:, None, :] * (gpus * efficiency)[:, :, None]
    return replace(
        problem,
        demand=np.concatenate([problem.demand, np.tile(1000 * gpus, jobs)[:, None]]),
        member_configuration=np.arange(jobs * sizes),
        member_job=np.concatenate([np.arange(jobs), np.repeat(np.arange(jobs), sizes - 1)]),
        member_rate_steps_per_s=np.concatenate([rates, faster.reshape(-1, 3)]),
    )


def _with_cpus(problem: AllocationProblem) -> AllocationProblem:
    cores = np.random.default_rng(1).integers(1, 13, problem.job_count)
    return replace(
        problem,
        resources=("gpu", "cpu"),
        capacity=np.column_stack([problem.capacity, 4 * problem.capacity]),
        demand=np.column_stack([problem.demand, 1000 * cores]),
    )
