"""Nash welfare, and the strategy-proof partial allocation of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gavelpy.model.arrays import Floats
from gavelpy.model.problem import AllocationProblem
from gavelpy.policies.nash_welfare import NashWelfare
from gavelpy.policies.strategy_proof import StrategyProof
from gavelpy.solve.solver import Solver
from tests.policies.golden import GoldenCase, excess, read_case
from tests.solve.oracle import best_sum_log_by_cvxpy
from tests.solve.problems import random_problem

GOLDEN = ("02", "04", "06", "08", "10", "12", "14", "16", "18", "28", "30")  # the original solved those up to 25 jobs


def without(problem: AllocationProblem, job: int) -> AllocationProblem:
    """The problem of the other jobs, built from scratch."""
    rows = np.delete(np.arange(problem.job_count), job)
    return AllocationProblem.of(
        [problem.job_ids[row] for row in rows],
        problem.gpu_types,
        problem.gpu_counts,
        problem.member_rate_steps_per_s[rows],
        gpus=problem.gpus_asked[rows],
        weight=problem.weight[rows],
    )


def factors_by_definition(problem: AllocationProblem) -> Floats:
    """f_j by the definition in the docstring: rates with and without each job, multiplied."""
    rates = NashWelfare().allocate(problem).rate_steps_per_s
    factors = np.ones(problem.job_count)
    for job in range(problem.job_count):
        others = np.delete(rates, job) / NashWelfare().allocate(without(problem, job)).rate_steps_per_s
        factors[job] = np.prod(others ** (np.delete(problem.weight, job) / problem.weight[job]))
    return factors


def unweighted(case: GoldenCase) -> AllocationProblem:
    """The case without weights, which the original's policy ignores."""
    problem = case.problem()
    return replace(problem, weight=np.ones(problem.job_count))


@pytest.mark.parametrize("seed", range(5))
def test_welfare_is_the_oracles(seed: int) -> None:
    problem = replace(random_problem(seed, jobs=20), weight=np.random.default_rng(seed).uniform(0.5, 5.0, 20))

    allocation = NashWelfare().allocate(problem)

    welfare = problem.weight @ np.log(allocation.rate_steps_per_s)
    assert welfare == pytest.approx(best_sum_log_by_cvxpy(problem, problem.weight), abs=1e-5)
    assert allocation.certificate.objective == pytest.approx(welfare, rel=1e-12)
    assert allocation.certificate.gap <= 1e-8


def test_no_other_shares_raise_the_sum_of_relative_changes() -> None:
    problem = random_problem(7, jobs=20)
    rates = NashWelfare().allocate(problem).rate_steps_per_s
    rng = np.random.default_rng(0)
    others = [replace(problem, weight=rng.uniform(0.1, 10.0, 20)) for _ in range(20)]

    changes = [problem.weight @ (NashWelfare().allocate(p).rate_steps_per_s / rates - 1.0) for p in others]

    assert max(changes) <= 1e-7
    assert min(changes) < -0.1


@pytest.mark.parametrize("gpu_type", range(3))
@pytest.mark.parametrize("seed", range(12))
def test_price_is_what_the_next_gpu_gains_where_all_run_all_the_time(seed: int, gpu_type: int) -> None:
    """As many GPUs as jobs: the last GPU of a type earned more, and an interior point ends between the two."""
    rng = np.random.default_rng(seed)
    rates, counts = rng.uniform(1, 10, (9, 3)), 1 + rng.multinomial(6, [0.3, 0.3, 0.4])
    problem = AllocationProblem.of("abcdefghi", ["x", "y", "z"], counts, rates)
    more = AllocationProblem.of("abcdefghi", ["x", "y", "z"], counts + 0.001 * np.eye(3)[gpu_type], rates)

    before, after = NashWelfare().allocate(problem), NashWelfare().allocate(more)

    gained = (after.certificate.objective - before.certificate.objective) / 0.001
    assert before.shadow_prices[gpu_type] == pytest.approx(gained, rel=1e-2, abs=1e-4)


def test_two_jobs_pay_nothing_for_a_third_gpu() -> None:
    problem = AllocationProblem.of("ab", ["v100"], [2], [[4.0], [3.0]])

    assert NashWelfare().allocate(problem).shadow_prices == pytest.approx([0.0])


def test_the_unit_of_steps_changes_no_share() -> None:
    problem = random_problem(8, jobs=10)
    unit = 10.0 ** np.random.default_rng(0).uniform(-6, 6, (10, 1))

    rescaled = replace(problem, member_rate_steps_per_s=problem.member_rate_steps_per_s * unit)

    shares = NashWelfare().allocate(problem).share
    assert NashWelfare().allocate(rescaled).share == pytest.approx(shares, abs=1e-6)


@pytest.mark.parametrize("seed", range(5))
def test_no_envy_if_only_gpus_are_scarce(seed: int) -> None:
    rng = np.random.default_rng(seed)
    problem = AllocationProblem.of("abcdefgh", ["v100", "p100"], [1, 1], rng.uniform(1, 9, (8, 2)))

    allocation = NashWelfare().allocate(problem)

    with_shares_of = problem.member_rate_steps_per_s @ allocation.share.T
    assert allocation.share.sum(axis=1).max() < 1
    assert (with_shares_of <= allocation.rate_steps_per_s[:, None] * (1 + 1e-6)).all()


def test_pairs_raise_the_welfare() -> None:
    alone = AllocationProblem.of("ab", ["v100"], [1], [[4.0], [5.0]])
    together = alone.with_pairs([(0, 1)], [[[3.2], [4.0]]])

    rates = NashWelfare().allocate(together).rate_steps_per_s

    assert NashWelfare().allocate(alone).rate_steps_per_s == pytest.approx([2.0, 2.5], rel=1e-6)
    assert rates == pytest.approx([3.2, 4.0], rel=1e-5)


