"""Concave objectives through cvxpy, with bounds proved by an LP."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gavelpy.errors import SolverFailed
from gavelpy.model.problem import AllocationProblem, Size
from gavelpy.solve.ladder import solve
from gavelpy.solve.objective import MaxConcave, MaxSum, MaxSumLog
from tests.solve.oracle import best_sum_log_by_cvxpy
from tests.solve.problems import random_problem


@pytest.mark.parametrize("seed", range(8))
def test_sum_of_logarithms_is_the_oracles(seed: int) -> None:
    problem = random_problem(seed, jobs=15)
    weight = np.random.default_rng(seed).uniform(0.5, 5, 15)

    allocation = solve(problem, MaxSumLog(weight))

    value = float(weight @ np.log(allocation.rate_steps_per_s))
    assert value == pytest.approx(best_sum_log_by_cvxpy(problem, weight), abs=1e-5)
    assert allocation.certificate.objective == pytest.approx(value)
    assert allocation.certificate.gap <= 1e-8


def test_one_type_is_shared_in_proportion_to_weight() -> None:
    problem = AllocationProblem.of("abc", ["v100"], [1], [[4.0], [50.0], [1.0]])

    allocation = solve(problem, MaxSumLog(np.array([1.0, 2.0, 5.0])))

    assert allocation.share[:, 0] == pytest.approx([1 / 8, 2 / 8, 5 / 8], rel=1e-6)
    assert allocation.shadow_prices == pytest.approx([8], rel=1e-5)  # Σ w log(k x) grows by Σ w / k at k = 1


def test_sum_of_logarithms_keeps_rate_floors() -> None:
    problem = AllocationProblem.of("ab", ["v100"], [1], [[4.0], [4.0]])

    allocation = solve(problem, MaxSumLog(np.ones(2), np.array([3.0, 0.0])))

    assert allocation.rate_steps_per_s == pytest.approx([3, 1], rel=1e-6)
    assert allocation.certificate.gap <= 1e-6


def test_jobs_that_need_a_hundred_times_the_cpus_of_a_type_have_a_proved_optimum() -> None:
    rng, n = np.random.default_rng(0), 40
    ids, rates, cpus = [f"j{i}" for i in range(n)], rng.uniform(0.1, 1.0, (n, 3)), rng.choice([0.0, 0.1, 3.0, 16.0], n)
    problem = AllocationProblem.of(
        ids, "abc", [n, n, n // 2], rates, resources={"cpu": [n / 100, n, n]}, demand={"cpu": cpus}
    )  # an unscaled program fails in the solver
    problem = problem.with_sizes({job: [Size(2, efficiency=0.7), Size(8, efficiency=0.4)] for job in ids})
    weight = np.ones(n)

    allocation = solve(problem, MaxSumLog(weight))

    assert (allocation.certificate.warning, allocation.certificate.path) == ("", "cvxpy")
    assert allocation.certificate.gap <= 1e-8
    steeper = weight / allocation.rate_steps_per_s  # no change of shares raises the sum of relative changes
    assert solve(problem, MaxSum(steeper)).certificate.objective == pytest.approx(n, rel=1e-4)


def test_equal_jobs_are_one_class_for_logarithms_too() -> None:
    problem = AllocationProblem.of("abc", ["v100"], [1], [[4.0], [40.0], [4.0]])

    share = solve(problem, MaxSumLog(np.array([1.0, 1.0, 2.0]))).share

    assert share[0, 0] == share[1, 0]
    assert share[2, 0] == pytest.approx(2 * share[0, 0], rel=1e-6)


def roots(rates: Any) -> Any:
    import cvxpy  # takes a second, which every process that collects the tests would take

    return cvxpy.sum(cvxpy.sqrt(rates + 1.0))


@pytest.mark.parametrize("seed", range(4))
def test_a_concave_function_of_ones_own_is_proved(seed: int) -> None:
    problem = random_problem(seed, jobs=10)

    allocation = solve(problem, MaxConcave(roots))

    other = solve(problem, MaxSum(np.ones(10)))
    assert allocation.certificate.path == "cvxpy"
    assert allocation.certificate.gap <= 1e-6
    value = np.sqrt(other.rate_steps_per_s + 1.0).sum()
    assert value <= allocation.certificate.bound * (1 + 1e-12)


def test_a_concave_function_of_one_job_works() -> None:
    problem = AllocationProblem.of("a", ["v100"], [1], [[3.0]])

    allocation = solve(problem, MaxConcave(roots))

    assert allocation.certificate.objective == pytest.approx(2, rel=1e-6)


def test_an_optimum_at_a_kink_cannot_be_proved_and_has_a_warning() -> None:
    import cvxpy

    problem = AllocationProblem.of("ab", ["v100"], [1], [[3.0], [5.0]])

    certificate = solve(problem, MaxConcave(cvxpy.min)).certificate

    assert certificate.objective == pytest.approx(15 / 8, rel=1e-6)
    assert certificate.objective <= certificate.bound
    assert "cvxpy: gap" in certificate.warning


def test_where_cvxpy_fails_an_even_split_has_an_honest_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise SolverFailed("cvxpy", jobs=2, gpu_types=1)

    problem = AllocationProblem.of("ab", ["v100"], [1], [[3.0], [5.0]], weight=[1.0, 3.0]).with_pairs(
        [(0, 1)], [[[2.0], [2.0]]]
    )
    best = solve(problem, MaxSumLog(problem.weight)).certificate.objective
    monkeypatch.setattr("gavelpy.solve.concave_cvxpy.optimum", fails)

    c = solve(problem, MaxSumLog(problem.weight)).certificate

    assert c.path == "even split"
    assert c.warning.endswith("(cvxpy: cvxpy)")
    assert c.objective < best <= c.bound + 1e-6
