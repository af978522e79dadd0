"""Marginal values as text: goals, transforms and sentences."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gavelpy.errors import InvalidInput
from gavelpy.model.allocation import Allocation, Certificate
from gavelpy.model.explanation import Goal, Transform, marginal_value_sentences, relative_gain
from gavelpy.model.problem import AllocationProblem

WORST = Goal("the worst job's share")
MAKESPAN = Goal("the makespan", Transform.RECIPROCAL, "shorter")
MEAN_RATE = Goal("the geometric mean of the jobs' rates", Transform.LOGARITHM)


def make_allocation(price: float, *, objective: float = 0.5, weight: Any = 1.0) -> Allocation:
    problem = AllocationProblem.of(["a", "b", "stuck"], ["V100"], [1], [[4.0], [3.0], [0.0]], weight=weight)
    proof = Certificate(objective, objective, gap=0.0, violation=0.0, path="highs", solve_s=0.0)
    return Allocation(problem, np.zeros((3, 1)), [price], proof)  # type: ignore[arg-type]  # a list does


@pytest.mark.parametrize(
    ("price", "goal", "sentence"),
    [
        (0.009, WORST, "one more V100 raises the worst job's share by up to 1.8 %"),
        (0.3, WORST, "one more V100 raises the worst job's share by up to 60 %"),
        (7.5, WORST, "one more V100 raises the worst job's share by up to 1,500 %"),
        (1e-6, WORST, "one more V100 raises the worst job's share by up to 0.001 %"),
        (1e-7, WORST, "one more V100 raises the worst job's share by up to 0.001 %"),
        (0.0, WORST, "one more V100 does not raise the worst job's share"),
        (1e-12, WORST, "one more V100 does not raise the worst job's share"),
        (0.5, MAKESPAN, "one more V100 makes the makespan up to 50 % shorter"),
        (0.5 * 0.012 / 0.988, MAKESPAN, "one more V100 makes the makespan up to 1.2 % shorter"),
        (0.0, MAKESPAN, "one more V100 does not make the makespan shorter"),
        (2 * math.log(1.07), MEAN_RATE, "one more V100 raises the geometric mean of the jobs' rates by up to 7 %"),
        (0.25, None, "one more V100 raises the objective by up to 50 %"),
    ],
)
def test_marginal_value_is_a_sentence(price: float, goal: Goal | None, sentence: str) -> None:
    assert marginal_value_sentences(make_allocation(price), goal) == [sentence]


def test_a_rule_has_no_prices_to_tell() -> None:
    allocation = make_allocation(math.nan)

    assert marginal_value_sentences(allocation, WORST) == []
    assert np.isnan(relative_gain(allocation, WORST)).all()


def test_gain_from_zero_is_in_units_of_the_objective() -> None:
    allocation = make_allocation(0.25, objective=0.0)

    assert relative_gain(allocation, WORST).tolist() == [math.inf]
    assert marginal_value_sentences(allocation, WORST) == [
        "one more V100 raises the worst job's share from zero to at most 0.25"
    ]


def test_nothing_gained_on_nothing_is_no_gain() -> None:
    assert relative_gain(make_allocation(0.0, objective=0.0), WORST).tolist() == [0.0]
    assert relative_gain(make_allocation(0.0, objective=0.0), MAKESPAN).tolist() == [0.0]


def test_a_makespan_without_end_ends_with_the_first_gpu() -> None:
    assert relative_gain(make_allocation(0.25, objective=0.0), MAKESPAN).tolist() == [1.0]


def test_logarithms_are_of_the_mean_over_the_jobs_that_run_by_weight() -> None:
    allocation = make_allocation(4 * math.log(1.5), weight=[1.0, 3.0, 100.0])

    assert relative_gain(allocation, MEAN_RATE) == pytest.approx([0.5])


def test_a_sum_of_logarithms_may_be_negative() -> None:
    allocation = make_allocation(2 * math.log(1.5), objective=-7.0)

    assert relative_gain(allocation, MEAN_RATE) == pytest.approx([0.5])


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"name": " "}, "name of a goal must be words, got ' '"),
        ({"better": ""}, "better of a goal must be words, got ''"),
        ({"transform": "aloud"}, "transform must be one of identity, reciprocal, logarithm, got 'aloud'"),
    ],
)
def test_empty_goal_is_refused(fields: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InvalidInput, match=complaint):
        replace(WORST, **fields)


def test_a_reading_may_be_given_by_its_name() -> None:
    assert Goal("the makespan", "reciprocal", "shorter") == MAKESPAN  # type: ignore[arg-type]  # a string does
