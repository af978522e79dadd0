"""10,000 random problems over all policies: no failure, no refuted certificate, few far slower than their like.

A few of them in every run, all in `make test-slow`; `python -m benchmarks certainty --policies` says more.
"""

from __future__ import annotations

import pytest

from gavelpy.solve.solver import Solver
from tests.policies.many import POLICIES, PROBLEMS, judged, slow_ones

FEW, BLOCK = 4 * len(POLICIES), 500
SLOW_MAX = 5  # of a block: fillings that had to be polished or fell through the rungs; 19 of all 10,000 at the last run


def test_a_few_random_problems_have_answers_that_hold() -> None:
    solver = Solver()

    verdicts = [judged(number, solver) for number in range(FEW)]

    assert [verdict for verdict in verdicts if verdict.wrong] == []


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, PROBLEMS, BLOCK))
def test_ten_thousand_random_problems_have_answers_that_hold(first: int) -> None:
    solver = Solver()

    verdicts = [judged(number, solver) for number in range(first, first + BLOCK)]

    assert [verdict for verdict in verdicts if verdict.wrong] == []
    assert len(slow_ones(verdicts)) <= SLOW_MAX
