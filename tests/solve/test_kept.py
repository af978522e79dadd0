"""Problems that differ by a few jobs from the last one are answered from its answer, with the same bytes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.problems import Mix, draw
from gavelpy.model.problem import AllocationProblem
from gavelpy.policies.base import policy_from
from gavelpy.solve import ladder
from gavelpy.solve.ladder import solve
from gavelpy.solve.near_numbers import merged_numbers, nearness
from gavelpy.solve.objective import MaxSum
from gavelpy.solve.prices import kept
from gavelpy.solve.prices.newton import Dual, Point
from gavelpy.solve.prices.table import Fixed, Proportional, Table, compiled, kernels
from gavelpy.solve.prices.vertex import Mix as Answered
from gavelpy.solve.prices.vertex import from_prices
from gavelpy.solve.solver import Solver
from tests.solve.test_warm import LINEAR, bytes_of, pool


def events(seed: int) -> tuple[int, list[int]]:
    """How many of 12 answers to random events are from the last one, and which have other bytes than new ones."""
    rng, solver = np.random.default_rng(seed), Solver()
    n = int(rng.integers(540, 1000))
    jobs, rows, answered, other = pool(rng, n + 60), list(range(n)), 0, []
    for event in range(12):
        for _ in range(int(rng.choice([0, 1, 1, 2, 5]))):
            if rng.random() < 0.5:
                rows.append(max(rows) + 1)
            else:
                rows.pop(int(rng.integers(len(rows))))
        problem, objective = jobs.at(rows)
        before = solver.kept.copy()
        warm, cold = solve(problem, objective, solver), solve(replace(problem), objective)
        answered += any(isinstance(now, kept.Kept) and before[key] is not now for key, now in solver.kept.items())
        if bytes_of(warm) != bytes_of(cold):
            other.append(event)
    return answered, other


def test_answers_from_the_last_one_have_the_bytes_of_new_ones() -> None:
    found = [events(seed) for seed in range(3)]

    assert [other for _, other in found] == [[]] * 3
    assert sum(answered for answered, _ in found) > 12


@pytest.mark.slow
@pytest.mark.parametrize("first", range(8, 508, 50))
def test_six_thousand_answers_from_the_last_one_have_the_bytes_of_new_ones(first: int) -> None:
    assert [seed for seed in range(first, first + 50) if events(seed)[1]] == []


@pytest.mark.parametrize("load", [0.1, 0.33, 0.6])
@pytest.mark.parametrize("name", LINEAR)
def test_a_third_answer_looks_only_at_new_jobs(name: str, load: float, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn, policy, solver = draw(700, 3, Mix.DISTINCT, load=load, seed=5, spare=8), policy_from(name), Solver()
    problems = [drawn.problem(rows) for rows in drawn.changes(700, 8)]
    for problem in problems[:2]:
        policy.allocate(problem, solver)
    expected = [bytes_of(policy.allocate(replace(problem))) for problem in problems[2:]]
    for module, search in ((ladder, "_best"), (ladder, "_best_of_near"), (kept, "nearness")):
        monkeypatch.delattr(module, search)

    assert [bytes_of(policy.allocate(problem, solver)) for problem in problems[2:]] == expected


def test_another_cluster_or_too_many_new_jobs_are_answered_like_new_problems() -> None:
    drawn, solver, policy = draw(700, 3, Mix.DISTINCT, load=0.2, seed=1, spare=300), Solver(), policy_from("min_cost")
    problem = drawn.problem(np.arange(700))
    more = replace(problem, capacity=problem.capacity + 1000)
    dearer = replace(problem, price_usd_per_gpu_h=problem.price_usd_per_gpu_h[::-1].copy())
    others = [
        problem,
        problem,
        more,
        drawn.problem(np.arange(200, 900)),
        dearer,
        problem,
        drawn.problem(np.arange(600)),
    ]

    for other in others:
        assert bytes_of(policy.allocate(other, solver)) == bytes_of(policy.allocate(replace(other)))


def test_a_job_like_another_is_answered_as_one_of_a_class() -> None:
    rng = np.random.default_rng(2)
    rates, gain = rng.uniform(1.0, 9.0, (700, 3)), rng.uniform(1.0, 2.0, 700)
    solver, changed = Solver(), rates.copy()
    changed[3], gain[3] = changed[699], gain[699]
    tables = [rates[:698], rates[:699], np.delete(rates, 5, axis=0), changed]
    paths = []

    for table in tables:
        values = gain[: len(table)]
        problem = AllocationProblem.of([f"j{n}" for n in range(len(table))], "abc", [60, 60, 60], table)
        warm, cold = solve(problem, MaxSum(values), solver), solve(replace(problem), MaxSum(values))
        assert bytes_of(warm) == bytes_of(cold)
        paths.append(warm.certificate.path)

    assert paths == ["prices", "prices", "prices", "classes+prices"]


@pytest.mark.parametrize("seed", range(20))
def test_near_numbers_are_as_many_as_a_count_after_changes_allows(seed: int) -> None:
    rng = np.random.default_rng(seed)
    figures = np.concatenate([rng.uniform(1.0, 2.0, 40), np.repeat(rng.uniform(1.0, 2.0, 6), 2)])
    figures[-6:] *= 1.0 + 5e-10
    most = nearness(figures).changes_left()
    assert most > 0

    for _ in range(most):  # the worst: numbers next to those that are there
        if rng.random() < 0.5:
            figures = np.delete(figures, rng.integers(len(figures)))
        else:
            figures = np.append(figures, rng.choice(figures) * (1.0 + 5e-10))
        assert merged_numbers(figures) is None


def structure(seed: int) -> tuple[Answered | None, Answered | None]:
    """The answer at the exact prices of a random small problem, by kernels and by numpy."""
    rng = np.random.default_rng(seed)
    K, T, leveled = int(rng.integers(70, 120)), int(rng.integers(2, 6)), bool(rng.random() < 0.5)
    rate = np.exp(rng.normal(0.0, 0.7, (K, T))) if rng.random() < 0.7 else rng.integers(1, 9, (K, T)).astype(np.float64)
    rate /= rate.max(axis=1, keepdims=True)
    value, gpus = rng.uniform(0.5, 2.0, K), rng.choice([1.0, 2.0, 4.0], K)
    gain = np.zeros((0, T)) if leveled else rate * value[:, None]
    table = Table(rate, gpus, np.ones(K), np.full(T, rng.choice([5.0, 9.0, 20.0])), gain)
    needs = Proportional(1.0 / value) if leveled else Fixed(np.full(K, rng.choice([0.0, 0.05])))
    dual = Dual(table, needs, level_max=float(value.min()) if leveled else None)
    vertex = engine_exact(dual)
    if vertex is None:
        return None, None
    counts = table.gpu_counts * (1.0 + 1e-9) if rng.random() < 0.5 else None
    by_kernels, by_numpy = (from_prices(replace(dual, loops=loops), vertex, counts) for loops in (compiled, kernels))
    return by_kernels, by_numpy


def engine_exact(dual: Dual) -> Point | None:
    """The exact prices and level, by HiGHS on the whole program."""
    from gavelpy.solve.prices.crossover import exact
    from gavelpy.solve.prices.starting_prices import by_highs_level, by_highs_sum

    solver = Solver()
    if dual.level_max is None:
        near = by_highs_sum(dual.table, dual.needs.at(0.0)[0], solver)
    else:
        near = by_highs_level(dual.table, dual.needs.at(1.0)[1], dual.level_max, solver)
    vertex = None if near is None else exact(dual, near, solver)
    return None if vertex is None else Point(vertex.price, vertex.level)


def figures(mix: Answered | None) -> object:
    """What the answers have to agree in, to the last byte."""
    return None if mix is None else (*((a + 0.0).tobytes() for a in (mix.time, mix.steepness, mix.price)), mix.level)


@pytest.mark.parametrize("first", [0, pytest.param(50, marks=pytest.mark.slow)])
def test_kernels_find_the_structure_that_numpy_finds(first: int) -> None:
    found = [structure(seed) for seed in range(first, 2000 if first else 50)]

    assert [n for n, (ours, numpys) in enumerate(found, first) if figures(ours) != figures(numpys)] == []
    assert sum(ours is not None for ours, _ in found) > len(found) // 4
