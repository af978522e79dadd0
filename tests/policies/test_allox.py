"""AlloX: plans with the least average completion time, on whole GPUs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from time import process_time

import numpy as np
import pytest
from hypothesis import given

from gavelpy.errors import InvalidInput
from gavelpy.model.arrays import Floats
from gavelpy.model.problem import AllocationProblem
from gavelpy.policies.allox import AlloX
from gavelpy.solve.assignment import least_completion_time
from tests.policies.brute_force import least_total_by_hungarian_s, least_total_s
from tests.policies.golden import excess, read_case
from tests.policies.golden_details import detailed_problem
from tests.policies.queues import random_queue
from tests.solve.problems import allocation_problems

SINGLE_GPU = ("00", "02", "04", "06", "16", "20", "24", "26", "28", "30")
NEVER_S = 1e12  # duration where a job cannot run, for oracles without infinity


def time_alone_s(problem: AllocationProblem) -> Floats:
    rates = problem.rate_alone_steps_per_s
    return np.where(rates > 0, problem.steps_remaining[:, None] / np.where(rates > 0, rates, 1.0), NEVER_S)


def planned_total_s(problem: AllocationProblem) -> float:
    """The plan's sum of completion times from now."""
    return AlloX().allocate(problem).certificate.objective * problem.job_count - float(problem.age_s.sum())


@pytest.mark.reference
@pytest.mark.parametrize("case_name", SINGLE_GPU)
def test_plan_costs_what_the_original_assignment_costs(reference_directory: Path, case_name: str) -> None:
    problem = detailed_problem(read_case(reference_directory, case_name))

    total_s = planned_total_s(problem)

    machines = problem.gpu_counts.astype(int)
    assert total_s == pytest.approx(least_total_by_hungarian_s(time_alone_s(problem), machines), rel=1e-9)


@pytest.mark.reference
@pytest.mark.parametrize("case_name", SINGLE_GPU)
def test_original_runs_jobs_of_an_equally_good_plan(reference_directory: Path, case_name: str) -> None:
    case = read_case(reference_directory, case_name)
    problem, theirs = detailed_problem(case), case.shares("allox")

    ours = AlloX().allocate(problem).share

    elsewhere = theirs.any(axis=1)[:, None] & (theirs == 0)
    held_to_theirs = np.where(elsewhere, NEVER_S, time_alone_s(problem))
    machines = problem.gpu_counts.astype(int)
    assert least_total_by_hungarian_s(held_to_theirs, machines) == pytest.approx(planned_total_s(problem), rel=1e-9)
    assert ours.sum(axis=0).tolist() == theirs.sum(axis=0).tolist()


@pytest.mark.reference
@pytest.mark.parametrize("case_name", ["00", "02", "04", "28", "30"])
def test_shares_are_the_original_ones_where_only_one_plan_is_best(reference_directory: Path, case_name: str) -> None:
    case = read_case(reference_directory, case_name)

    assert AlloX().allocate(detailed_problem(case)).share.tolist() == case.shares("allox").tolist()


@pytest.mark.parametrize("seed", range(20))
def test_no_plan_takes_less_time(seed: int) -> None:
    problem = random_queue(seed, jobs=6, gpu_counts=[1, 2, 1])

    assert planned_total_s(problem) == pytest.approx(least_total_s(time_alone_s(problem), [1, 2, 1]), rel=1e-9)


