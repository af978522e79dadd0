"""Newton's steps and roots of bent needs in numba, against numpy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.problems import Mix, draw
from gavelpy.solve.finish_time_search import Curves, Rising
from gavelpy.solve.prices import level_curve, newton, numpy_kernels
from gavelpy.solve.prices.newton import Dual, Point, near, roughly
from gavelpy.solve.prices.table import Fixed, Proportional, Table, compiled, jobs_of


def dual_of(seed: int) -> tuple[Dual, Point]:
    """A random level or sum with what makes systems singular or numbers extreme, and where its steps start."""
    rng = np.random.default_rng(seed)
    jobs, types = int(rng.integers(2, 60)), int(rng.integers(1, 6))
    rate = 10.0 ** rng.uniform(-rng.choice([0.5, 3.0, 6.0]), 0.0, (jobs, types))
    rate[rng.random((jobs, types)) < rng.choice([0.0, 0.3])] = 0.0
    rate[:, 0] = np.maximum(rate[:, 0], 1e-3)
    rate /= rate.max(axis=1, keepdims=True)
    if rng.random() < 0.2:
        rate[:] = rate[0]
    gpus, counts = rng.choice([1.0, 2.0, 8.0], jobs), np.ceil(jobs * rng.uniform(0.1, 1.5, types))
    value, is_level = 10.0 ** rng.uniform(-1, 1, jobs), seed % 2 == 0
    gain = np.zeros((0, types)) if is_level else rate * value[:, None]
    table = Table(rate, gpus, np.ones(jobs), counts, gain)
    if is_level:
        return Dual(table, Proportional(1.0 / value), level_max=np.inf), Point(
            np.ones(types), 0.37 * float(value.min())
        )
    floor = rng.uniform(0.0, 0.1, jobs) * (rng.random() < 0.5)
    return Dual(table, Fixed(floor)), Point(np.full(types, float(value.mean())), 0.0)


def both(seed: int, monkeypatch: pytest.MonkeyPatch) -> tuple[Point, Point]:
    """The points that numpy and numba find in a few steps."""
    dual, start = dual_of(seed)
    by_numpy = roughly(dual, start)
    with monkeypatch.context() as patch:
        patch.setattr(newton, "_IDLE_OF_MANY", newton._IDLE)
        return by_numpy, roughly(replace(dual, loops=compiled), start)


def is_same(seed: int, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the bounds agree. Points with the same bound may differ: with one type, or equal rates, it has many.

    Where a step has many solutions, they may decide differently whether a price leaps to zero, and paths divide.
    """
    by_numpy, by_numba = both(seed, monkeypatch)
    return bool(by_numba.bound == pytest.approx(by_numpy.bound, rel=1e-6))


