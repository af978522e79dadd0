"""10,000 random problems over all policies: no failure, no refuted certificate, none far slower than similar ones.

A few of them in every run, all in `make test-slow`; `python -m benchmarks certainty --policies` prints details.
"""

from __future__ import annotations

import importlib
from functools import partial

import pytest

from gavelpy.solve.solver import Solver
from tests.policies.many import POLICIES, PROBLEMS, judged, random_case, slow_ones

FEW, BLOCK = 4 * len(POLICIES), 500
FILLING = "max_min_fairness_water_filling"


def test_a_few_random_problems_have_answers_that_hold() -> None:
    solver = Solver()

    verdicts = [judged(number, solver) for number in range(FEW)]

    assert [verdict for verdict in verdicts if verdict.wrong] == []


@pytest.mark.parametrize(
    ("policy", "number", "of_its_size"),
    [
        pytest.param(FILLING, 2231, [1367, 6695, 8711, 9127, 9159, 9879], id="water filling"),
        pytest.param(FILLING, 8135, [3799, 5287, 6967, 7047, 8807, 9623], id="water filling of near-equal jobs"),
        pytest.param("hierarchical", 5012, [2260, 2292, 3396, 3860, 5764, 6004], id="hierarchical"),
        pytest.param("min_cost:deadlines=1", 6431, [1007, 2287, 6815, 7535, 7759, 8847], id="deadlines"),
    ],
)
def test_the_slowest_random_problems_take_no_more_than_twenty_times_the_median(
    policy: str, number: int, of_its_size: list[int]
) -> None:
    """Earlier, they took 50 to 150 times the median: rung after rung failed, or branch and bound searched in itself."""
    importlib.import_module("gavelpy.solve.prices.numba_search")  # a process loads it once, for whichever solve
    judge = partial(judged, case=partial(random_case, policy=policy))
    for _ in range(2):  # the first time loads what is used of it
        solver = Solver()
        verdicts = [judge(each, solver) for each in [*of_its_size, number]]

    assert slow_ones(verdicts, judge) == []


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, PROBLEMS, BLOCK))
def test_ten_thousand_random_problems_have_answers_that_hold(first: int) -> None:
    solver = Solver()

    verdicts = [judged(number, solver) for number in range(first, first + BLOCK)]

    assert [verdict for verdict in verdicts if verdict.wrong] == []
    assert slow_ones(verdicts, judged) == []