@pytest.mark.parametrize("seed", range(10))
def test_no_plan_of_equal_gangs_takes_less_time(seed: int) -> None:
    problem = random_queue(seed, jobs=6, gpu_counts=[4, 8], gpus=4)

    assert planned_total_s(problem) == pytest.approx(least_total_s(time_alone_s(problem), [1, 2]), rel=1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_long_queues_are_planned_as_well_as_by_the_original_matrix(seed: int) -> None:
    problem = random_queue(seed, jobs=80, gpu_counts=[1, 3, 2])

    best_s = least_total_by_hungarian_s(time_alone_s(problem), [1, 3, 2])
    assert planned_total_s(problem) == pytest.approx(best_s, rel=1e-9)


@given(problem=allocation_problems())
def test_gangs_of_any_size_take_whole_gpus_and_no_more_than_there_are(problem: AllocationProblem) -> None:
    allocation = AlloX().allocate(problem)

    assert excess(allocation) == 0
    assert set(allocation.share.ravel().tolist()) <= {0.0, 1.0}
    assert (allocation.share[~problem.is_whole] == 0).all()
    assert ((allocation.job_share > 0) <= (problem.rate_alone_steps_per_s > 0)).all()


def test_short_job_waits_behind_one_of_days_where_it_can_run() -> None:
    problem = AllocationProblem.of(
        "ab", ["v100", "p100", "k80"], [1, 2, 1], [[0.0, 1.0, 1.0], [0.0, 100.0, 0.0]], steps_remaining=[1e5, 1.0]
    )

    share = AlloX().allocate(problem).share

    assert share[1].tolist() == [0.0, 1.0, 0.0]
    assert share[0].sum() == 1.0


def test_of_a_long_queue_for_few_gpus_those_are_planned_that_may_start() -> None:
    problem = random_queue(0, jobs=200, gpu_counts=[1, 2])
    shortest = np.sort(np.argsort(time_alone_s(problem).min(axis=1))[:64])

    running = AlloX().allocate(problem).share.any(axis=1)

    cut = AlloX().allocate(random_queue(0, jobs=200, gpu_counts=[1, 2], only=shortest.tolist())).share.any(axis=1)
    assert np.flatnonzero(running).tolist() == shortest[cut].tolist()
    assert running.sum() == 3


def test_of_a_long_queue_for_one_type_all_are_planned() -> None:
    problem = random_queue(0, jobs=200, gpu_counts=[2])

    best_s = least_total_by_hungarian_s(time_alone_s(problem), [2])
    assert planned_total_s(problem) == pytest.approx(best_s, rel=1e-9)


def test_least_left_goes_first() -> None:
    problem = AllocationProblem.of("abc", ["v100"], [1], np.ones((3, 1)), steps_remaining=[30.0, 10.0, 20.0])

    allocation = AlloX().allocate(problem)

    assert allocation.share[:, 0].tolist() == [0, 1, 0]
    assert allocation.certificate.objective == pytest.approx((10 + 30 + 60) / 3)
    assert allocation.certificate.path == "rule"


def test_ages_count_in_the_average() -> None:
    problem = AllocationProblem.of("a", ["v100"], [1], [[1.0]], steps_remaining=30.0, age_s=12.0)

    assert AlloX().allocate(problem).certificate.objective == pytest.approx(42.0)


def test_a_job_waits_for_fast_gpus_while_slow_ones_are_idle() -> None:
    problem = AllocationProblem.of("ab", ["v100", "k80"], [1, 1], np.full((2, 2), [10.0, 1.0]), steps_remaining=10.0)

    assert AlloX().allocate(problem).share.tolist() == [[1, 0], [0, 0]]


def test_job_keeps_the_gpus_it_holds() -> None:
    problem = AllocationProblem.of(
        "abc", ["v100", "k80"], [1, 1], np.full((3, 2), [10.0, 2.0]), steps_remaining=[900.0, 500.0, 1.0]
    )
    held = replace(problem, gpu_type_held=np.array([0, -1, -1]))

    assert AlloX().allocate(held).share.tolist() == [[1, 0], [0, 0], [0, 1]]


def test_no_job_keeps_gpus_that_are_gone() -> None:
    problem = AllocationProblem.of("ab", ["v100", "k80"], [1, 1], np.full((2, 2), [10.0, 2.0]))
    held = replace(problem, gpu_type_held=np.array([0, 0]))

    assert AlloX().allocate(held).share.tolist() == [[1, 0], [0, 1]]


def test_alpha_plans_the_oldest_only() -> None:
    ages, steps = [1.0, 9.0, 5.0, 0.0], [1.0, 50.0, 10.0, 1.0]
    problem = AllocationProblem.of("abcd", ["v100"], [1], np.ones((4, 1)), steps_remaining=steps, age_s=ages)

    assert AlloX(alpha=0.5).allocate(problem).share[:, 0].tolist() == [0, 0, 1, 0]
    assert AlloX(alpha=0.1).allocate(problem).share[:, 0].tolist() == [0, 1, 0, 0]


def test_a_gang_that_does_not_fit_now_lets_others_go_first() -> None:
    problem = AllocationProblem.of("ab", ["v100"], [2], np.ones((2, 1)), gpus=[2, 1], steps_remaining=[10.0, 15.0])

    assert AlloX().allocate(problem).share[:, 0].tolist() == [0, 1]  # 2 x 10 GPU-seconds against 15


@pytest.mark.parametrize("alpha", [0.0, -1.0, 1.5, float("nan")])
def test_alpha_outside_its_range_is_refused(alpha: float) -> None:
    with pytest.raises(InvalidInput, match=r"alpha must be in \(0, 1\]"):
        AlloX(alpha=alpha)


def test_gangs_that_can_run_on_one_type_only_count_as_large_as_they_are() -> None:
    rates = np.array([[1.0, 0.0, 0.0]] * 3)

    allocation = AlloX().allocate(
        AllocationProblem.of("xyz", ["a", "b", "c"], [8, 8, 8], rates, gpus=4, steps_remaining=[100.0] * 3)
    )

    assert allocation.certificate.objective == pytest.approx((100.0 + 100.0 + 200.0) / 3)
    assert allocation.share[:, 0].sum() == 2


@pytest.mark.parametrize("seed", range(4))
def test_no_plan_takes_less_time_where_times_differ_by_ten_to_the_twelfth(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rates = 10.0 ** rng.uniform(-6, 6, (4, 6))
    problem = AllocationProblem.of("abcd", list("tuvwxy"), [1] * 6, rates, steps_remaining=2e8)

    allocation = AlloX().allocate(problem)

    least_s = least_total_s(time_alone_s(problem), np.ones(6, dtype=np.int64))
    assert allocation.certificate.objective * 4 == pytest.approx(least_s, rel=1e-12)


def test_few_gpus_of_many_types_are_planned_in_a_moment_as_well_as_by_the_linear_program(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = np.random.default_rng(0)
    time_s, machines = rng.uniform(10.0, 1e4, (60, 1)) * rng.uniform(0.2, 1.0, (60, 8)), np.array([1] * 7 + [2])
    delay = np.broadcast_to(rng.uniform(0.5, 2.0, (60, 1)), time_s.shape)
    long_s = np.repeat(time_s, 4, axis=0) * rng.uniform(0.9, 1.1, (240, 1))

    dense = least_completion_time(time_s, delay, machines)
    began_s = process_time()
    least_completion_time(long_s, np.repeat(delay, 4, axis=0), machines)
    took_s = process_time() - began_s
    monkeypatch.setattr("gavelpy.solve.assignment._DENSE_MAX", 0)
    monkeypatch.setattr("gavelpy.solve.assignment._DENSE_MOST", 0)
    by_program = least_completion_time(time_s, delay, machines)

    assert dense.total_s == pytest.approx(by_program.total_s, rel=1e-9)
    assert took_s < 3.0
