"""The rung for many distinct jobs: its numpy and numba kernels against each other, its answers against an LP."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from scipy.optimize import linprog

from benchmarks.peers import equal_levels
from benchmarks.problems import Mix, draw
from gavelpy.model.arrays import Floats
from gavelpy.model.problem import AllocationProblem
from gavelpy.policies.base import policy_from
from gavelpy.solve.ladder import solve
from gavelpy.solve.objective import MaxMin, MaxSum
from gavelpy.solve.prices import engine, newton, numba_kernels, numpy_kernels, starting_prices
from gavelpy.solve.prices.table import Sweep, Table
from gavelpy.solve.solver import Solver
from tests.solve.oracle import best_level, best_sum
from tests.solve.problems import random_problem

SEEDS = range(8)


def table(seed: int, *, jobs: int = 200, types: int = 4, gains: bool = False) -> tuple[Table, Floats, Floats]:
    """A random table with some modes missing, and required rates with their slopes."""
    rng = np.random.default_rng(seed)
    rate = np.where(rng.random((jobs, types)) < 0.2, 0.0, rng.uniform(0.1, 1.0, (jobs, types)))
    rate[:, 0] = np.maximum(rate[:, 0], 0.1)
    rate /= rate.max(axis=1, keepdims=True)
    gpus, count = rng.choice([1.0, 2.0, 4.0], jobs), rng.choice([1.0, 3.0], jobs)
    gain = rate * rng.uniform(0.5, 2.0, (jobs, 1)) if gains else np.zeros((0, types))
    slope = np.zeros(jobs) if gains else rng.uniform(0.5, 1.5, jobs)
    return Table(rate, gpus, count, rng.uniform(10, 60, types), gain), rng.uniform(0.0, 1.0, jobs), slope


@pytest.mark.parametrize("gains", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_machine_code_sweeps_as_numpy_does(seed: int, gains: bool) -> None:
    jobs, need, slope = table(seed, gains=gains)
    prices = np.random.default_rng(seed).uniform(0.0, 1.0, 4)

    got = numba_kernels.sweep(jobs, need, slope, prices, 0.1, 0.5)
    expected = numpy_kernels.sweep(jobs, need, slope, prices, 0.1, 0.5)

    assert (got.low == expected.low).all()
    assert (got.high == expected.high).all()
    assert got.short == expected.short
    for name in ("margin", "used", "drift", "curvature", "reward"):
        np.testing.assert_allclose(getattr(got, name), getattr(expected, name), rtol=1e-11, atol=1e-11, err_msg=name)


@pytest.mark.parametrize("gains", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_machine_code_settles_as_numpy_does(seed: int, gains: bool) -> None:
    jobs, need, slope = table(seed, gains=gains)
    prices = np.random.default_rng(seed).uniform(0.0, 1.0, 4)
    mixes = numpy_kernels.sweep(jobs, need, slope, prices, 0.0, 0.5)

    time, steepness = numba_kernels.settle(jobs, mixes.low, mixes.high, need, prices)
    expected_time, expected_steepness = numpy_kernels.settle(jobs, mixes.low, mixes.high, need, prices)

    np.testing.assert_allclose(time, expected_time, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(steepness, expected_steepness, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("seed", SEEDS)
def test_machine_code_tallies_as_numpy_does(seed: int) -> None:
    rng = np.random.default_rng(seed)
    J, T = 3000, 3
    rate = np.where(rng.random((J, T)) < 0.3, 0.0, rng.uniform(1.0, 9.0, (J, T)))
    per_job = [rng.uniform(0.0, 1.0, J) for _ in range(4)]
    share = rng.uniform(-0.01, 0.5, (J, T))
    prices, worth, best = rng.uniform(0.0, 1.0, T), rng.uniform(0.5, 1.0, T), rate.max(axis=1)
    gpus = rng.choice([1.0, 2.0], J)
    weight, gain, scale, floor = per_job
    arguments = (rate, gpus, share, weight, gain, worth, prices, scale, floor, best)

    got, expected = numba_kernels.tally(*arguments), numpy_kernels.tally(*arguments)

    for name, figure in vars(expected).items():
        np.testing.assert_allclose(getattr(got, name), figure, rtol=1e-12, err_msg=name)


def sparse(seed: int, jobs: int, types: int, gpus: tuple[int, int]) -> AllocationProblem:
    """Distinct jobs, some of which cannot run on some types, and two nowhere."""
    rng = np.random.default_rng(seed)
    rates = rng.uniform(0.5, 20.0, (jobs, 1)) * rng.uniform(0.05, 1.0, (jobs, types))
    rates[rng.random(rates.shape) < 0.25] = 0.0
    rates[[3, 17]] = 0.0
    counts = rng.integers(*gpus, types)
    counts[-1] = 0
    names = [f"job-{i}" for i in range(jobs)]
    weight = 10.0 ** rng.uniform(-3, 3, jobs)
    return AllocationProblem.of(
        names, [f"t{i}" for i in range(types)], counts, rates, gpus=rng.choice([1, 2, 4], jobs), weight=weight
    )


@pytest.mark.parametrize("gpus", [(4, 10), (20, 60), (100, 300)], ids=["scarce", "some", "plenty"])
@pytest.mark.parametrize("types", [2, 4, 9])
@pytest.mark.parametrize("seed", range(3))
def test_the_level_is_that_of_the_plain_program(seed: int, types: int, gpus: tuple[int, int]) -> None:
    problem = sparse(seed, 120, types, gpus)
    scale = 1.0 / problem.weight

    allocation = solve(problem, MaxMin(scale))

    assert allocation.certificate.path == "prices"
    assert allocation.certificate.objective == pytest.approx(best_level(problem, scale), rel=2e-8)


@pytest.mark.parametrize("gpus", [(4, 10), (20, 60), (100, 300)], ids=["scarce", "some", "plenty"])
@pytest.mark.parametrize("types", [2, 4, 9])
@pytest.mark.parametrize("seed", range(3))
def test_the_sum_is_that_of_the_plain_program(seed: int, types: int, gpus: tuple[int, int]) -> None:
    problem = sparse(seed, 120, types, gpus)

    allocation = solve(problem, MaxSum(problem.weight))

    assert allocation.certificate.path == "prices"
    assert allocation.certificate.objective == pytest.approx(best_sum(problem, problem.weight), rel=2e-8)


@pytest.mark.parametrize("seed", range(6))
def test_floors_are_kept_by_prices(seed: int) -> None:
    problem = random_problem(seed, jobs=150)
    attainable = solve(problem, MaxMin(np.ones(150))).certificate.objective
    floor = np.where(np.arange(150) % 2 == 0, 0.9 * attainable, 0.0)

    allocation = solve(problem, MaxSum(np.ones(150), floor))

    assert allocation.certificate.path == "prices"
    assert (allocation.rate_steps_per_s >= floor * (1 - 1e-9)).all()
    assert allocation.certificate.objective == pytest.approx(best_sum(problem, np.ones(150), floor), rel=2e-8)


@pytest.mark.parametrize("seed", range(4))
def test_what_the_worst_job_leaves_is_spent(seed: int) -> None:
    problem = sparse(seed, 120, 4, (100, 300))
    scale = 1.0 / problem.weight

    allocation = solve(problem, MaxMin(scale))

    level = allocation.certificate.objective
    floor = np.where(problem.can_run, level * (1 - 1e-12) / scale, 0.0)
    most = best_sum(problem, scale, floor)
    assert float(scale @ allocation.rate_steps_per_s) == pytest.approx(most, rel=1e-6)


@pytest.mark.parametrize("objective", [lambda n: MaxMin(np.ones(n)), lambda n: MaxSum(np.ones(n))], ids=["min", "sum"])
def test_thousands_of_jobs_are_certified_to_rounding(objective: Callable[[int], MaxMin | MaxSum]) -> None:
    problem = random_problem(1, jobs=5000, types=5)
    solver = Solver()

    certificate = solve(problem, objective(5000), solver).certificate

    assert certificate.path == "prices"
    assert certificate.gap <= 1e-12
    assert certificate.violation <= 1e-12
    assert not solver.falls


LINEAR = {
    "min": lambda p: MaxMin(1.0 / p.weight),
    "sum": lambda p: MaxSum(p.weight),
    "sum, floors": lambda p: MaxSum(np.ones(p.job_count), np.where(p.can_run, 1e-3, 0.0)),
}


@pytest.mark.parametrize("types", [3, 8])
@pytest.mark.parametrize("kind", LINEAR)
@pytest.mark.parametrize("seed", range(2))
def test_where_newton_fails_the_interior_point_finds_what_highs_finds(
    seed: int, kind: str, types: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = sparse(seed, 600, types, (20, 120))
    monkeypatch.setattr(newton, "_STEPS_MAX", 1)
    monkeypatch.setattr(newton, "FIRST_STEPS", 1)
    monkeypatch.setattr(starting_prices, "FIRST_STEPS", 1)
    monkeypatch.setattr(engine, "ATTEMPTS", 1)
    monkeypatch.setattr(engine, "unique", lambda *_: None)
    monkeypatch.setattr(engine, "has_few_pivots", lambda _: False)
    monkeypatch.setattr(engine, "search_kernels", lambda: None)
    solver = Solver()

    allocation = solve(problem, LINEAR[kind](problem), solver)

    monkeypatch.setattr(engine, "answers", lambda *_: False)
    by_highs = solve(problem, LINEAR[kind](problem)).certificate
    certificate = allocation.certificate
    assert (certificate.path, by_highs.path) == ("interior after prices", "highs")
    assert solver.falls == {"prices": 1}
    assert certificate.objective == pytest.approx(by_highs.objective, rel=1e-9)
    assert certificate.gap <= 1e-10
    assert certificate.violation <= 1e-12


@pytest.mark.parametrize("load", [0.33, 0.6])
@pytest.mark.parametrize("types", [3, 8])
def test_level_that_the_slowest_job_limits_takes_few_sweeps(
    load: float, types: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = draw(2048, types, Mix.DISTINCT, load=load).problem()
    swept = newton.Dual.swept
    sweeps = []

    def counted(dual: newton.Dual, *point: object) -> Sweep:
        sweeps.append(dual)
        return swept(dual, *point)  # type: ignore[arg-type]  # the arguments of `swept`

    monkeypatch.setattr(newton.Dual, "swept", counted)

    allocation = policy_from("max_min_fairness").allocate(problem, Solver())

    assert not allocation.shadow_prices.any()
    assert allocation.certificate.gap <= 1e-9
    assert len(sweeps) <= 48, "59 to 81 if the level is sought before the limit"


def test_where_both_searches_for_prices_fail_highs_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = sparse(0, 600, 4, (20, 120))
    monkeypatch.setattr(engine, "ATTEMPTS", 0)
    monkeypatch.setattr(engine, "unique", lambda *_: None)
    monkeypatch.setattr(engine, "has_few_pivots", lambda _: False)
    monkeypatch.setattr(engine, "search_kernels", lambda: None)
    solver = Solver()

    certificate = solve(problem, MaxMin(1.0 / problem.weight), solver).certificate

    assert certificate.path == "highs after interior after prices"
    assert solver.falls == {"prices": 1, "interior": 1}


@pytest.mark.parametrize("seed", range(60))
def test_needs_that_prices_put_out_of_reach_have_no_times(seed: int) -> None:
    given, need, _ = table(seed, jobs=5 + seed, types=2 + seed % 4)
    counts = given.gpu_counts * np.random.default_rng(seed).uniform(0.1, 2.0)
    scarce = Table(given.rate, given.gpus, given.count, counts, given.gain)

    refuted = engine._is_out_of_reach(scarce, need)

    assert not refuted or not _has_times(scarce, need)


@pytest.mark.parametrize("load", [0.05, 0.1])
def test_prices_put_a_level_that_no_gpus_deliver_out_of_reach(load: float) -> None:
    problem = draw(128, 3, Mix.DISTINCT, load=load).problem()
    jobs = engine.jobs_of(problem, equal_levels(problem), np.zeros(problem.job_count))
    need = np.minimum(float(jobs.value.min()) / jobs.value, 1.0)

    assert engine._is_out_of_reach(jobs.table, need)
    assert not _has_times(jobs.table, need)


def _has_times(given: Table, need: Floats) -> bool:
    """Whether a linear program finds times, (K, T), that give every class its need."""
    K, T = given.rate.shape
    rates, times, loads = np.zeros((K, K * T)), np.zeros((K, K * T)), np.zeros((T, K * T))
    for k in range(K):
        rates[k, k * T : (k + 1) * T] = -given.rate[k]
        times[k, k * T : (k + 1) * T] = 1.0
        loads[np.arange(T), k * T + np.arange(T)] = given.load[k]
    limits = np.concatenate([-need, np.ones(K), given.gpu_counts])
    found = linprog(np.zeros(K * T), A_ub=np.vstack([rates, times, loads]), b_ub=limits)
    assert found.status in (0, 2), found.message
    return bool(found.status == 0)


@pytest.mark.parametrize("load", [0.33, 0.6])
@pytest.mark.parametrize("seed", range(4))
def test_pivots_find_the_highest_sum_of_a_hundred_jobs_that_newton_and_the_exact_step_find(
    seed: int, load: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = draw(100, 3, Mix.DISTINCT, load=load, seed=seed).problem()
    objective = MaxSum(problem.weight / problem.rate_alone_steps_per_s.max(axis=1))

    by_pivots = solve(problem, objective)
    monkeypatch.setattr(engine, "has_few_pivots", lambda _: False)
    by_prices = solve(problem, objective)

    assert by_pivots.certificate.path == by_prices.certificate.path == "prices"
    assert by_pivots.certificate.gap <= 1e-12
    assert by_pivots.share == pytest.approx(by_prices.share, abs=1e-12)
    assert by_pivots.shadow_prices == pytest.approx(by_prices.shadow_prices, rel=1e-9, abs=1e-12)
