"""Allocations of the original Gavel: its problems, and optima of the same problems by an independent solver."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gavelpy.policies.base import equal_share_rate
from gavelpy.policies.fifo import Fifo
from gavelpy.policies.isolated import Isolated
from gavelpy.policies.max_min_fairness import MaxMinFairness
from gavelpy.policies.min_makespan import MinMakespan
from tests.policies.golden import excess, least_level, makespan_s, read_case
from tests.solve.oracle import best_level, best_level_by_cvxpy

pytestmark = pytest.mark.reference

SINGLE = ("00", "02", "04", "06", "08", "10", "12", "14", "16", "18", "20", "22", "24", "26", "28", "30")
PACKED = ("32", "34", "36", "38", "40")
NO_V100_RATE = ("12", "16", "26", "28")  # a job or the cluster has none: the file has no blind makespan there
WRONG_OPTIMUM = ("10", "14", "22")  # of the aware makespan: the file's own is 0.2 to 0.3 % too long
OVERSIZED_GANGS = ("08", "10", "12", "18", "22")
RELATIVE = 1e-6
FEASIBLE = 1e-7


@pytest.mark.parametrize("case_name", SINGLE)
@pytest.mark.parametrize("key", ["max_min_fairness", "max_min_fairness_perf"])
def test_max_min_fairness_reaches_the_independent_optimum(reference_directory: Path, case_name: str, key: str) -> None:
    case = read_case(reference_directory, case_name)
    objective = case.result(key)["objective"]

    allocation = MaxMinFairness().allocate(case.problem(objective["throughput_view"]))

    assert least_level(allocation) == pytest.approx(objective["optimum_by_HiGHS"], rel=RELATIVE)
    assert allocation.certificate.objective == pytest.approx(objective["optimum_by_HiGHS"], rel=RELATIVE)
    assert excess(allocation) <= FEASIBLE


@pytest.mark.parametrize(
    ("case_name", "key"),
    [(name, "min_total_duration_perf") for name in SINGLE if name not in WRONG_OPTIMUM]
    + [(name, "min_total_duration") for name in SINGLE if name not in NO_V100_RATE],
)
def test_min_makespan_reaches_the_independent_optimum(reference_directory: Path, case_name: str, key: str) -> None:
    case = read_case(reference_directory, case_name)
    objective = case.result(key)["objective"]

    allocation = MinMakespan().allocate(case.problem(objective["throughput_view"]))

    assert makespan_s(allocation) == pytest.approx(objective["optimum_by_HiGHS"], rel=RELATIVE)
    assert 1 / allocation.certificate.objective == pytest.approx(objective["optimum_by_HiGHS"], rel=RELATIVE)
    assert excess(allocation) <= FEASIBLE


@pytest.mark.parametrize("case_name", WRONG_OPTIMUM)
def test_min_makespan_beats_an_optimum_that_is_none(reference_directory: Path, case_name: str) -> None:
    case = read_case(reference_directory, case_name)
    problem = case.problem()
    claimed_s = case.result("min_total_duration_perf")["objective"]["optimum_by_HiGHS"]

    allocation = MinMakespan().allocate(problem)

    by_interior_point = best_level_by_cvxpy(problem, 1e6 / problem.steps_remaining, "ECOS") / 1e6
    assert makespan_s(allocation) < 0.9981 * claimed_s
    assert excess(allocation) <= FEASIBLE
    assert makespan_s(allocation) == pytest.approx(1 / best_level(problem, 1 / problem.steps_remaining), rel=RELATIVE)
    assert makespan_s(allocation) == pytest.approx(1 / by_interior_point, rel=RELATIVE)


@pytest.mark.parametrize("case_name", PACKED)
def test_packed_max_min_fairness_reaches_the_independent_optimum(reference_directory: Path, case_name: str) -> None:
    case = read_case(reference_directory, case_name)

    allocation = MaxMinFairness().allocate(case.problem())

    optimum = case.result("max_min_fairness_packed")["objective"]["optimum_by_HiGHS"]
    assert least_level(allocation) == pytest.approx(optimum, rel=RELATIVE)
    assert excess(allocation) <= FEASIBLE


@pytest.mark.parametrize("case_name", PACKED)
def test_packed_min_makespan_reaches_the_independent_optimum(reference_directory: Path, case_name: str) -> None:
    case = read_case(reference_directory, case_name)

    allocation = MinMakespan().allocate(case.problem())

    optimum = case.result("min_total_duration_packed")["objective"]["optimum_by_HiGHS"]
    assert makespan_s(allocation) == pytest.approx(optimum, rel=RELATIVE)
    assert excess(allocation) <= FEASIBLE


@pytest.mark.parametrize("case_name", SINGLE)
def test_isolated_gives_the_original_shares(reference_directory: Path, case_name: str) -> None:
    case = read_case(reference_directory, case_name)

    allocation = Isolated().allocate(case.problem())

    np.testing.assert_allclose(allocation.share, case.shares("isolated"), atol=RELATIVE)


@pytest.mark.parametrize("case_name", SINGLE)
def test_fifo_gives_the_shares_of_the_original_fifo_perf(reference_directory: Path, case_name: str) -> None:
    case = read_case(reference_directory, case_name)

    allocation = Fifo().allocate(case.problem())

    np.testing.assert_allclose(allocation.share, case.shares("fifo_perf"), atol=RELATIVE)


@pytest.mark.parametrize("case_name", NO_V100_RATE)
def test_blind_makespan_has_an_answer_where_the_original_has_none(reference_directory: Path, case_name: str) -> None:
    case = read_case(reference_directory, case_name)
    problem = case.problem().blind_to_type()

    allocation = MinMakespan().allocate(problem)

    assert (allocation.rate_steps_per_s[problem.can_run] > 0).all()
    assert excess(allocation) <= FEASIBLE


@pytest.mark.parametrize("case_name", OVERSIZED_GANGS)
def test_whole_gangs_get_nothing_of_a_type_too_small_for_them(reference_directory: Path, case_name: str) -> None:
    case = read_case(reference_directory, case_name)
    relaxed = case.problem()
    problem = relaxed.with_whole_gangs()

    allocation = MaxMinFairness().allocate(problem)

    scale = problem.gpus_asked / (problem.weight * equal_share_rate(problem))
    assert (MaxMinFairness().allocate(relaxed).share[~relaxed.is_whole] > 0).any()  # as the original does
    assert (allocation.share[~relaxed.is_whole] == 0).all()
    assert allocation.certificate.objective == pytest.approx(best_level(problem, scale), rel=RELATIVE)


@pytest.mark.parametrize("case_name", ["10", "12"])
def test_whole_gangs_do_not_block_fifo_for_ever(reference_directory: Path, case_name: str) -> None:
    case = read_case(reference_directory, case_name)
    problem = case.problem().with_whole_gangs()

    allocation = Fifo().allocate(problem)

    assert (allocation.share[~problem.can_run] == 0).all()
    assert allocation.share.sum() > case.shares("fifo_perf").sum()


@pytest.mark.parametrize("case_name", ["06", "14", "20", "22", "24"])
def test_blind_fifo_does_not_give_away_more_gpus_than_there_are(reference_directory: Path, case_name: str) -> None:
    case = read_case(reference_directory, case_name)

    allocation = Fifo().allocate(case.problem().blind_to_type())

    assert case.result("fifo")["metrics"]["max_capacity_excess"] > 0  # the original over-allocates
    assert excess(allocation) == 0


def test_mixed_gangs_packed_are_right_where_the_original_confuses_rows(reference_directory: Path) -> None:
    case = read_case(reference_directory, "40")

    allocation = MaxMinFairness().allocate(case.problem())

    assert case.result("max_min_fairness_packed")["objective"]["value"] < 1e-9
    assert least_level(allocation) > 0.2574
    assert allocation.job_share.sum(axis=1).max() <= 1 + FEASIBLE


def test_makespan_is_exact_where_the_original_stops_early(reference_directory: Path) -> None:
    cases = [read_case(reference_directory, name) for name in SINGLE]

    ours = np.array([makespan_s(MinMakespan().allocate(case.problem())) for case in cases])

    theirs = np.array([case.result("min_total_duration_perf")["objective"]["value"] for case in cases])
    assert (ours <= theirs * (1 + RELATIVE)).all()
    assert (theirs / ours).max() > 1.02
