"""2,000 random problems of every kind, each with a right and certified answer; all of them in `make test-slow`.

`python -m benchmarks certainty` counts the answers of each rung.
"""

from __future__ import annotations

import pytest

from gavelpy.solve.solver import Solver
from tests.solve.many import PROBLEMS, WAYS, judged, sizes_of

BLOCK, SLOW_BLOCK, FEW = 45, 100, 90

every_way = pytest.mark.parametrize("way", WAYS)


@every_way
@pytest.mark.parametrize("first", range(0, FEW, BLOCK))
def test_a_few_random_problems_have_right_and_certified_answers(first: int, way: str) -> None:
    solver = Solver()

    with sizes_of(way):
        verdicts = [judged(seed, solver) for seed in range(first, first + BLOCK)]

    assert [verdict for verdict in verdicts if not verdict.by] == []


@every_way
@pytest.mark.parametrize("seed", [65, 171, 667, 831, 1251, 1401, 3615, 6854])
def test_random_problems_that_once_had_no_right_answer_have_one(seed: int, way: str) -> None:
    with sizes_of(way):
        verdict = judged(seed, Solver())

    assert verdict.by


@pytest.mark.slow
@every_way
@pytest.mark.parametrize("first", range(0, PROBLEMS, SLOW_BLOCK))
def test_two_thousand_random_problems_have_right_and_certified_answers(first: int, way: str) -> None:
    solver = Solver()

    with sizes_of(way):
        verdicts = [judged(seed, solver) for seed in range(first, first + SLOW_BLOCK)]

    assert [verdict for verdict in verdicts if not verdict.by] == []
