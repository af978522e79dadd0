"""Prices of few classes by pivots, and starting points for some hundred classes: against a simpler computation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gavelpy.model.arrays import Floats
from gavelpy.model.problem import AllocationProblem
from gavelpy.solve.certificate import GAP_MAX, VIOLATION_MAX
from gavelpy.solve.ladder import solve
from gavelpy.solve.objective import MaxMin, MaxSum
from gavelpy.solve.prices import numpy_search, pivots, starting_prices
from gavelpy.solve.prices.pivots import most_gain
from gavelpy.solve.prices.table import Table
from gavelpy.solve.solver import Solver
from tests.solve.oracle import best_level, best_sum
from tests.solve.problems import random_problem

SEEDS = range(12)


def gains(seed: int, *, gpus_per_job: float, types: int = 3, jobs: int = 40) -> tuple[Table, AllocationProblem, Floats]:
    """A table with gains, the problem it represents, and floors that all jobs can reach."""
    rng = np.random.default_rng(seed)
    rate = np.where(rng.random((jobs, types)) < 0.15, 0.0, rng.uniform(0.1, 1.0, (jobs, types)))
    rate[:, 0] = np.maximum(rate[:, 0], 0.1)
    rate /= rate.max(axis=1, keepdims=True)
    gpus, worth = rng.choice([1.0, 2.0, 4.0], jobs), rng.uniform(0.5, 2.0, jobs)
    counts = np.ceil(rng.uniform(0.8, 1.2, types) * gpus_per_job * gpus.sum() / types)
    problem = AllocationProblem.of(
        [f"job-{i}" for i in range(jobs)], [f"type-{i}" for i in range(types)], counts, rate, gpus=gpus, weight=worth
    )
    floor = 0.8 * rng.random(jobs) * solve(problem, MaxMin(np.ones(jobs))).certificate.objective
    return Table(rate, gpus, np.ones(jobs), counts, rate * worth[:, None]), problem, floor


@pytest.mark.parametrize("gpus_per_job", [0.3, 0.9, 2.0], ids=["scarce", "nearly enough", "plenty"])
@pytest.mark.parametrize("seed", SEEDS)
def test_pivots_find_the_highest_sum_above_all_floors(seed: int, gpus_per_job: float) -> None:
    table, problem, floor = gains(seed, gpus_per_job=gpus_per_job)

    mix = most_gain(table, floor)

    assert mix is not None
    assert (table.gain * mix.time).sum() == pytest.approx(best_sum(problem, problem.weight, floor), rel=1e-8)
    assert (mix.time >= 0).all()
    assert mix.time.sum(axis=1).max() <= 1 + 1e-12
    assert (table.load @ mix.time <= table.gpu_counts * (1 + 1e-12)).all()
    assert ((table.rate * mix.time).sum(axis=1) >= floor - 1e-12).all()


@pytest.mark.parametrize("seed", SEEDS)
def test_prices_of_pivots_prove_the_sum(seed: int) -> None:
    table, _, floor = gains(seed, gpus_per_job=0.4, types=5)

    mix = most_gain(table, floor)

    assert mix is not None
    worth = table.gain + mix.steepness[:, None] * table.rate - table.gpus[:, None] * mix.price
    bound = worth.max(axis=1, initial=0.0).sum() + mix.price @ table.gpu_counts - mix.steepness @ floor
    assert bound == pytest.approx((table.gain * mix.time).sum(), rel=1e-11)


def test_floors_beyond_all_gpus_have_no_pivots() -> None:
    table, _, _ = gains(0, gpus_per_job=0.3)

    assert most_gain(table, np.ones(len(table.gpus))) is None
    assert most_gain(table, np.full(len(table.gpus), 1.1)) is None


def test_a_search_that_does_not_end_has_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    table, _, floor = gains(0, gpus_per_job=0.3)
    for module in (pivots, numpy_search):
        monkeypatch.setattr(module, "STEPS_MAX", 2)

    assert most_gain(table, floor) is None


def test_gpus_that_are_used_to_the_last_one_leave_prices_open() -> None:
    rate = np.array([[1.0, 0.5]])
    table = Table(rate, np.ones(1), np.full(1, 3.0), np.array([3.0, 3.0]), rate)
    one_more = replace(table, gpu_counts=np.array([4.0, 3.0]))

    mix, free = most_gain(table, np.zeros(1)), most_gain(one_more, np.zeros(1))

    assert mix is not None
    assert free is not None
    assert mix.time.tolist() == free.time.tolist() == [[1.0, 0.0]]
    assert (mix.is_unique, free.is_unique) == (False, True)


def test_jobs_that_are_worth_the_same_leave_times_open() -> None:
    rate = np.array([[1.0, 0.5], [1.0, 0.5]])
    table = Table(rate, np.ones(2), np.ones(2), np.array([1.0, 3.0]), rate)

    mix = most_gain(table, np.zeros(2))

    assert mix is not None
    assert not mix.is_unique
    assert (table.gain * mix.time).sum() == pytest.approx(1.5)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_level_that_the_slowest_job_limits_needs_no_other_rung(seed: int) -> None:
    problem = random_problem(seed, jobs=30).with_gpus({"type-0": 60, "type-1": 40, "type-2": 40})
    scale = np.random.default_rng(seed).uniform(0.5, 2.0, 30) / problem.member_rate_steps_per_s.max(axis=1)

    allocation = solve(problem, MaxMin(scale))

    certificate = allocation.certificate
    assert certificate.path == "prices"
    assert certificate.objective == pytest.approx(best_level(problem, scale), rel=1e-9)
    floor = certificate.objective * (1 - 1e-12) / scale
    assert scale @ allocation.rate_steps_per_s == pytest.approx(best_sum(problem, scale, floor), rel=1e-8)


@pytest.mark.parametrize("jobs", [20, 45])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_sum_of_whole_gangs_is_priced_at_what_the_next_gpu_earns(seed: int, jobs: int) -> None:
    problem = random_problem(seed, jobs=jobs)

    allocation = solve(problem, MaxSum(np.ones(jobs)))

    assert allocation.certificate.path == "prices"
    assert max(allocation.certificate.gap / GAP_MAX, allocation.certificate.violation / VIOLATION_MAX) <= 1
    trace = 1e-3
    more = replace(problem, capacity=problem.capacity + np.array([[1], [0], [0]]))  # a thousandth of a GPU
    earned = best_sum(more, np.ones(jobs)) - best_sum(problem, np.ones(jobs))
    assert allocation.shadow_prices[0] * trace == pytest.approx(earned, abs=1e-9 * allocation.certificate.objective)


@pytest.mark.parametrize("gpus", [5, 30, 200], ids=["scarce", "some", "plenty"])
@pytest.mark.parametrize("jobs", [20, 100])
def test_a_solver_that_was_used_changes_no_byte(jobs: int, gpus: int) -> None:
    problem = random_problem(3, jobs=jobs).with_gpus({"type-0": gpus, "type-1": gpus, "type-2": gpus})
    used = Solver()
    solve(random_problem(4, jobs=jobs), MaxMin(np.ones(jobs)), used)
    solve(random_problem(5, jobs=jobs), MaxSum(np.ones(jobs)), used)

    again = [solve(problem, objective, used) for objective in (MaxMin(np.ones(jobs)), MaxSum(np.ones(jobs)))]

    fresh = [solve(problem, objective) for objective in (MaxMin(np.ones(jobs)), MaxSum(np.ones(jobs)))]
    assert [a.share.tobytes() for a in again] == [a.share.tobytes() for a in fresh]
    assert [a.shadow_prices.tobytes() for a in again] == [a.shadow_prices.tobytes() for a in fresh]
    assert [a.certificate.path for a in again] == [a.certificate.path for a in fresh]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_search_may_begin_at_the_level_of_highs(seed: int) -> None:
    table, problem, _ = gains(seed, gpus_per_job=0.5)
    rate = replace(table, gain=np.zeros((0, 3)))

    point = starting_prices.by_highs_level(rate, 1.0 / problem.weight, float(problem.weight.min()), Solver())

    assert point is not None
    assert point.level == pytest.approx(best_level(problem, problem.weight), rel=1e-8)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_search_may_begin_at_the_prices_of_highs(seed: int) -> None:
    table, problem, floor = gains(seed, gpus_per_job=0.5)

    point = starting_prices.by_highs_sum(table, floor, Solver())

    assert point is not None
    assert point.price == pytest.approx(solve(problem, MaxSum(problem.weight, floor)).shadow_prices, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_newton_and_highs_lead_to_the_same_level(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = random_problem(seed, jobs=100)
    by_highs = solve(problem, MaxMin(np.ones(100)))
    monkeypatch.setattr(starting_prices, "NEWTON_MIN", 0)

    by_newton = solve(problem, MaxMin(np.ones(100)))

    assert by_highs.certificate.path == by_newton.certificate.path == "prices"
    assert by_highs.certificate.objective == pytest.approx(by_newton.certificate.objective, rel=1e-12)
