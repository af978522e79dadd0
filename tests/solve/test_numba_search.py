"""Compiled searches for prices: the same bytes as without numba, and the level of a linear program."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.problems import Mix, draw
from gavelpy.model.allocation import Allocation
from gavelpy.model.problem import AllocationProblem
from gavelpy.policies.base import policy_from
from gavelpy.solve import ladder
from gavelpy.solve.ladder import solve
from gavelpy.solve.objective import MaxMin, MaxSum
from gavelpy.solve.prices import certified, engine, numba_search, pivots
from gavelpy.solve.prices.pivots import most_gain
from gavelpy.solve.prices.table import Table, jobs_of
from tests.solve.oracle import best_level, best_sum

POLICIES = ("max_min_fairness", "min_makespan", "max_sum_throughput", "min_cost")


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Searches are compiled until `interpreted` is called with it."""
    for module in (certified, engine, ladder, pivots):
        monkeypatch.setattr(module, "search_kernels", lambda: numba_search)
    return monkeypatch


def interpreted(patch: pytest.MonkeyPatch) -> None:
    """From now on searches are numpy's."""
    for module in (certified, engine, ladder, pivots):
        patch.setattr(module, "search_kernels", lambda: None)


def degenerate(seed: int) -> AllocationProblem:
    """A random problem of up to 150 jobs with what makes optima not unique or numbers extreme."""
    rng = np.random.default_rng(seed)
    jobs, types = int(rng.integers(1, 150)), int(rng.integers(1, 6))
    digits = int(rng.integers(0, 17))  # few digits: many jobs and prices are equal
    rates = np.maximum(np.round(10.0 ** rng.uniform(-2, 2, (jobs, types)), digits), 10.0**-digits)
    rates[rng.random((jobs, types)) < rng.choice([0.0, 0.3, 0.8])] = 0.0
    if rng.random() < 0.3:
        rates = rates[rng.integers(0, jobs, jobs)]
    counts = rng.integers(0, max(2, int(jobs * rng.uniform(0.1, 2.0))), types)
    counts[int(rng.integers(types))] += 1
    weight = 10.0 ** rng.uniform(-6, 7, jobs) if rng.random() < 0.2 else rng.choice([1.0, 2.0, 5.0], jobs)
    return AllocationProblem.of(
        [f"j{i}" for i in range(jobs)], [f"t{i}" for i in range(types)], counts, rates,
        gpus=rng.choice([1.0, 1.0, 2.0, 4.0, 8.0], jobs), weight=weight,
        steps_remaining=10.0 ** rng.uniform(0, 6, jobs), price_usd_per_gpu_h=rng.uniform(0.1, 4.0, types),
    )  # fmt: skip


def bytes_of(allocation: Allocation) -> tuple[bytes, bytes, float, float, str]:
    """Everything about an answer except its time."""
    c = allocation.certificate
    return allocation.share.tobytes(), allocation.shadow_prices.tobytes(), c.objective, c.bound, c.path


def answers(seeds: range) -> list[tuple[bytes, bytes, float, float, str]]:
    """An answer to each of these degenerate problems."""
    found = []
    for seed in seeds:
        policy = policy_from(POLICIES[seed % len(POLICIES)])
        found.append(bytes_of(policy.allocate(degenerate(seed))))
    return found


@pytest.mark.parametrize("start", range(0, 200, 50))
def test_degenerate_problems_have_the_same_bytes_with_and_without_numba(
    start: int, compiled: pytest.MonkeyPatch
) -> None:
    by_numba = answers(range(start, start + 50))

    interpreted(compiled)

    assert answers(range(start, start + 50)) == by_numba


@pytest.mark.slow
def test_two_thousand_problems_have_the_same_bytes_with_and_without_numba(compiled: pytest.MonkeyPatch) -> None:
    by_numba = answers(range(2000))

    interpreted(compiled)

    assert answers(range(2000)) == by_numba


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("load", [0.1, 0.33, 0.6])
@pytest.mark.parametrize("jobs", [32, 150, 400])
def test_distinct_jobs_get_the_same_bytes_with_and_without_numba(
    jobs: int, load: float, policy: str, compiled: pytest.MonkeyPatch
) -> None:
    problem = draw(jobs, 3, Mix.DISTINCT, load=load, seed=jobs).problem()
    by_numba = policy_from(policy).allocate(problem)
    interpreted(compiled)

    by_numpy = policy_from(policy).allocate(problem)

    assert bytes_of(by_numpy) == bytes_of(by_numba)
    assert by_numba.certificate.gap <= 1e-12


@pytest.mark.parametrize("seed", range(40))
def test_columns_find_the_highest_level(seed: int) -> None:
    problem = draw(20 + 5 * seed, 2 + seed % 5, Mix.DISTINCT, load=(0.05, 0.1, 0.2)[seed % 3], seed=seed).problem()
    scale = 1.0 / problem.rate_alone_steps_per_s.max(axis=1)
    jobs = jobs_of(problem, scale, np.zeros(problem.job_count))
    table, prices = jobs.table, np.zeros(len(problem.gpu_types))

    level, bound, _ = numba_search.level_by_columns(
        table.rate, table.gpus, table.count, jobs.value, table.gpu_counts, prices
    )

    assert level == pytest.approx(min(best_level(problem, scale), jobs.value.min()), rel=1e-8)
    assert level <= bound * (1 + 1e-12)
    assert bound == pytest.approx(level, rel=1e-9)


@pytest.mark.parametrize("seed", range(20))
def test_compiled_answers_are_those_of_a_linear_program(seed: int, compiled: pytest.MonkeyPatch) -> None:
    problem = draw(70 + 20 * seed, 3, Mix.DISTINCT, load=(0.1, 0.33, 0.6)[seed % 3], seed=seed).problem()
    weight = 1.0 / problem.rate_alone_steps_per_s.max(axis=1)

    level, total = solve(problem, MaxMin(weight)).certificate, solve(problem, MaxSum(weight)).certificate

    assert level.objective == pytest.approx(best_level(problem, weight), rel=1e-8)
    assert total.objective == pytest.approx(best_sum(problem, weight, np.zeros(problem.job_count)), rel=1e-8)
    assert max(level.gap, total.gap, level.violation, total.violation) <= 1e-12


def test_floors_without_times_are_refused_by_both(compiled: pytest.MonkeyPatch) -> None:
    rate = np.array([[1.0, 0.5], [1.0, 0.25], [0.5, 1.0]])
    table = Table(rate, np.array([4.0, 4.0, 4.0]), np.ones(3), np.array([4.0, 2.0]), rate)
    floors = np.array([0.9, 0.9, 0.9])

    by_numba = most_gain(table, floors)
    interpreted(compiled)

    assert by_numba is most_gain(table, floors) is None


def test_equal_corners_are_taken_in_the_same_order(compiled: pytest.MonkeyPatch) -> None:
    rate = np.ones((6, 3))
    table = Table(rate, np.ones(6), np.ones(6), np.array([1.0, 1.0, 1.0]), rate)
    by_numba = most_gain(table, np.zeros(6))
    interpreted(compiled)

    by_numpy = most_gain(replace(table), np.zeros(6))

    assert by_numba is not None
    assert by_numpy is not None
    assert by_numba.time.tobytes() == by_numpy.time.tobytes()
