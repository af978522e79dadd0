"""Water filling: the levels of an independent exact algorithm, and errors of the original."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gavelpy.model.allocation import Allocation
from gavelpy.model.arrays import Floats
from gavelpy.model.problem import AllocationProblem
from gavelpy.policies.base import equal_share_rate
from gavelpy.policies.max_min_fairness import MaxMinFairness
from gavelpy.policies.max_min_fairness_water_filling import MaxMinFairnessWaterFilling
from tests.policies.golden import excess, read_case
from tests.solve.problems import random_problem

SINGLE = ("00", "02", "04", "06", "08", "10", "12", "14", "16", "18", "28", "30")  # the file has exact levels
PACKED = ("32", "34", "36", "38", "40")
LEVEL = 1e-5  # relative
FEASIBLE = 1e-7


def normalized_rates(allocation: Allocation) -> Floats:
    """thr_i / prop_i of the golden cases."""
    return allocation.rate_steps_per_s / equal_share_rate(allocation.problem)


def levels(allocation: Allocation) -> Floats:
    p = allocation.problem
    return p.gpus_asked * normalized_rates(allocation) / p.weight


@pytest.mark.reference
@pytest.mark.parametrize("case_name", SINGLE)
@pytest.mark.parametrize("key", ["max_min_fairness_water_filling", "max_min_fairness_water_filling_perf"])
def test_levels_are_those_of_the_exact_algorithm(reference_directory: Path, case_name: str, key: str) -> None:
    case = read_case(reference_directory, case_name)
    result = case.result(key)

    allocation = MaxMinFairnessWaterFilling().allocate(case.problem(result["objective"]["throughput_view"]))

    expected = result["exact_water_filling_normalized_tput"]
    np.testing.assert_allclose(normalized_rates(allocation), expected, rtol=LEVEL)
    assert excess(allocation) <= FEASIBLE


@pytest.mark.reference
@pytest.mark.parametrize("case_name", PACKED)
def test_levels_with_pairs_are_those_of_the_exact_algorithm(reference_directory: Path, case_name: str) -> None:
    case = read_case(reference_directory, case_name)

    allocation = MaxMinFairnessWaterFilling().allocate(case.problem())

    expected = case.result("max_min_fairness_water_filling_packed")["exact_water_filling_normalized_tput"]
    np.testing.assert_allclose(normalized_rates(allocation), expected, rtol=LEVEL)
    assert excess(allocation) <= FEASIBLE


@pytest.mark.reference
def test_mixed_gangs_packed_are_right_where_the_original_confuses_rows(reference_directory: Path) -> None:
    case = read_case(reference_directory, "40")

    allocation = MaxMinFairnessWaterFilling().allocate(case.problem())

    original = case.result("max_min_fairness_water_filling_packed")["objective"]["value"]
    assert levels(allocation).min() > 1.3 * original


@pytest.mark.parametrize("seed", range(4))
def test_the_least_level_is_that_of_max_min_fairness(seed: int) -> None:
    problem = random_problem(seed, jobs=40)

    filled, fair = MaxMinFairnessWaterFilling().allocate(problem), MaxMinFairness().allocate(problem)

    assert filled.certificate.objective == pytest.approx(fair.certificate.objective, rel=1e-8)
    assert filled.certificate.objective == pytest.approx(levels(filled).min(), rel=1e-8)
    assert filled.shadow_prices == pytest.approx(fair.shadow_prices, rel=1e-6, abs=1e-9)


def test_weights_count() -> None:
    problem = AllocationProblem.of("abc", ["v100"], [1], [[4.0], [40.0], [4.0]], weight=[1.0, 2.0, 5.0])

    allocation = MaxMinFairnessWaterFilling().allocate(problem)

    assert allocation.share[:, 0] == pytest.approx([1 / 8, 2 / 8, 5 / 8])


def test_job_that_cannot_use_what_is_left_does_not_limit_others() -> None:
    """Two jobs need V100s; the third can use K80s, where max-min alone may leave it at their level."""
    problem = AllocationProblem.of("abc", ["v100", "k80"], [1, 1], [[4.0, 0.0], [4.0, 0.0], [4.0, 4.0]])

    allocation = MaxMinFairnessWaterFilling().allocate(problem)

    assert allocation.rate_steps_per_s == pytest.approx([2, 2, 4])


def test_a_job_at_its_best_rate_leaves_the_rest_to_others() -> None:
    problem = AllocationProblem.of("abc", ["v100"], [2], [[1.0], [4.0], [4.0]], weight=[9.0, 1.0, 1.0])

    allocation = MaxMinFairnessWaterFilling().allocate(problem)

    assert allocation.share[:, 0] == pytest.approx([1, 0.5, 0.5])


def test_blind_jobs_share_time_by_weight_and_gang() -> None:
    problem = AllocationProblem.of("ab", ["v100", "k80"], [2, 2], [[9.0, 1.0], [1.0, 9.0]], gpus=[4, 1])

    share = MaxMinFairnessWaterFilling().allocate(problem.blind_to_type()).job_share.sum(axis=1)

    assert share == pytest.approx([0.75, 1])  # the second cannot use more; the gang has the other 3 of 4 GPUs


def test_twice_the_weight_of_all_changes_no_share() -> None:
    problem = random_problem(3, jobs=12)
    heavier = replace(problem, weight=2 * problem.weight)

    light, heavy = (MaxMinFairnessWaterFilling().allocate(p) for p in (problem, heavier))

    assert heavy.rate_steps_per_s == pytest.approx(light.rate_steps_per_s, rel=1e-9)
    assert heavy.certificate.objective == pytest.approx(light.certificate.objective / 2)
