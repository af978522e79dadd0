"""Co-located jobs: classes of pairs, models that grow, configurations of three; all against the whole LP."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import assume, given

from gavelpy.errors import InvalidInput, SolverFailed
from gavelpy.model.allocation import Allocation
from gavelpy.model.arrays import Floats
from gavelpy.model.pairs import with_pairs_of_kinds
from gavelpy.model.problem import AllocationProblem
from gavelpy.solve import linear
from gavelpy.solve.certificate import GAP_MAX, VIOLATION_MAX
from gavelpy.solve.ladder import solve
from gavelpy.solve.objective import LinearObjective, MaxMin, MaxSum
from gavelpy.solve.packing import column_generation, column_pool
from gavelpy.solve.program import program_of
from gavelpy.solve.solver import Solver
from tests.solve.packed import all_pairs, distinct, of_kinds, problems_of_kinds, with_groups
from tests.solve.plain import optimum
from tests.solve.problems import allocation_problems

PART = np.array([[0.9, 0.5, 0.7], [0.8, 0.6, 1.0], [0.3, 0.9, 0.4]])
RATES = np.array([[4.0, 1.0], [3.0, 3.0], [9.0, 2.0]])


@pytest.fixture
def grows_always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even the smallest model of co-located jobs starts with few entries."""
    monkeypatch.setattr(linear, "MANY", 0)
    monkeypatch.setattr(linear, "MANY_FOR_EACH", 0)


def excess(allocation: Allocation) -> float:
    """The largest violation of a constraint, from the arrays."""
    p = allocation.problem
    over = (p.gpus_occupied @ allocation.share - p.gpu_counts) / np.maximum(p.gpu_counts, 1.0)
    return float(max(over.max(), (allocation.job_share.sum(axis=1) - 1).max(), -allocation.share.min()))


def assert_optimal(allocation: Allocation, objective: LinearObjective) -> None:
    expected = optimum(allocation.problem, objective)
    certificate = allocation.certificate
    assert expected.status == "Optimal"
    assert certificate.objective == pytest.approx(expected.value, rel=1e-8, abs=1e-12)
    assert certificate.gap <= GAP_MAX
    assert max(certificate.violation, excess(allocation)) <= VIOLATION_MAX


# Classes ----------------------------------------------------------------------------------------------------------


@given(drawn=problems_of_kinds())
def test_pairs_of_classes_have_the_optimum_of_pairs_of_jobs(drawn: tuple[AllocationProblem, Floats]) -> None:
    problem, value = drawn
    assume(problem.can_run.any())

    for_the_worst, for_all = (solve(problem, kind(value)) for kind in (MaxMin, MaxSum))

    assert_optimal(for_the_worst, MaxMin(value))
    assert_optimal(for_all, MaxSum(value))


