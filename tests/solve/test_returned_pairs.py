"""Models of pairs that return entries to the pool, against the whole LP."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from gavelpy.model.arrays import Bools
from gavelpy.solve import linear
from gavelpy.solve.ladder import solve
from gavelpy.solve.objective import MaxMin, MaxSum
from gavelpy.solve.packing import column_generation, column_pool
from gavelpy.solve.program import program_of
from gavelpy.solve.solver import Optimum, Run
from tests.solve.packed import distinct


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("is_level", [True, False])
def test_a_model_that_returns_all_it_does_not_need_finds_the_same_sum(
    seed: int, is_level: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem, removed, shrink = distinct(seed, jobs=60), Counter[str](), Run.shrink
    scale = 1 / problem.steps_remaining

    def counted(run: Run, found: Optimum, stays: Bools) -> Optimum:
        removed["entries"] += int(np.count_nonzero(~stays))
        return shrink(run, found, stays)

    monkeypatch.setattr(column_generation, "LOSES", 1e-8)
    monkeypatch.setattr(column_generation, "FEWEST_REMOVED", 1)
    monkeypatch.setattr(Run, "shrink", counted)

    grown = solve(problem, MaxMin(scale) if is_level else MaxSum(scale))
    monkeypatch.setattr(linear, "MANY", 10**9)
    whole = solve(problem, MaxMin(scale) if is_level else MaxSum(scale))

    assert removed["entries"] > 0
    assert (grown.certificate.path, whole.certificate.path) == ("columns", "highs")
    sums = [float(scale @ allocation.rate_steps_per_s) for allocation in (grown, whole)]
    assert sums[0] == pytest.approx(sums[1], rel=1e-8)


def test_an_entry_returns_to_the_pool_only_once() -> None:
    problem = distinct(0, jobs=12)
    program = program_of(problem, 1 / problem.steps_remaining, np.zeros(12), together=False)
    pool = column_pool.Pool(program)
    first = pool.first(None)

    returns = [pool.returned(*first).all(), pool.returned(*first).any()]

    assert returns == [True, False]
