"""The checkers of the random problems: exact proofs, duals from prices, plain optima, and wrong answers they refuse."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from gavelpy.model.arrays import Floats
from gavelpy.model.problem import AllocationProblem
from gavelpy.solve.ladder import solve
from gavelpy.solve.objective import MaxMin, MaxSum, MaxSumLog, MinMaxFinishTime
from tests.solve.exact import Duals, proof
from tests.solve.improvement import improvement
from tests.solve.many import KINDS, even_rate, random_case, random_problem, reason
from tests.solve.oracle import best_level, best_sum
from tests.solve.plain import optimum
from tests.solve.price_duals import curved, duals_of_prices
from tests.solve.problems import random_problem as easy_problem

LINEAR = tuple(
    seed for seed in range(60) if KINDS[seed % len(KINDS)].startswith("max-") and random_case(seed)[0].can_run.any()
)
CURVED = tuple(seed for seed in LINEAR if curved(*random_case(seed)[::2]))


def two_jobs() -> AllocationProblem:
    return AllocationProblem.of("ab", ["v100"], [1], [[4.0], [4.0]])


def duals(price: float, weight: float = 1.0, floor: float = 0.0) -> Duals:
    return Duals(np.full(2, weight), np.full(2, floor), np.zeros(2), np.array([price]))


def fair_scale(problem: AllocationProblem) -> Floats:
    return 1.0 / problem.rate_alone_steps_per_s.max(axis=1)


def test_right_duals_prove_the_optimum_without_a_gap() -> None:
    found = proof(two_jobs(), MaxMin(np.ones(2)), np.full((2, 1), 0.5), duals(price=4.0))

    assert (found.objective, found.bound, found.violation) == (2, 2, 0)


def test_a_common_factor_of_duals_means_nothing_for_a_level() -> None:
    found = proof(two_jobs(), MaxMin(np.ones(2)), np.full((2, 1), 0.5), duals(price=12.0, weight=3.0))

    assert found.bound == 2


def test_half_the_optimum_has_a_gap_of_one() -> None:
    found = proof(two_jobs(), MaxMin(np.ones(2)), np.full((2, 1), 0.25), duals(price=4.0))

    assert found.gap == 1


def test_duals_without_weight_prove_nothing() -> None:
    found = proof(two_jobs(), MaxMin(np.ones(2)), np.full((2, 1), 0.5), duals(price=4.0, weight=0.0))

    assert found.gap == float("inf")


@pytest.mark.parametrize(
    ("share", "violation"), [([0.75, 0.5], Fraction(1, 4)), ([1.25, -0.25], Fraction(1, 4)), ([0.5, 0.5], Fraction(0))]
)
def test_violation_is_exact(share: list[float], violation: Fraction) -> None:
    found = proof(two_jobs(), MaxSum(np.ones(2)), np.array(share).reshape(2, 1), duals(price=4.0))

    assert found.violation == violation


def test_a_broken_floor_is_a_violation_relative_to_itself() -> None:
    objective = MaxSum(np.ones(2), np.array([4.0, 0.0]))

    found = proof(two_jobs(), objective, np.full((2, 1), 0.5), duals(price=4.0))

    assert found.violation == Fraction(1, 2)


def test_a_floor_that_costs_something_lowers_the_bound() -> None:
    problem = AllocationProblem.of("ab", ["v100"], [1], [[4.0], [1.0]])
    objective = MaxSum(np.ones(2), np.array([0.0, 0.5]))

    found = proof(
        problem, objective, np.full((2, 1), 0.5), Duals(np.ones(2), np.array([0.0, 3.0]), np.zeros(2), np.array([4.0]))
    )

    assert (found.objective, found.bound) == (Fraction(5, 2), Fraction(5, 2))


@pytest.mark.parametrize("seed", LINEAR)
def test_any_duals_bound_the_optimum(seed: int) -> None:
    problem, _, objective = random_case(seed)
    rng = np.random.default_rng(seed)
    J, T = problem.job_count, len(problem.gpu_types)
    drawn = Duals(*(10.0 ** rng.uniform(-2, 2, n) for n in (J, J, J, T)))

    answer = solve(problem, objective)

    found = proof(problem, objective, answer.share, drawn)
    assert found.bound is None or found.bound >= found.objective * (1 - Fraction(1, 10**9))


@pytest.mark.parametrize("seed", CURVED)
def test_our_prices_alone_prove_our_answer_in_rationals(seed: int) -> None:
    problem, _, objective = random_case(seed)

    answer = solve(problem, objective)

    found = proof(problem, objective, answer.share, duals_of_prices(problem, objective, answer.shadow_prices))
    assert found.gap <= 1e-8
    assert found.violation <= 1e-9


def test_other_prices_prove_less() -> None:
    problem = easy_problem(1, jobs=40)
    objective = MaxMin(fair_scale(problem))
    answer = solve(problem, objective)

    found = proof(problem, objective, answer.share, duals_of_prices(problem, objective, answer.shadow_prices[::-1]))

    assert found.gap > 1e-3


@pytest.mark.parametrize("seed", range(6))
def test_plain_optimum_is_the_oracles(seed: int) -> None:
    problem = easy_problem(seed, jobs=20)
    floor = 0.3 * even_rate(problem)

    level = optimum(problem, MaxMin(fair_scale(problem), floor)).value
    total = optimum(problem, MaxSum(problem.weight, floor)).value

    assert level == pytest.approx(best_level(problem, fair_scale(problem), floor), rel=1e-7)
    assert total == pytest.approx(best_sum(problem, problem.weight, floor), rel=1e-7)


@pytest.mark.parametrize("objective", [MaxMin(np.ones(30)), MaxSum(np.ones(30)), MaxSumLog(np.ones(30))])
def test_an_answer_that_could_be_better_is_refused(objective: MaxMin | MaxSum | MaxSumLog) -> None:
    problem = easy_problem(0, jobs=30)
    answer = solve(problem, objective)
    even = np.tile(problem.gpu_counts / problem.gpus_asked.sum() / 2, (30, 1))
    rate = (problem.rate_alone_steps_per_s * even).sum(axis=1)
    claims = {MaxMin: rate.min(), MaxSum: rate.sum(), MaxSumLog: np.log(rate).sum()}
    worse = replace(
        answer, share=even, certificate=replace(answer.certificate, objective=float(claims[type(objective)]))
    )

    assert reason(answer, objective) != ""
    assert reason(worse, objective) == ""


def test_a_certificate_that_claims_more_than_the_shares_give_is_refused() -> None:
    problem = easy_problem(0, jobs=30)
    answer = solve(problem, MaxSum(np.ones(30)))

    assert reason(replace(answer, share=answer.share * 0.999), MaxSum(np.ones(30))) == ""


def test_shares_of_more_gpus_than_there_are_are_refused() -> None:
    problem = easy_problem(0, jobs=30)
    answer = solve(problem, MaxSum(np.ones(30)))
    more = replace(
        answer,
        share=answer.share * (1 + 1e-8),
        certificate=replace(answer.certificate, objective=answer.certificate.objective * (1 + 1e-8)),
    )

    assert reason(more, MaxSum(np.ones(30))) == ""


def test_a_finish_time_ratio_that_could_be_lower_is_an_improvement() -> None:
    problem = AllocationProblem.of("ab", ["v100"], [1], [[4.0], [4.0]])
    objective = MinMaxFinishTime(np.full(2, 400.0), np.zeros(2), np.full(2, 200.0))
    answer = solve(problem, objective)
    uneven = replace(answer, share=np.array([[0.4], [0.6]]))

    assert improvement(answer, objective) <= 1e-9
    assert improvement(uneven, objective) > 1e-7


def test_random_problems_hold_every_trouble() -> None:
    drawn = [random_problem(seed, decades_max=6, pairs=True) for seed in range(200)]

    assert min(p.job_count for p in drawn) == 1
    assert max(p.job_count for p in drawn) >= 290
    assert {len(p.gpu_types) for p in drawn} == set(range(1, 11))
    assert any((p.gpu_counts == 0).any() for p in drawn)
    assert any(not p.can_run.any() for p in drawn)
    assert any(not p.can_run.all() and p.can_run.any() for p in drawn)
    assert any(p.is_oversized.any() for p in drawn)
    assert any(not p.runs_alone for p in drawn)
    assert any(
        p.rate_alone_steps_per_s.max() / p.rate_alone_steps_per_s[p.rate_alone_steps_per_s > 0].min() > 1e10
        for p in drawn
        if p.can_run.any()
    )


def test_a_problem_is_the_same_whenever_it_is_drawn() -> None:
    (first, _, objective), (again, _, same) = random_case(7), random_case(7)

    assert first.member_rate_steps_per_s.tobytes() == again.member_rate_steps_per_s.tobytes()
    assert vars(objective).keys() == vars(same).keys()