@given(drawn=problems_of_kinds())
def test_equal_jobs_run_equally_fast_in_pairs(drawn: tuple[AllocationProblem, Floats]) -> None:
    problem, value = drawn
    assume(problem.can_run.any())

    allocation = solve(problem, MaxSum(value))

    program = program_of(problem, value, np.zeros(problem.job_count))
    first = program.jobs[program.classes.representative][program.classes.of_job]
    rates = allocation.rate_steps_per_s
    assert rates[program.jobs] == pytest.approx(rates[first], rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("sizes", [(1, 1, 1), (2, 3, 4), (6, 4, 0), (7, 5, 3), (12, 8, 1)])
def test_kinds_are_found_whatever_their_sizes(sizes: tuple[int, int, int]) -> None:
    kind = np.repeat(np.arange(3), sizes).tolist()
    problem = of_kinds(kind, RATES, PART, gpus=[1, 1, 1], counts=[2, 3])

    program = program_of(problem, np.ones(len(kind)), np.zeros(len(kind)))

    present = sum(size > 0 for size in sizes)
    many = len(kind) > present / 0.7
    assert len(program.value) == (present if many else len(kind))


def test_jobs_alike_alone_but_not_in_pairs_are_told_apart() -> None:
    alone = AllocationProblem.of("abcdef", ["v100"], [2], np.full((6, 1), 4.0))
    pairs = all_pairs(alone)
    rates = [[[3.6], [3.6]] if pair in ((0, 1), (0, 2), (1, 2)) else [[2.2], [2.2]] for pair in pairs]
    problem = alone.with_pairs(pairs, rates)

    allocation = solve(problem, MaxMin(np.ones(6)))

    program = program_of(problem, np.ones(6), np.zeros(6))
    assert program.classes.of_job.tolist() == [0, 0, 0, 1, 1, 1]
    assert_optimal(allocation, MaxMin(np.ones(6)))


def test_partners_at_unequal_rates_are_told_apart() -> None:
    alone = AllocationProblem.of("abcdef", ["v100"], [1], np.full((6, 1), 4.0))
    problem = alone.with_pairs([(0, 3), (4, 1), (2, 5)], [[[3.0], [2.0]], [[2.0], [3.0]], [[3.0], [2.0]]])

    allocation = solve(problem, MaxMin(np.ones(6)))

    program = program_of(problem, np.ones(6), np.zeros(6))
    assert program.classes.of_job.tolist() == [0, 0, 0, 1, 1, 1]
    assert_optimal(allocation, MaxMin(np.ones(6)))


def test_partners_in_a_ring_are_one_class_though_no_pair_is_like_every_other() -> None:
    alone = AllocationProblem.of("abcdef", ["v100"], [2], np.full((6, 1), 4.0))
    pairs = all_pairs(alone)
    rates = [[[3.6], [3.6]] if k - i in (1, 5) else [[2.2], [2.2]] for i, k in pairs]
    problem = alone.with_pairs(pairs, rates)

    allocation = solve(problem, MaxMin(np.ones(6)))

    assert len(program_of(problem, np.ones(6), np.zeros(6)).value) == 1
    assert allocation.certificate.objective == pytest.approx(2 * 3.6 * 2 / 6)  # two GPUs, two of six jobs on each
    assert_optimal(allocation, MaxMin(np.ones(6)))


@pytest.mark.parametrize("seed", range(10))
def test_some_pairs_of_equal_jobs_have_the_optimum_of_those_pairs(seed: int) -> None:
    rng = np.random.default_rng(seed)
    problem = of_kinds(rng.integers(0, 2, 8).tolist(), RATES[:2], np.zeros((2, 2)), gpus=[1, 1], counts=[1, 1])
    alone = AllocationProblem.of(problem.job_ids, problem.gpu_types, [1, 1], problem.rate_alone_steps_per_s)
    some = [pair for pair in all_pairs(alone) if rng.random() < 0.4]
    packed = alone.with_pairs(some, 0.7 * alone.member_rate_steps_per_s[np.array(some)])

    allocation = solve(packed, MaxMin(np.ones(8)))

    assert_optimal(allocation, MaxMin(np.ones(8)))


# Pairs of kinds ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [(1, 2), (2, 2), (3, 5), (4, 6), (7, 1), (9, 9)])
def test_few_pairs_of_kinds_are_as_good_as_all(sizes: tuple[int, int]) -> None:
    kind = np.repeat([0, 1], sizes).tolist()
    everybody = of_kinds(kind, RATES[:2], PART, gpus=[1, 1], counts=[2, 1])
    J = len(kind)
    alone = AllocationProblem.of(everybody.job_ids, everybody.gpu_types, [2, 1], RATES[kind])
    pairs = [(0, 0), (0, 1), (1, 1)]
    together = [[PART[a, b] * RATES[a], PART[b, a] * RATES[b]] for a, b in pairs]

    few = with_pairs_of_kinds(alone, kind, pairs, together)

    level, expected = (solve(p, MaxMin(np.ones(J))).certificate.objective for p in (few, everybody))
    assert level == pytest.approx(expected, rel=1e-9)
    assert few.configuration_count <= 4 * J


@pytest.mark.parametrize(
    ("kind", "pairs", "message"),
    [
        ([0, 1, 2], [(0, 3)], "must name kinds of some job"),
        ([0, 1, 2], [(0, 1), (1, 0)], "must name two kinds once"),
        ([0, 1, 1], [(1, 1)], "same number of GPUs"),
    ],
)
def test_pairs_of_kinds_that_mean_nothing_are_refused(
    kind: list[int], pairs: list[tuple[int, int]], message: str
) -> None:
    problem = AllocationProblem.of("abc", ["v100"], [1], [[1.0]] * 3, gpus=[1, 1, 2])

    with pytest.raises(InvalidInput, match=message):
        with_pairs_of_kinds(problem, kind, pairs, np.ones((len(pairs), 2, 1)))


# Models that grow -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("makespan", [False, True])
def test_a_growing_model_finds_the_optimum_of_all_pairs(seed: int, makespan: bool) -> None:
    problem, solver = distinct(seed, jobs=60), Solver()
    scale = 1 / problem.steps_remaining if makespan else 1 / problem.rate_alone_steps_per_s.mean(axis=1)

    allocation = solve(problem, MaxMin(scale), solver)

    assert allocation.certificate.path == "columns"
    assert not solver.falls
    assert_optimal(allocation, MaxMin(scale))


@pytest.mark.parametrize("seed", range(4))
def test_a_growing_model_keeps_bases_floors_and_jobs_without_a_level(seed: int) -> None:
    problem, rng = distinct(seed, jobs=60), np.random.default_rng(seed)
    fair = solve(problem, MaxMin(1 / problem.rate_alone_steps_per_s.mean(axis=1))).rate_steps_per_s
    objective = MaxMin(
        scale=np.where(rng.random(60) < 0.2, 0.0, 1 / problem.rate_alone_steps_per_s.mean(axis=1)),
        rate_floor_steps_per_s=rng.uniform(0.0, 0.9, 60) * fair,
        base_steps_per_s=rng.uniform(0.0, 0.9, 60) * fair,
    )

    allocation = solve(problem, objective)

    assert allocation.certificate.path == "columns"
    assert (allocation.rate_steps_per_s >= objective.rate_floor_steps_per_s * (1 - 1e-9)).all()
    assert_optimal(allocation, objective)


@pytest.mark.parametrize("seed", range(4))
def test_a_growing_model_finds_the_greatest_sum(seed: int) -> None:
    problem, rng = distinct(seed, jobs=60), np.random.default_rng(seed)
    objective = MaxSum(1 / problem.rate_alone_steps_per_s.max(axis=1), gpu_type_worth=rng.uniform(0.5, 2.0, 3))

    allocation = solve(problem, objective)

    assert allocation.certificate.path == "columns"
    assert_optimal(allocation, objective)


@given(problem=allocation_problems(decades=1))
@pytest.mark.usefixtures("grows_always")
def test_the_smallest_models_grow_to_the_same_optimum(problem: AllocationProblem) -> None:
    assume(problem.can_run.any())
    value = problem.gpus_asked / problem.weight

    for_the_worst, for_all = (solve(problem, kind(value)) for kind in (MaxMin, MaxSum))

    assert_optimal(for_the_worst, MaxMin(value))
    assert_optimal(for_all, MaxSum(value))


@given(problem=allocation_problems(decades=6))
@pytest.mark.usefixtures("grows_always")
def test_growing_models_are_certified_at_any_ratio_of_rates(problem: AllocationProblem) -> None:
    allocation = solve(problem, MaxMin(1 / problem.steps_remaining))

    assert allocation.certificate.gap <= GAP_MAX
    assert max(allocation.certificate.violation, excess(allocation)) <= VIOLATION_MAX


@pytest.mark.usefixtures("grows_always")
def test_classes_grow_too() -> None:
    kind = np.repeat(np.arange(3), (5, 4, 6)).tolist()
    problem = of_kinds(kind, RATES, PART, gpus=[1, 1, 1], counts=[2, 3])

    allocation = solve(problem, MaxMin(1 / RATES[kind, 0]))

    assert allocation.certificate.path == "classes+columns"
    assert_optimal(allocation, MaxMin(1 / RATES[kind, 0]))


@pytest.mark.usefixtures("grows_always")
def test_floors_that_only_pairs_can_keep_are_kept() -> None:
    alone = AllocationProblem.of("abcd", ["v100"], [1], [[4.0], [3.0], [5.0], [7.0]])
    problem = alone.with_pairs(
        all_pairs(alone),
        [[[0.9 * 4.0], [0.9 * 7.0]] if pair == (0, 3) else [[1.0], [1.0]] for pair in all_pairs(alone)],
    )
    floor = np.array([0.6 * 3.6, 0.0, 0.0, 0.6 * 6.3])  # 1.08 GPUs alone, 0.6 co-located

    allocation = solve(problem, MaxSum(np.array([0.0, 1.0, 0.0, 0.0]), floor))

    assert allocation.certificate.path == "columns"
    assert allocation.certificate.objective == pytest.approx(0.4 * 3.0)
    assert (allocation.rate_steps_per_s >= floor * (1 - 1e-9)).all()


@pytest.mark.usefixtures("grows_always")
def test_floors_that_no_pairs_can_keep_are_refused() -> None:
    alone = AllocationProblem.of("ab", ["v100"], [1], [[4.0], [3.0]])
    problem = alone.with_pairs([(0, 1)], [[[3.0], [2.0]]])

    with pytest.raises(SolverFailed, match="infeasible"):
        solve(problem, MaxSum(np.ones(2), np.array([3.5, 2.5])))


@pytest.mark.parametrize("seed", range(3))
def test_what_the_worst_job_leaves_goes_to_the_sum_of_all_pairs(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = distinct(seed, jobs=40, gpus=[1] * 40)
    scale = 1 / problem.steps_remaining  # one long job determines the level; the rest is ties

    grown = solve(problem, MaxMin(scale))
    monkeypatch.setattr(linear, "MANY", 10**9)
    whole = solve(problem, MaxMin(scale))

    assert (grown.certificate.path, whole.certificate.path) == ("columns", "highs")
    sums = [float(scale @ allocation.rate_steps_per_s) for allocation in (grown, whole)]
    assert sums[0] == pytest.approx(sums[1], rel=1e-8)


@pytest.mark.parametrize("gpu_type", range(3))
def test_price_of_a_growing_model_is_the_objective_gained(gpu_type: int) -> None:
    problem = distinct(5, jobs=48, gpus=[1] * 48)
    objective = MaxMin(1 / problem.rate_alone_steps_per_s.mean(axis=1))
    step = 0.001  # of a GPU
    counts = dict(zip(problem.gpu_types, problem.gpu_counts.tolist(), strict=True))
    name = problem.gpu_types[gpu_type]

    allocation = solve(problem, objective)

    more = solve(problem.with_gpus(counts | {name: counts[name] + step}), objective)
    gained = more.certificate.objective - allocation.certificate.objective
    assert allocation.certificate.path == "columns"
    assert allocation.shadow_prices[gpu_type] == pytest.approx(gained / step, rel=1e-4, abs=1e-6)


def test_a_used_solver_grows_to_the_same_bytes() -> None:
    problem, used = distinct(1, jobs=50, gpus=[1] * 50), Solver()
    solve(distinct(2, jobs=40, gpus=[1] * 40), MaxMin(np.ones(40)), used)

    warm, fresh = (solve(problem, MaxMin(np.ones(50)), solver) for solver in (used, Solver()))

    assert warm.certificate.path == fresh.certificate.path == "columns"
    assert warm.share.tobytes() == fresh.share.tobytes()
    assert warm.shadow_prices.tobytes() == fresh.shadow_prices.tobytes()


def test_without_a_guess_the_optimum_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = distinct(3, jobs=64, gpus=[1] * 64)
    objective = MaxMin(1 / problem.rate_alone_steps_per_s.mean(axis=1))
    guessed = solve(problem, objective)

    monkeypatch.setattr(column_generation, "guessed", lambda program, pool: None)
    blind = solve(problem, objective)

    assert guessed.certificate.path == blind.certificate.path == "columns"
    assert blind.certificate.objective == pytest.approx(guessed.certificate.objective, rel=1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_a_guess_is_near_the_duals(seed: int) -> None:
    problem = distinct(seed, jobs=64, gpus=[1] * 64, counts=[6, 6, 6])
    scale = 1 / problem.rate_alone_steps_per_s.mean(axis=1)
    program = program_of(problem, scale, np.zeros(64))

    guessed = column_pool.guessed(program, column_generation.Pool(program))

    expected = optimum(problem, MaxMin(scale)).duals
    assert guessed is not None
    ours, theirs = guessed.rate / program.value, expected.weight / scale
    ours, theirs = ours / ours.sum(), theirs / theirs.sum()
    assert np.median(np.abs(ours / theirs - 1)) < 0.2


def test_a_pair_that_is_no_better_than_taking_turns_is_never_used() -> None:
    problem = distinct(4, jobs=40, gpus=[1] * 40)
    pairs = all_pairs(problem)
    alone = AllocationProblem.of(problem.job_ids, problem.gpu_types, problem.gpu_counts, problem.rate_alone_steps_per_s)
    slow = alone.with_pairs(pairs, 0.499 * alone.member_rate_steps_per_s[np.array(pairs)])
    scale = 1 / alone.member_rate_steps_per_s.mean(axis=1)

    packed, plain = solve(slow, MaxMin(scale)), solve(alone, MaxMin(scale))

    assert packed.certificate.path == "columns"
    assert packed.certificate.objective == pytest.approx(plain.certificate.objective, rel=1e-8)
    assert packed.share[40:].max() == 0


# Three jobs and more ----------------------------------------------------------------------------------------------


def test_three_jobs_share_a_gpu_where_the_data_say_so() -> None:
    alone = AllocationProblem.of("abc", ["v100", "k80"], [1, 1], [[4.0, 1.0], [6.0, 2.0], [5.0, 1.0]])
    problem = with_groups(alone, [(0, 1, 2)], np.array([0.6, 0.2]))

    allocation = solve(problem, MaxMin(1 / alone.member_rate_steps_per_s[:, 0]))

    assert_optimal(allocation, MaxMin(1 / alone.member_rate_steps_per_s[:, 0]))
    assert allocation.share[3, 0] == pytest.approx(1)
    assert allocation.certificate.objective == pytest.approx(0.6)


@pytest.mark.parametrize("jobs", [5, 6])
def test_equal_jobs_in_threes_are_one_class(jobs: int) -> None:
    alone = AllocationProblem.of([str(i) for i in range(jobs)], ["v100"], [1], np.full((jobs, 1), 4.0))
    problem = with_groups(alone, list(combinations(range(jobs), 3)), np.array([0.6]))

    allocation = solve(problem, MaxMin(np.ones(jobs)))

    assert allocation.certificate.path == "classes+highs"
    assert allocation.certificate.objective == pytest.approx(3 * 0.6 * 4.0 / jobs)
    assert_optimal(allocation, MaxMin(np.ones(jobs)))


@pytest.mark.parametrize("seed", range(4))
def test_pairs_and_threes_grow_together(seed: int) -> None:
    rng = np.random.default_rng(seed)
    pairs = distinct(seed, jobs=24, gpus=[1] * 24)
    threes = [tuple(int(j) for j in rng.choice(24, 3, replace=False)) for _ in range(600)]
    problem = with_groups(pairs, threes, rng.uniform(0.3, 0.7, 3))
    scale = 1 / problem.rate_alone_steps_per_s.mean(axis=1)

    allocation = solve(problem, MaxMin(scale))

    assert allocation.certificate.path == "columns"
    assert (allocation.share[-600:] > 0).any()
    assert_optimal(allocation, MaxMin(scale))
