"""Many random problems against a plain LP of another making: `make test-slow`."""

from __future__ import annotations

import numpy as np
import pytest

from gavelpy.solve.ladder import solve
from gavelpy.solve.objective import MaxMin
from gavelpy.solve.solver import Solver
from tests.solve.oracle import best_level
from tests.solve.problems import random_problem

BLOCK = 100


@pytest.mark.slow
@pytest.mark.parametrize("block", range(20))
def test_two_thousand_problems_reach_the_optimum_of_a_plain_lp(block: int) -> None:
    solver, wrong = Solver(), []
    for seed in range(block * BLOCK, (block + 1) * BLOCK):
        rng = np.random.default_rng(seed)
        problem = random_problem(seed, jobs=int(rng.integers(1, 60)), types=int(rng.integers(1, 8)))
        scale = problem.gpus_asked / (
            rng.uniform(1e-3, 1e3, problem.job_count) * problem.rate_alone_steps_per_s.max(axis=1)
        )
        found, best = solve(problem, MaxMin(scale), solver).certificate.objective, best_level(problem, scale)
        wrong += [(seed, found, best)] * (abs(found - best) > 1e-6 * best)

    assert wrong == [], "(seed, ours, the plain LP's)"
