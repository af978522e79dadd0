"""2,000 random problems of every kind, each with a right and certified answer; all of them in `make test-slow`.

`python -m benchmarks certainty` counts which rung answered.
"""

from __future__ import annotations

import pytest

from gavelpy.solve.solver import Solver
from tests.solve.many import PROBLEMS, SOLVERS, judged

BLOCK, SLOW_BLOCK, FEW = 50, 100, 150

every_solver = pytest.mark.parametrize("make_solver", SOLVERS.values(), ids=SOLVERS)


@every_solver
@pytest.mark.parametrize("first", range(0, FEW, BLOCK))
def test_a_few_random_problems_have_right_and_certified_answers(first: int, make_solver: type[Solver]) -> None:
    solver = make_solver()

    verdicts = [judged(seed, solver) for seed in range(first, first + BLOCK)]

    assert [verdict for verdict in verdicts if not verdict.by] == []


@pytest.mark.slow
@every_solver
@pytest.mark.parametrize("first", range(0, PROBLEMS, SLOW_BLOCK))
def test_two_thousand_random_problems_have_right_and_certified_answers(first: int, make_solver: type[Solver]) -> None:
    solver = make_solver()

    verdicts = [judged(seed, solver) for seed in range(first, first + SLOW_BLOCK)]

    assert [verdict for verdict in verdicts if not verdict.by] == []
