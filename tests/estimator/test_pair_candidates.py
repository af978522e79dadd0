"""Pairs that a plan may measure: the value of jobs at an allocation's prices, and which pairs represent kinds."""

from __future__ import annotations

import numpy as np
import pytest

from gavelpy.estimator.kinds import Key
from gavelpy.estimator.pairs import Slowdowns
from gavelpy.estimator.probes import PairCandidates, pair_candidates, value_alone
from gavelpy.model.problem import AllocationProblem
from gavelpy.policies.max_min_fairness import MaxMinFairness

ANT, BEE = ("ant", 1), ("bee", 1)
RATES = np.array([[4.0, 1.0], [2.0, 2.0], [3.0, 1.0]])


def candidates(keys: list[Key], running: list[tuple[int, int, int]], left: list[float]) -> PairCandidates:
    kinds = len(dict.fromkeys(keys))
    cells = np.full((kinds, kinds, 2), -0.5)
    slowdowns = Slowdowns(cells, np.ones_like(cells), np.ones(2), np.ones(2))
    there = np.array(running, dtype=np.int64).reshape(-1, 3)
    return pair_candidates(
        keys, slowdowns, np.ones_like(cells), np.exp(cells), np.ones((len(keys), 2)), np.array(left), there
    )


def test_where_nothing_is_packed_a_job_is_worth_its_price_on_the_types_it_uses_and_less_elsewhere() -> None:
    problem = AllocationProblem.of(["a", "b", "c"], ("x", "y"), [1, 1], RATES)
    allocation = MaxMinFairness().allocate(problem)

    worth = value_alone(problem, allocation.share, allocation.shadow_prices)

    assert worth[allocation.share > 1e-6] == pytest.approx(1.0, abs=1e-3)
    assert worth.max() <= 1.0 + 1e-9


def test_a_pair_in_use_is_worth_its_price_and_its_jobs_alone_are_not() -> None:
    alone = AllocationProblem.of(["a", "b"], ("x",), [1], np.array([[1.0], [1.0]]))
    problem = alone.with_pairs([(0, 1)], np.array([[[0.9], [0.9]]]))
    allocation = MaxMinFairness().allocate(problem)

    worth = value_alone(problem, allocation.share, allocation.shadow_prices)

    assert 0.9 * worth.sum() == pytest.approx(1.0, abs=1e-6)


def test_every_two_kinds_stand_once_a_type_by_the_jobs_with_most_left() -> None:
    found = candidates([ANT, BEE, ANT], [], [10.0, 20.0, 30.0])

    assert {(tuple(rows), t) for rows, t in zip(found.rows.tolist(), found.gpu_type.tolist(), strict=True)} == {
        ((2, 0), 0),
        ((2, 0), 1),
        ((2, 1), 0),
        ((2, 1), 1),
    }
    assert found.gpu_s_left.tolist() == [20.0, 20.0, 20.0, 20.0]


def test_kinds_that_run_together_anyway_are_no_candidates() -> None:
    found = candidates([ANT, BEE, ANT], [(1, 0, 0)], [10.0, 20.0, 30.0])

    assert sorted(found.gpu_type.tolist()) == [0, 1, 1]


def test_jobs_of_different_sizes_are_no_candidates() -> None:
    assert not len(candidates([ANT, ("bee", 2)], [], [10.0, 20.0]).rows)
