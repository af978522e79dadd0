"""Prices against finite differences: the optimum's gain from slightly more of a type, and its loss from less."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from gavelpy.model.arrays import Floats
from gavelpy.model.problem import AllocationProblem
from gavelpy.solve.ladder import solve
from gavelpy.solve.objective import MaxMin, MaxSum, MaxSumLog, Objective

LARGE = 1000  # "a GPU" of these problems is this many, so that a tenth of one is a small change
STEP = 0.1  # GPUs

make_max_min_and_max_sum = pytest.mark.parametrize("make", [MaxMin, MaxSum], ids=["max-min", "max-sum"])


def random_problem(seed: int, *, types: int | None = None, pairs: bool = False) -> AllocationProblem:
    """Up to 12 jobs, gangs of 1 and 2, on up to 4 types, some rates zero; every job can run."""
    rng = np.random.default_rng(seed)
    jobs, count = int(rng.integers(1, 13)), types or int(rng.integers(1, 5))
    rates = rng.uniform(1, 10, (jobs, count)) * (rng.random((jobs, count)) > 0.2)
    rates[:, 0] = np.maximum(rates[:, 0], 1.0)
    problem = AllocationProblem.of(
        [f"job-{row}" for row in range(jobs)],
        [f"type-{column}" for column in range(count)],
        LARGE * rng.integers(1, 5, count),
        rates,
        gpus=LARGE * (1 if pairs else rng.choice([1, 1, 2], jobs)),
    )
    rows = [(first, first + 1) for first in range(jobs - 1)]
    joint = problem.rate_alone_steps_per_s[np.array(rows, dtype=np.int64).reshape(-1, 2)] * rng.uniform(0.4, 0.9)
    return problem.with_pairs(rows, joint) if pairs else problem


def crowd(seed: int, *, jobs: int) -> AllocationProblem:
    """Distinct jobs, gangs of 1 to 4, on three types with one GPU for every two jobs."""
    rng = np.random.default_rng(seed)
    return AllocationProblem.of(
        [f"job-{row}" for row in range(jobs)],
        ["v100", "p100", "k80"],
        LARGE * rng.integers(jobs // 8, jobs // 4, 3),
        rng.uniform(1, 10, (jobs, 3)),
        gpus=LARGE * rng.choice([1, 1, 2, 4], jobs),
    )


def figures(problem: AllocationProblem, seed: int) -> Floats:
    """A random positive figure of each job per step/s, (J,), so that neither slow nor fast jobs decide alone."""
    return np.random.default_rng(seed).uniform(0.8, 1.25, problem.job_count) / problem.rate_alone_steps_per_s.max(
        axis=1
    )


def slopes(problem: AllocationProblem, objective: Objective, step_gpus: float) -> Floats:
    """Change of the optimum per GPU when each type alone has `step_gpus` more, (T,)."""
    here = solve(problem, objective).certificate.objective
    changed = problem.capacity + np.rint(1000 * step_gpus) * np.eye(len(problem.gpu_types))[:, :, None]
    there = [solve(replace(problem, capacity=each), objective).certificate.objective for each in changed]
    return (np.array(there) - here) / step_gpus


def close_to(expected: Floats) -> object:
    return pytest.approx(expected, rel=1e-4, abs=1e-8)


@make_max_min_and_max_sum
@pytest.mark.parametrize("seed", range(20))
def test_price_is_what_a_little_more_of_a_type_gains(seed: int, make: Callable[[Floats], Objective]) -> None:
    problem = random_problem(seed)
    objective = make(figures(problem, seed))

    assert solve(problem, objective).shadow_prices == close_to(slopes(problem, objective, STEP))


@make_max_min_and_max_sum
@pytest.mark.parametrize("seed", range(6))
def test_price_counts_what_pairs_make_of_a_gpu(seed: int, make: Callable[[Floats], Objective]) -> None:
    problem = random_problem(seed, pairs=True)
    objective = make(figures(problem, seed))

    assert solve(problem, objective).shadow_prices == close_to(slopes(problem, objective, STEP))


@pytest.mark.parametrize("seed", range(6))
def test_at_a_kink_the_price_is_of_the_next_gpu_and_not_of_the_last(seed: int) -> None:
    """As many GPUs as jobs, one each: with one less a job waits, with one more a job only moves."""
    rng = np.random.default_rng(seed)
    gpus = rng.integers(1, 4, 3)
    jobs = int(gpus.sum())
    problem = AllocationProblem.of(
        [f"job-{row}" for row in range(jobs)], "abc", LARGE * gpus, rng.uniform(1, 10, (jobs, 3)), gpus=LARGE
    )
    objective = MaxSum(figures(problem, seed))

    prices = solve(problem, objective).shadow_prices

    assert prices == close_to(slopes(problem, objective, STEP))
    assert (slopes(problem, objective, -STEP) > 2 * prices).any()


def test_where_everybody_has_a_gpu_the_next_is_worth_nothing_and_the_last_was() -> None:
    problem = AllocationProblem.of("abc", ["v100"], [3 * LARGE], [[4.0], [3.0], [5.0]], gpus=LARGE)
    objective = MaxMin(1 / problem.rate_alone_steps_per_s[:, 0])

    assert solve(problem, objective).shadow_prices.tolist() == [0.0]
    assert slopes(problem, objective, -STEP) == pytest.approx([1 / 3 / LARGE])


@make_max_min_and_max_sum
def test_on_an_idle_cluster_one_more_gpu_is_worth_nothing(make: Callable[[Floats], Objective]) -> None:
    problem = random_problem(3)
    idle = replace(problem, capacity=problem.capacity * 100)

    assert solve(idle, make(figures(idle, 3))).shadow_prices.tolist() == [0.0] * len(idle.gpu_types)


@make_max_min_and_max_sum
@pytest.mark.parametrize("seed", range(6))
def test_price_of_a_type_without_gpus_is_what_its_first_gpu_gains(
    seed: int, make: Callable[[Floats], Objective]
) -> None:
    rng = np.random.default_rng(seed)
    problem = AllocationProblem.of("abcde", ["v100", "k80"], [2, 0], rng.uniform(1, 10, (5, 2)))
    objective = make(figures(problem, seed))

    prices = solve(problem, objective).shadow_prices

    assert prices == close_to(slopes(problem, objective, 0.001))
    assert prices[1] > 0


@make_max_min_and_max_sum
def test_the_first_gpu_of_a_type_is_of_no_use_to_a_gang(make: Callable[[Floats], Objective]) -> None:
    problem = AllocationProblem.of("ab", ["v100", "k80"], [2, 0], [[4.0, 9.0], [3.0, 9.0]], gpus=2)

    assert solve(problem, make(np.ones(2))).shadow_prices[1] == 0


@make_max_min_and_max_sum
def test_types_that_nobody_can_tell_apart_have_one_price(make: Callable[[Floats], Objective]) -> None:
    rates = np.repeat(np.random.default_rng(0).uniform(1, 10, (6, 1)), 2, axis=1)
    problem = AllocationProblem.of("abcdef", ["v100", "a100"], [LARGE, 2 * LARGE], rates, gpus=LARGE)
    objective = make(figures(problem, 0))

    prices = solve(problem, objective).shadow_prices

    assert prices == close_to(slopes(problem, objective, STEP))
    assert prices[0] == prices[1] > 0


@make_max_min_and_max_sum
@pytest.mark.parametrize("part", [0.5, 0.99], ids=["loose floors", "tight floors"])
@pytest.mark.parametrize("seed", range(12))
def test_price_is_of_the_next_gpu_where_floors_make_kinks(
    seed: int, part: float, make: Callable[[Floats, Floats], Objective]
) -> None:
    problem = random_problem(seed)
    level = solve(problem, MaxMin(np.ones(problem.job_count))).certificate.objective
    promised = np.random.default_rng(seed).random(problem.job_count) < 0.5
    objective = make(figures(problem, seed), np.where(promised, part * level, 0.0))

    prices = solve(problem, objective).shadow_prices

    assert prices == close_to(slopes(problem, objective, STEP))


def test_a_floor_makes_a_gpu_dear_to_the_objective_that_must_keep_it() -> None:
    """The slow job must have half of its time: one more GPU would give the fast ones all of theirs."""
    problem = AllocationProblem.of("ab", ["v100"], [LARGE], [[1.0], [9.0]], gpus=LARGE)
    objective = MaxSum(np.ones(2), np.array([0.5, 0.0]))

    prices = solve(problem, objective).shadow_prices

    assert prices == pytest.approx([9.0 / LARGE])
    assert prices == close_to(slopes(problem, objective, STEP))


@pytest.mark.parametrize("seed", range(4))
def test_price_is_the_same_for_many_distinct_jobs(seed: int) -> None:
    problem = crowd(seed, jobs=120)
    objective = MaxMin(figures(problem, seed))

    allocation = solve(problem, objective)

    assert allocation.certificate.path == "prices"
    assert allocation.shadow_prices == close_to(slopes(problem, objective, STEP))


@pytest.mark.parametrize("seed", range(4))
def test_price_of_a_sum_over_many_jobs_lies_between_the_next_gpu_and_the_last(seed: int) -> None:
    """GPUs and gangs are whole, so that every such optimum is at a kink."""
    problem = crowd(seed, jobs=120)
    objective = MaxSum(figures(problem, seed))

    prices = solve(problem, objective).shadow_prices

    assert (prices >= slopes(problem, objective, STEP) - 1e-8).all()
    assert (prices <= slopes(problem, objective, -STEP) + 1e-8).all()


def test_types_that_help_only_together_share_one_price() -> None:
    """Each job has its own type, and the worse of two equals counts: more of one type alone gains nothing.

    A price is then the most that a GPU gains, not its gain by itself: Σ_t price_t W_t is still the objective.
    """
    problem = AllocationProblem.of("ab", ["v100", "k80"], [1, 1], [[1.0, 0.0], [0.0, 1.0]], gpus=2)
    objective = MaxMin(np.ones(2))

    allocation = solve(problem, objective)

    assert slopes(problem, objective, STEP) == pytest.approx([0.0, 0.0])
    assert (allocation.shadow_prices >= 0).all()
    assert allocation.shadow_prices @ problem.gpu_counts == pytest.approx(allocation.certificate.objective)


@pytest.mark.parametrize("seed", range(4))
def test_price_of_a_sum_of_logarithms_is_what_a_little_more_gains(seed: int) -> None:
    problem = random_problem(seed, types=2)
    objective = MaxSumLog(figures(problem, seed))

    prices = solve(problem, objective).shadow_prices

    # certified to 1e-6 of a sum of about 20, so that a difference over 50 GPUs is right to 1e-6 per GPU
    assert prices == pytest.approx(slopes(problem, objective, 50 * STEP), rel=2e-2, abs=2e-6)


def test_an_answer_remembers_the_rates_that_were_promised() -> None:
    """Also when types with equal rates were merged while solving."""
    problem = AllocationProblem.of("ab", ["v100", "a100"], [1, 1], [[1.0, 1.0], [9.0, 9.0]], gpus=2)

    promised, plain = (solve(problem, MaxSum(np.ones(2), floors)) for floors in (np.array([0.5, 0.0]), np.zeros(0)))

    assert promised.rate_floor_steps_per_s.tolist() == [0.5, 0.0]
    assert promised.rate_steps_per_s == pytest.approx([0.5, 4.5])
    assert plain.rate_floor_steps_per_s.tolist() == []
