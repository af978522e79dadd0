"""Linear objectives against simpler computations, on problems drawn by hypothesis."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gavelpy.model.allocation import Allocation
from gavelpy.model.problem import AllocationProblem
from gavelpy.solve.certificate import GAP_MAX, VIOLATION_MAX
from gavelpy.solve.ladder import solve
from gavelpy.solve.objective import MaxMin, MaxSum
from gavelpy.solve.solver import Solver
from tests.solve.oracle import best_level, best_level_by_cvxpy, best_sum
from tests.solve.problems import allocation_problems, random_problem

GIVEN_UP_FOR_TIES = 1e-3  # of the sum: the effect of 1e-10, the oracle's tolerance, when a level is dear


def least_value(allocation: Allocation, scale: np.ndarray) -> float:
    return float((scale * allocation.rate_steps_per_s)[allocation.problem.can_run].min())


def keeps(allocation: Allocation, floor: np.ndarray) -> bool:
    """Whether rates reach their floors, up to 1e-9 of the floor or of a millionth of the best rate."""
    best = allocation.problem.rate_alone_steps_per_s.max(axis=1)
    return bool((allocation.rate_steps_per_s >= floor - 1e-9 * np.maximum(floor, 1e-6 * best)).all())


@given(problem=allocation_problems())
def test_max_min_is_the_oracles(problem: AllocationProblem) -> None:
    assume(problem.can_run.any())
    scale = problem.gpus_asked / problem.weight

    allocation = solve(problem, MaxMin(scale))

    assert least_value(allocation, scale) == pytest.approx(best_level(problem, scale), rel=1e-6)


@given(problem=allocation_problems(decades=6))
def test_max_min_is_certified_at_any_ratio_of_rates(problem: AllocationProblem) -> None:
    allocation = solve(problem, MaxMin(1 / problem.steps_remaining))

    assert allocation.certificate.gap <= GAP_MAX
    assert allocation.certificate.violation <= VIOLATION_MAX


@given(problem=allocation_problems())
def test_max_sum_is_the_oracles(problem: AllocationProblem) -> None:
    assume(problem.can_run.any())

    allocation = solve(problem, MaxSum(problem.weight))

    assert problem.weight @ allocation.rate_steps_per_s == pytest.approx(best_sum(problem, problem.weight), rel=1e-6)


@given(problem=allocation_problems(), part=st.floats(0.0, 0.9))
def test_max_sum_keeps_rate_floors(problem: AllocationProblem, part: float) -> None:
    assume(problem.can_run.any())
    fair = solve(problem, MaxMin(np.ones(problem.job_count)))
    floor = part * fair.rate_steps_per_s

    allocation = solve(problem, MaxSum(problem.weight, floor))

    assert keeps(allocation, floor)
    expected = best_sum(problem, problem.weight, floor * (1 - 1e-9))
    assert allocation.certificate.objective == pytest.approx(expected, rel=1e-6)


@given(problem=allocation_problems(), part=st.floats(0.0, 0.9))
def test_max_min_keeps_rate_floors(problem: AllocationProblem, part: float) -> None:
    assume(problem.can_run.any())
    scale = problem.gpus_asked / problem.weight
    floor = part * solve(problem, MaxSum(problem.weight)).rate_steps_per_s

    allocation = solve(problem, MaxMin(scale, floor))

    assert keeps(allocation, floor)
    assert allocation.certificate.objective == pytest.approx(
        best_level(problem, scale, floor * (1 - 1e-9)), rel=1e-6, abs=1e-12
    )


@given(problem=allocation_problems(), seed=st.integers(0, 10**6))
def test_levels_above_bases_are_the_oracles(problem: AllocationProblem, seed: int) -> None:
    assume(problem.can_run.any())
    rng = np.random.default_rng(seed)
    scale = problem.gpus_asked / problem.weight
    base = rng.uniform(0, 1.5, problem.job_count) * solve(problem, MaxMin(scale)).rate_steps_per_s

    allocation = solve(problem, MaxMin(scale, base_steps_per_s=base))

    expected = best_level(problem, scale, base=base)  # below zero if the bases are out of reach
    unit = best_level(problem, scale)
    assert allocation.certificate.objective == pytest.approx(expected, rel=1e-6, abs=1e-7 * unit)


def test_a_level_is_exact_also_where_a_quick_job_has_a_base_near_its_rate() -> None:
    rates = [[10.0]] * 4 + [[0.1]]
    problem = AllocationProblem.of("abcde", ["v100"], [3], rates, weight=[1e-3] * 4 + [1e3])
    base = np.array([3.82177012, 1.61872028, 0.24584114, 5.47653346, 0.12199054])

    allocation = solve(problem, MaxMin(1 / problem.weight, base_steps_per_s=base))

    assert allocation.certificate.objective == pytest.approx(1e-3 * (0.1 - 0.12199054), rel=1e-12)
    assert allocation.certificate.gap <= GAP_MAX


def test_an_optimum_that_presolve_does_not_find_is_found_without_it() -> None:
    slow, some, quick = [0.0, 0.0, 0.022587698], [0.0, 5 / 7, 5 / 7], [0.0, 0.0, 500 / 7]
    rates = np.array([quick, quick, quick, slow, some, slow, quick])
    weight = [1e-3] * 3 + [1e3] + [1e-3] * 3
    problem = AllocationProblem.of("abcdefg", ["k80", "p100", "v100"], [10, 1, 8], rates, gpus=[1, 1, 4, 8, 8, 8, 8])
    pairs = [(0, 1), (3, 4), (3, 5), (3, 6), (4, 5), (4, 6), (5, 6)]
    problem = replace(problem, weight=np.array(weight)).with_pairs(pairs, 0.7 * rates[np.array(pairs)])

    allocation = solve(problem, MaxMin(problem.gpus_asked / problem.weight))

    assert allocation.certificate.gap <= GAP_MAX
    assert allocation.certificate.violation <= VIOLATION_MAX


@given(problem=allocation_problems(), keep=st.sampled_from([0.0, 0.3, 0.9]))
def test_a_job_of_scale_zero_has_its_floor_and_no_part_in_the_minimum(problem: AllocationProblem, keep: float) -> None:
    assume(problem.can_run.sum() > 1)
    out = int(np.argmax(problem.can_run))
    scale = np.where(np.arange(problem.job_count) == out, 0.0, problem.gpus_asked / problem.weight)
    floor = np.where(scale == 0, keep * solve(problem, MaxMin(problem.gpus_asked)).rate_steps_per_s, 0.0)

    allocation = solve(problem, MaxMin(scale, floor))

    assert allocation.rate_steps_per_s[out] >= floor[out] * (1 - 1e-9)
    assert allocation.certificate.objective == pytest.approx(
        best_level(problem, scale, floor * (1 - 1e-9)), rel=1e-6, abs=1e-12
    )


def test_a_minimum_over_jobs_that_can_run_nowhere_is_zero_and_floors_are_kept() -> None:
    problem = AllocationProblem.of("ab", ["v100"], [1], [[4.0], [0.0]])

    allocation = solve(problem, MaxMin(np.array([0.0, 1.0]), np.array([3.0, 0.0])))

    assert allocation.certificate.objective == 0
    assert allocation.rate_steps_per_s[0] >= 3 * (1 - 1e-9)


@given(problem=allocation_problems(), seed=st.integers(0, 10**6))
def test_sum_by_worth_of_types_is_the_oracles(problem: AllocationProblem, seed: int) -> None:
    assume(problem.can_run.any())
    worth = np.random.default_rng(seed).choice([0.0, 0.1, 1.0, 1.0, 30.0], len(problem.gpu_types))
    floor = 0.5 * solve(problem, MaxMin(problem.gpus_asked)).rate_steps_per_s

    allocation = solve(problem, MaxSum(problem.weight, floor, worth))

    expected = best_sum(problem, problem.weight, floor * (1 - 1e-9), worth)
    assert allocation.certificate.objective == pytest.approx(expected, rel=1e-6)
    assert keeps(allocation, floor)


@given(problem=allocation_problems(coarse=True))
def test_what_the_worst_job_leaves_goes_to_the_sum(problem: AllocationProblem) -> None:
    assume(problem.can_run.any())
    scale = problem.gpus_asked

    allocation = solve(problem, MaxMin(scale))

    level = np.where(problem.can_run, best_level(problem, scale) * (1 - 1e-11) / scale, 0.0)
    assert float(scale @ allocation.rate_steps_per_s) >= best_sum(problem, scale, level) * (1 - GIVEN_UP_FOR_TIES)


@given(problem=allocation_problems())
def test_a_used_solver_gives_the_bytes_of_a_fresh_one(problem: AllocationProblem) -> None:
    used = Solver()
    solve(random_problem(3, jobs=20), MaxMin(np.ones(20)), used)

    warm, fresh = (solve(problem, MaxMin(problem.weight), solver) for solver in (used, Solver()))

    assert warm.share.tobytes() == fresh.share.tobytes()
    assert warm.shadow_prices.tobytes() == fresh.shadow_prices.tobytes()


@pytest.mark.parametrize("peer", ["ECOS", "CLARABEL"])
@pytest.mark.parametrize("seed", range(5))
def test_max_min_is_that_of_an_interior_point(seed: int, peer: str) -> None:
    problem = random_problem(seed, jobs=30)
    scale = 1 / problem.rate_alone_steps_per_s.mean(axis=1)

    allocation = solve(problem, MaxMin(scale))

    assert least_value(allocation, scale) == pytest.approx(best_level_by_cvxpy(problem, scale, peer), rel=1e-6)


@pytest.mark.parametrize("jobs", [150, 400])
def test_larger_problems_are_certified_on_the_first_rung(jobs: int) -> None:
    problem, solver = random_problem(1, jobs=jobs, types=5), Solver()

    allocation = solve(problem, MaxMin(1 / problem.steps_remaining), solver)

    assert allocation.certificate.path == "prices"
    assert allocation.certificate.gap <= GAP_MAX
    assert not solver.falls


@pytest.mark.parametrize("gpu_type", range(3))
@pytest.mark.parametrize("seed", range(6))
def test_price_is_the_objective_gained_by_one_more_gpu(seed: int, gpu_type: int) -> None:
    problem = random_problem(seed, jobs=24)
    objective = MaxMin(1 / problem.rate_alone_steps_per_s.mean(axis=1))
    step = 0.001  # of a GPU: the optimum is piecewise linear in the number of GPUs
    more = _with_gpus(problem, gpu_type, step)

    allocation = solve(problem, objective)

    gained = solve(more, objective).certificate.objective - allocation.certificate.objective
    assert allocation.shadow_prices[gpu_type] == pytest.approx(gained / step, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("part", [1e-9, 1e-10, 1e-12])
def test_a_packed_job_of_few_steps_does_not_idle_next_to_free_gpus(part: float) -> None:
    rates = np.array([[50.0, 30.0], [40.0, 20.0], [60.0, 10.0], [55.0 * part, 25.0 * part]])
    problem = AllocationProblem.of("abcd", ["x", "y"], [4, 4], rates)
    problem = problem.with_pairs([(0, 1), (1, 2)], 0.6 * rates[[[0, 1], [1, 2]]])

    allocation = solve(problem, MaxSum(np.ones(4)))

    assert allocation.rate_steps_per_s == pytest.approx(rates[:, 0], rel=1e-9)


def test_price_of_a_sum_is_what_the_next_gpu_earns() -> None:
    problem = AllocationProblem.of("abc", ["v100", "k80"], [1, 1], [[9.0, 1.0], [8.0, 2.0], [7.0, 3.0]])

    allocation = solve(problem, MaxSum(np.ones(3)))

    assert allocation.certificate.objective == pytest.approx(12)  # a on the V100, c on the K80
    assert allocation.shadow_prices == pytest.approx([8, 2])  # b would use another GPU of either type


def test_price_of_a_type_counts_what_it_is_worth() -> None:
    problem = AllocationProblem.of("ab", ["v100", "k80"], [1, 0], [[2.0, 1.0], [2.0, 1.0]])

    allocation = solve(problem, MaxSum(np.ones(2), gpu_type_worth=np.array([1.0, 7.0])))

    assert allocation.certificate.objective == pytest.approx(2)
    assert allocation.shadow_prices == pytest.approx([2, 7])


def test_a_type_without_gpus_has_the_price_of_its_first_one() -> None:
    problem = AllocationProblem.of("ab", ["v100", "h100"], [1, 0], [[2.0, 6.0], [2.0, 6.0]])

    allocation = solve(problem, MaxMin(np.ones(2)))

    assert allocation.certificate.objective == pytest.approx(1)
    assert allocation.shadow_prices == pytest.approx([1, 3])  # with the H100 each job earns 1 + 3


def test_gpus_in_plenty_are_worth_nothing() -> None:
    problem = AllocationProblem.of("ab", ["v100"], [5], [[2.0], [6.0]])

    allocation = solve(problem, MaxMin(np.ones(2)))

    assert allocation.shadow_prices.tolist() == [0]
    assert allocation.share == pytest.approx(np.ones((2, 1)))


def _with_gpus(problem: AllocationProblem, gpu_type: int, gpus: float) -> AllocationProblem:
    capacity = problem.capacity.copy()
    capacity[gpu_type, 0] += round(1000 * gpus)
    return replace(problem, capacity=capacity)
