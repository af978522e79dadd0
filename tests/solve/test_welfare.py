"""Sums of logarithms by prices: exact, the same from any start, and the optimum of other solvers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.problems import Mix, draw
from gavelpy.model.allocation import Allocation
from gavelpy.model.arrays import Floats
from gavelpy.model.problem import AllocationProblem
from gavelpy.policies.nash_welfare import NashWelfare
from gavelpy.solve.interior import Form, SumLog, numpy_kernels, optimum
from gavelpy.solve.ladder import solve
from gavelpy.solve.objective import MaxSumLog
from gavelpy.solve.prices import welfare
from gavelpy.solve.prices.table import Table
from gavelpy.solve.solver import Solver
from tests.solve.oracle import best_sum_log_by_cvxpy
from tests.solve.test_warm import bytes_of, pool


def events(seed: int) -> tuple[list[Allocation], list[Allocation]]:
    """Answers to problems of which a job leaves and one arrives each time: with one solver, and with new ones."""
    rng, solver = np.random.default_rng(seed), Solver()
    n = int(rng.integers(540, 900))
    jobs, warm, cold = pool(rng, n + 4), [], []
    for event in range(4):
        rows = list(range(event, n + event))
        problem, objective = jobs.at(rows)[0], MaxSumLog(jobs.value[rows])
        warm.append(solve(problem, objective, solver))
        cold.append(solve(replace(problem), objective))
    return warm, cold


def test_a_kept_solver_changes_no_byte() -> None:
    warm, cold = events(1)

    assert list(map(bytes_of, warm)) == list(map(bytes_of, cold))
    by_prices = [a.certificate for a in warm if a.certificate.path.endswith("prices")]
    assert len(by_prices) >= 2
    assert max(c.gap for c in by_prices) < 1e-12
    assert max(c.violation for c in by_prices) < 1e-12


@pytest.mark.slow
@pytest.mark.parametrize("first", range(2, 502, 50))
def test_a_kept_solver_changes_no_byte_in_two_thousand_answers(first: int) -> None:
    found = [events(seed) for seed in range(first, first + 50)]

    assert [
        n for n, (warm, cold) in enumerate(found, first) if list(map(bytes_of, warm)) != list(map(bytes_of, cold))
    ] == []


@pytest.mark.parametrize("load", [0.1, 0.33, 0.6, 1.0])
def test_prices_find_the_optimum_of_the_interior_point(load: float, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = draw(700, 3, Mix.DISTINCT, load=load, seed=3).problem()
    by_prices = NashWelfare().allocate(problem)
    monkeypatch.setattr(welfare, "most_welfare", lambda *_: None)

    inside = NashWelfare().allocate(replace(problem))

    assert (by_prices.certificate.path, inside.certificate.path) == ("prices", "interior")
    assert by_prices.certificate.objective == pytest.approx(inside.certificate.objective, rel=1e-10)
    np.testing.assert_allclose(by_prices.rate_steps_per_s, inside.rate_steps_per_s, rtol=1e-4)
    np.testing.assert_allclose(by_prices.shadow_prices, inside.shadow_prices, rtol=1e-5, atol=1e-9)


def test_a_warm_answer_needs_no_interior_point(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn, solver = draw(700, 3, Mix.DISTINCT, load=0.33, seed=5, spare=4), Solver()
    first, *later = (drawn.problem(rows) for rows in drawn.changes(700, 4))
    NashWelfare().allocate(first, solver)
    expected = [bytes_of(NashWelfare().allocate(replace(problem))) for problem in later]
    monkeypatch.delattr(welfare, "optimum")

    assert [bytes_of(NashWelfare().allocate(problem, solver)) for problem in later] == expected


def small(seed: int) -> tuple[AllocationProblem, Floats, Table]:
    """A random problem of few jobs, with its weights and its table."""
    rng = np.random.default_rng(seed)
    K, T = int(rng.integers(8, 30)), int(rng.integers(1, 5))
    rate, gpus = np.exp(rng.normal(0.0, 1.0, (K, T))), rng.choice([1.0, 1.0, 2.0, 4.0], K)
    rate[rng.random((K, T)) < 0.2] = 0.0
    rate[np.arange(K), rng.integers(0, T, K)] += 0.5
    counts, weight = rng.integers(1, max(2, K // T), T).astype(np.float64), rng.uniform(0.3, 3.0, K)
    problem = AllocationProblem.of(
        [f"j{k}" for k in range(K)], [f"t{t}" for t in range(T)], counts, rate, gpus=gpus, weight=weight
    )
    table = Table(rate / rate.max(axis=1, keepdims=True), gpus, np.ones(K), counts, np.zeros((0, T)))
    return problem, weight, table


def test_the_exact_step_finds_the_optimum_of_cvxpy() -> None:
    found = 0
    for seed in range(15):
        problem, weight, table = small(seed)
        form = Form(table.rate, table.gpus, table.count, table.gpu_counts, SumLog(weight))
        near = optimum(form, 1e-3, numpy_kernels, residual_max=1e-3).prices
        exact = welfare._exact(table, weight, near * np.exp(np.random.default_rng(seed).normal(0.0, 0.05, len(near))))
        if exact is None or not exact.is_unique:
            continue
        found += 1
        rates = (problem.member_rate_steps_per_s * exact.time).sum(axis=1)
        assert weight @ np.log(rates) == pytest.approx(best_sum_log_by_cvxpy(problem, weight), abs=1e-5)
        assert (table.load @ exact.time <= table.gpu_counts * (1 + 1e-12)).all()
        assert exact.time.min() > -1e-12
        assert exact.time.sum(axis=1).max() < 1 + 1e-12
    assert found >= 4
