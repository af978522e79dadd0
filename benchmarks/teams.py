"""What quotas and guaranteed GPUs of teams cost the solver, against the same problem without them."""

from __future__ import annotations

import time
from statistics import median

import numpy as np

from gavelpy.model.problem import AllocationProblem, Entity
from gavelpy.model.team_limits import TeamLimits
from gavelpy.policies.base import policy_named
from gavelpy.policies.team_rows import allocate_within
from gavelpy.solve.solver import Solver

JOBS, TEAMS, REPEATS = 2048, 10, 5
TYPES = ("v100", "p100", "k80")
CASES = (("no limits", np.inf, 0.0), ("quotas that limit nothing", 1.0, 0.0), ("quotas of 15 %", 0.15, 0.0),
         ("8 % guaranteed", np.inf, 0.08), ("both", 0.15, 0.08))  # fmt: skip


def run() -> None:
    """Prints a line for each policy and each kind of limits."""
    rng = np.random.default_rng(0)
    rates = rng.uniform(1, 10, (JOBS, 3)) * np.array([4, 2, 1])
    gpus = rng.choice([1, 1, 1, 2, 4], JOBS)
    counts = np.round(np.array([0.4, 0.3, 0.3]) * gpus.sum() / 3)
    team = rng.choice(TEAMS, JOBS, p=rng.dirichlet(np.ones(TEAMS)))
    names = tuple(f"t{k}" for k in range(TEAMS))
    entities = [Entity(name, 1.0 + k % 3) for k, name in enumerate(names)]
    ids = [str(k) for k in range(JOBS)]
    problem = AllocationProblem.of(ids, TYPES, counts, rates, gpus=gpus, entity=team, entities=entities)
    for name in ("max_min_fairness", "max_sum_throughput", "hierarchical"):
        policy, plain_s = policy_named(name), 0.0
        allocate_within(policy, problem, None)  # compiled steps are loaded
        for title, quota, part in CASES:
            quotas = np.floor(counts * quota) * np.ones((TEAMS, 1))
            limits = TeamLimits(names, np.full(TEAMS, -1), quotas, np.floor(counts * part) * np.ones((TEAMS, 1)), team)
            limits = limits.usable(problem.gpus_asked, rates > 0)
            times_s = []
            for _ in range(REPEATS):
                began_s = time.process_time()
                answer = allocate_within(policy, problem, limits, Solver())
                times_s.append(time.process_time() - began_s)
            took_s = median(times_s)
            plain_s = plain_s or took_s
            rows = len(answer.problem.resources) - 1
            print(f"{name}, {title}: {took_s:.3f} s of CPU, {took_s / plain_s:.1f} times, {rows} rows", flush=True)