@pytest.mark.parametrize("types", [3, 8])
@pytest.mark.parametrize("load", [0.1, 0.33, 0.6])
def test_compiled_steps_end_at_the_prices_of_numpy(load: float, types: int, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = draw(600, types, Mix.DISTINCT, load=load).problem()
    table = jobs_of(problem, np.ones(600), np.zeros(600)).table
    dual, start = Dual(replace(table, gain=table.rate), Fixed(np.zeros(600))), Point(np.full(types, 0.1), 0.0)
    monkeypatch.setattr(newton, "_IDLE_OF_MANY", newton._IDLE)
    by_numba = near(dual, start)

    by_numpy = near(replace(dual, loops=lambda _: numpy_kernels), start)

    assert by_numba.price == pytest.approx(by_numpy.price, rel=1e-9)
    assert by_numba.excess == pytest.approx(by_numpy.excess, rel=1e-6)


@pytest.mark.parametrize("start", range(0, 60, 20))
def test_compiled_steps_are_those_of_numpy(start: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert all(is_same(seed, monkeypatch) for seed in range(start, start + 20))


@pytest.mark.slow
def test_of_two_thousand_problems_few_divide_in_numba_and_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    same = [is_same(seed, monkeypatch) for seed in range(2000)]

    assert sum(same) >= 1990


def root_and_twin(seed: int) -> tuple[float, float]:
    """The level of random finish-time curves at which a random budget is spent: numba's and numpy's."""
    rng = np.random.default_rng(seed)
    jobs, decades = int(rng.integers(1, 60)), float(rng.choice([1.0, 6.0, 12.0]))
    cap = rng.choice([1.0, 0.5, 1e-3], jobs)
    curves = Curves(10.0 ** rng.uniform(0, decades, jobs), 10.0 ** rng.uniform(-2, decades, jobs), cap)
    worth = 10.0 ** rng.uniform(-decades / 2, 0, jobs) * (rng.random(jobs) < 0.9)
    budget = 1.0 + float(worth @ cap) * rng.uniform(-0.1, 1.1)
    rising = Rising(curves)
    return rising.near_root(worth, budget), rising.root(worth, budget)


def test_compiled_roots_are_those_of_numpy() -> None:
    for by_numba, by_numpy in map(root_and_twin, range(100)):
        assert by_numba == pytest.approx(by_numpy, rel=1e-10)


@pytest.mark.slow
def test_two_thousand_roots_are_the_same_in_numba_and_numpy() -> None:
    for by_numba, by_numpy in map(root_and_twin, range(2000)):
        assert by_numba == pytest.approx(by_numpy, rel=1e-10)


def bent(seed: int) -> tuple[Dual, Point]:
    """A random search for the least finish-time ratio, and where it starts."""
    rng = np.random.default_rng(seed)
    dual, _ = dual_of(2 * seed)
    table, decades = dual.table, float(rng.choice([0.5, 2.0, 4.0]))
    jobs, types = table.rate.shape
    curves = Curves(10.0 ** rng.uniform(0, decades, jobs), 10.0 ** rng.uniform(-1, decades, jobs), np.ones(jobs))
    curve = Rising(curves)
    price = np.full(types, 1.0 / table.gpu_counts.sum())
    level = curve.root(np.ones(jobs), 0.9 * jobs)
    return Dual(table, level_curve.Along(curve), np.inf, root=level_curve.root_of), Point(price, level)


def is_bent_the_same(seed: int, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the bounds of steps with bent needs agree. Where a step has many solutions, paths divide."""
    monkeypatch.setattr(newton, "_IDLE_OF_MANY", newton._IDLE)
    dual, start = bent(seed)
    curve = dual.needs.curve

    by_numpy, by_numba = roughly(dual, start), roughly(replace(dual, bends=curve.bends), start)

    return bool(by_numba.bound == pytest.approx(by_numpy.bound, rel=1e-6))


def test_compiled_steps_with_bent_needs_are_those_of_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    assert all(is_bent_the_same(seed, monkeypatch) for seed in range(40))


@pytest.mark.slow
def test_of_two_thousand_searches_of_ratios_few_divide_in_numba_and_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    same = [is_bent_the_same(seed, monkeypatch) for seed in range(2000)]

    assert sum(same) >= 1980


def ample(jobs: int, load: float, seed: int) -> tuple[Dual, Point]:
    """A search for the least finish-time ratio with GPUs to spare."""
    problem = draw(jobs, 3, Mix.DISTINCT, load=load, seed=seed).problem()
    table = jobs_of(problem, np.ones(jobs), np.zeros(jobs)).table
    unit_s = problem.steps_remaining / problem.rate_alone_steps_per_s.max(axis=1)
    age = problem.age_s / unit_s
    curve = Rising(Curves(age + 20.0, age, np.ones(jobs)))
    start = Point(np.full(3, 1.0 / table.gpu_counts.sum()), curve.near_root(table.load / table.gpu_counts.sum(), 1.0))
    dual = Dual(table, level_curve.Along(curve), np.inf, root=level_curve.root_of)
    return replace(dual, loops=compiled, bends=curve.bends, is_rough=True), start


@pytest.mark.parametrize(("load", "seed"), [(0.3, 0), (0.33, 3), (0.45, 3), (0.6, 2)])
def test_prices_of_types_with_gpus_left_leap_to_zero(load: float, seed: int) -> None:
    dual, start = ample(600, load, seed)

    few, many = newton.descend(dual, start, 0.3, 15), newton.descend(dual, start, 0.3, 40)

    free = many.price <= newton.PRICE_FLOOR * many.price.max()
    assert free.any()
    assert few.excess < 1.0
    assert few.bound == pytest.approx(many.bound, rel=1e-3)


@pytest.mark.parametrize("bends", [True, False])
def test_prices_return_from_zero_where_the_types_are_scarce_together(bends: bool) -> None:
    dual, start = ample(600, 0.33, 0)
    dual = dual if bends else replace(dual, bends=None, loops=lambda _: numpy_kernels)
    zeros = Point(np.array([newton.PRICE_FLOOR, newton.PRICE_FLOOR, 1.0]) * start.price, start.level)

    found, expected = newton.descend(dual, zeros, 0.3, 25), newton.descend(dual, start, 0.3, 25)

    assert found.excess < 1.0
    assert found.price / found.price.max() == pytest.approx(expected.price / expected.price.max(), rel=0.3)


def test_without_prices_the_ratio_is_the_least_of_all_jobs() -> None:
    """Degenerate programs have optima whose duals are all zero, also with a negative sign."""
    curves = Curves(np.array([2.5, 4.0]), np.zeros(2), np.array([1.28, 1.0]))

    assert curves.root(np.array([-0.0, 0.0]), -0.0, -0.0) == (float(curves.own.min()),) * 2