@pytest.mark.parametrize("seed", range(4))
def test_factors_are_the_products_of_their_definition(seed: int) -> None:
    weight = np.random.default_rng(seed).choice([0.5, 1.0, 4.0], 9)
    problem = replace(random_problem(seed, jobs=9), weight=weight)

    welfare, partial = NashWelfare().allocate(problem), StrategyProof().allocate(problem)

    factors = partial.rate_steps_per_s / welfare.rate_steps_per_s
    assert factors == pytest.approx(factors_by_definition(problem), rel=1e-6)
    assert partial.share == pytest.approx(welfare.share * factors[:, None], abs=1e-12)
    assert ((factors >= np.exp(-1) * (1 - 1e-9)) & (factors <= 1)).all()


def test_two_equal_jobs_get_half_of_their_halves() -> None:
    problem = AllocationProblem.of("ab", ["v100"], [1], [[4.0], [4.0]])

    allocation = StrategyProof().allocate(problem)

    assert allocation.share[:, 0] == pytest.approx([1 / 4, 1 / 4], rel=1e-9)
    assert allocation.certificate.objective == pytest.approx(2 * np.log(1.0), abs=1e-8)


def test_many_equal_jobs_keep_a_part_near_one_in_e_and_cost_two_solves() -> None:
    problem = AllocationProblem.of([f"job-{i}" for i in range(2000)], ["v100"], [10], np.full((2000, 1), 3.0))
    solver = Solver()

    share = StrategyProof().allocate(problem, solver).share[:, 0]

    assert share * 200 == pytest.approx(np.full(2000, (1999 / 2000) ** 1999), rel=1e-6)
    assert solver.answers.total() == 2


def test_one_job_keeps_everything() -> None:
    problem = AllocationProblem.of("a", ["v100", "k80"], [1, 1], [[3.0, 1.0]])

    assert StrategyProof().allocate(problem).share == pytest.approx(np.array([[1.0, 0.0]]), abs=1e-9)


def test_job_that_takes_nothing_from_others_loses_nothing() -> None:
    problem = AllocationProblem.of("abc", ["v100", "k80"], [1, 1], [[4.0, 0.0], [5.0, 0.0], [0.0, 2.0]])

    rates = StrategyProof().allocate(problem).rate_steps_per_s

    assert rates == pytest.approx([1.0, 1.25, 2.0], rel=1e-9)


def test_a_job_that_can_run_nowhere_changes_nothing_for_others() -> None:
    rates = [[4.0], [5.0], [0.0]]
    with_it = StrategyProof().allocate(AllocationProblem.of("abc", ["v100"], [1], rates))

    alone = StrategyProof().allocate(AllocationProblem.of("ab", ["v100"], [1], rates[:2]))

    assert with_it.share[:2] == pytest.approx(alone.share, rel=1e-9)
    assert (with_it.share[2] == 0).all()


def test_pairs_stay_unused_where_lies_must_not_pay() -> None:
    alone = AllocationProblem.of("ab", ["v100"], [1], [[4.0], [5.0]])

    share = StrategyProof().allocate(alone.with_pairs([(0, 1)], [[[3.0], [4.0]]])).share

    assert share[:, 0] == pytest.approx([1 / 4, 1 / 4, 0.0])


def test_nash_welfare_pays_a_liar_and_the_partial_allocation_does_not() -> None:
    truth = AllocationProblem.of("ab", ["v100", "k80"], [1, 1], [[4.0, 1.0], [1.0, 1.0]], gpus=2)
    lie = replace(
        truth, member_rate_steps_per_s=np.array([[4.0, 1.0], [1.0, 0.5]])
    )  # b hides how well the K80 suits it

    gains = [
        policy.allocate(lie).evaluated_on(truth).rate_steps_per_s[1] / policy.allocate(truth).rate_steps_per_s[1]
        for policy in (NashWelfare(), StrategyProof())
    ]

    assert gains[0] == pytest.approx(1.25, rel=1e-4)
    assert gains[1] <= 1 + 1e-9


@pytest.mark.reference
@pytest.mark.parametrize("case_name", GOLDEN)
def test_partial_allocation_is_the_originals(reference_directory: Path, case_name: str) -> None:
    case = read_case(reference_directory, case_name)
    problem = unweighted(case)

    allocation = StrategyProof().allocate(problem)

    theirs = (problem.member_rate_steps_per_s * case.shares("strategy_proof")).sum(axis=1)
    factors = allocation.rate_steps_per_s / NashWelfare().allocate(problem).rate_steps_per_s
    assert allocation.rate_steps_per_s == pytest.approx(theirs, rel=1e-6)
    # rates before the discount are right to 1e-5 there; in their product with the factors the error cancels
    assert factors == pytest.approx(np.array(case.result("strategy_proof")["discount_factors"]), rel=1e-5)
    assert allocation.certificate.objective == pytest.approx(np.log(theirs).sum(), abs=1e-6)
    assert excess(allocation) <= 1e-9


@pytest.mark.reference
def test_one_job_has_an_answer_where_the_original_fails(reference_directory: Path) -> None:
    case = read_case(reference_directory, "00")

    allocation = StrategyProof().allocate(case.problem())

    assert case.result("strategy_proof")["status"] == "error"
    assert allocation.rate_steps_per_s == pytest.approx(NashWelfare().allocate(case.problem()).rate_steps_per_s)
