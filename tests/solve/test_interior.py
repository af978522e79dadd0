"""The block interior point: its kernels against each other and Newton's equations, its optima against other solvers."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from gavelpy.model.problem import AllocationProblem
from gavelpy.solve.interior import Form, Level, SumLog, numba_kernels, numpy_kernels, optimum, predictor_corrector
from gavelpy.solve.interior.numpy_kernels import Iterate
from gavelpy.solve.interior.predictor_corrector import Kernels
from gavelpy.solve.ladder import solve
from gavelpy.solve.objective import MaxSumLog
from gavelpy.solve.prices import welfare
from gavelpy.solve.solver import NUMPY_ROWS_MAX, Solver
from tests.solve.forms import GOALS, best_value, bound_of, random_form, random_place, value_of
from tests.solve.problems import random_problem

LEVEL, TARGET = 0.3, 0.2

every_goal = pytest.mark.parametrize("goal", GOALS)
every_kernel = pytest.mark.parametrize(
    "kernels", [numpy_kernels, numba_kernels], ids=["numpy_kernels", "numba_kernels"]
)


def copied(iterate: Iterate) -> Iterate:
    return Iterate(*(variable.copy() for variable in iterate))


@every_goal
@pytest.mark.parametrize("second", [0.0, 1.0])
@pytest.mark.parametrize("seed", range(3))
def test_numba_kernels_do_what_numpy_kernels_do(seed: int, second: float, goal: str) -> None:
    form = random_form(seed, goal)
    rows, at, step, prices = random_place(seed, form)
    K, T = form.rate.shape
    other_at, other_step = copied(at), copied(step)
    ours = np.zeros((T + 1, T + 1)), np.zeros(T + 1), np.zeros((2, K)), np.zeros(T)
    theirs = np.zeros((T + 1, T + 1)), np.zeros(T + 1), np.zeros((2, K)), np.zeros(T)
    lengths = np.full((2, K), 0.01)

    numpy_kernels.condense(rows, at, step, prices, LEVEL, TARGET, second, *ours[:2])
    numba_kernels.condense(rows, other_at, other_step, prices, LEVEL, TARGET, second, *theirs[:2])
    reach = numpy_kernels.direct(rows, at, step, prices, 0.1 * prices, LEVEL, 0.01, TARGET, second, ours[2])
    other = numba_kernels.direct(
        rows, other_at, other_step, prices, 0.1 * prices, LEVEL, 0.01, TARGET, second, theirs[2]
    )
    moved = numpy_kernels.advance(rows, at, step, lengths, LEVEL, ours[3])
    other_moved = numba_kernels.advance(rows, other_at, other_step, lengths, LEVEL, theirs[3])

    for mine, its in zip((*ours, *at, *step), (*theirs, *other_at, *other_step), strict=True):
        np.testing.assert_allclose(its, mine, rtol=1e-11, atol=1e-13)
    np.testing.assert_allclose([*other, *other_moved], [*reach, *moved], rtol=1e-11, atol=1e-13)


@every_goal
@every_kernel
def test_direction_solves_newtons_equations(kernels: Kernels, goal: str) -> None:
    form = random_form(0, goal, classes=6)
    rows, at, step, prices = random_place(0, form)
    last, (K, T) = copied(step), form.rate.shape
    matrix, rhs, ignored = np.zeros((T + 1, T + 1)), np.zeros(T + 1), np.zeros(T + 1)
    kernels.condense(rows, at, step, prices, LEVEL, TARGET, 0.0, matrix, ignored)
    kernels.condense(rows, at, step, prices, LEVEL, TARGET, 1.0, matrix, rhs)
    matrix[T, T] += 0.0 if rows.slope.any() else 1.0
    price_step, level_step = 0.1 * prices, 0.01

    kernels.direct(rows, at, step, prices, price_step, LEVEL, level_step, TARGET, 1.0, np.zeros((2, K)))

    a, new = rows.rate, Iterate(*(x + dx for x, dx in zip(at, step, strict=True)))
    dual = new.budget_dual[:, None] + rows.gpus[:, None] * (prices + price_step) - a * new.rate_dual[:, None]
    gain = rows.gain if len(rows.gain) else 0.0
    products = [
        at[k] * at[k + 1] + step[k] * at[k + 1] + at[k] * step[k + 1] + last[k] * last[k + 1] for k in (0, 2, 4)
    ]
    load, wanted = rows.jobs * rows.gpus, np.where(rows.weight > 0, rows.weight, TARGET)
    np.testing.assert_allclose(new.share.sum(axis=1) + new.idle, 1.0, rtol=1e-12)
    np.testing.assert_allclose(
        (a * new.share).sum(axis=1) - new.surplus, rows.base + rows.slope * (LEVEL + level_step), atol=1e-12
    )
    np.testing.assert_allclose(new.reduced_cost[a > 0], (dual - gain)[a > 0], rtol=1e-11)
    np.testing.assert_allclose(products[0][a > 0], TARGET, rtol=1e-10)
    np.testing.assert_allclose(products[1], TARGET, rtol=1e-10)
    np.testing.assert_allclose(products[2], wanted, rtol=1e-10)
    level_pull = np.append(price_step, -level_step)
    np.testing.assert_allclose(load @ step.share, rhs[:T] - matrix[:T] @ level_pull, rtol=1e-9, atol=1e-10)
    if_level = (rows.jobs * rows.slope) @ step.rate_dual
    np.testing.assert_allclose(-if_level, (rhs - matrix @ np.append(price_step, level_step))[T] * rows.slope.any())


@every_goal
@every_kernel
@pytest.mark.parametrize("seed", range(4))
def test_optimum_is_that_of_plain_solvers_and_proves_itself(seed: int, kernels: Kernels, goal: str) -> None:
    form = random_form(seed, goal)

    point = optimum(form, 1e-10, kernels)

    value = value_of(form, point)
    assert point.gap <= 1e-10
    assert value == pytest.approx(best_value(form), rel=1e-6, abs=1e-6)
    assert bound_of(form, point) == pytest.approx(value, rel=1e-8, abs=1e-8)
    assert (point.share >= 0).all()
    assert point.share.sum(axis=1).max() <= 1 + 1e-9
    assert ((form.count * form.gpus) @ point.share <= form.capacity * (1 + 1e-9)).all()


@every_goal
@pytest.mark.parametrize("seed", range(4))
def test_optimum_is_proved_with_rates_and_figures_of_all_sizes(seed: int, goal: str) -> None:
    form = random_form(seed, goal, classes=60, spread=3.0)
    form = form if goal != "sum with floors" else replace(form, capacity=form.capacity + 20.0)

    point = optimum(form, 1e-10)

    value = value_of(form, point)
    assert point.residual <= 1e-9
    assert bound_of(form, point) == pytest.approx(value, rel=1e-7, abs=1e-7)


@every_goal
def test_a_class_counts_as_often_as_it_has_jobs(goal: str) -> None:
    form = random_form(1, goal)
    rows = np.repeat(np.arange(len(form.gpus)), form.count.astype(np.int64))
    figures = {name: getattr(form.goal, name)[rows] for name in form.goal.__dataclass_fields__}
    apart = Form(form.rate[rows], form.gpus[rows], np.ones(len(rows)), form.capacity, replace(form.goal, **figures))

    together, single = optimum(form), optimum(apart)

    assert together.prices == pytest.approx(single.prices, rel=1e-6)
    assert value_of(form, together) == pytest.approx(value_of(apart, single), rel=1e-9)


@every_goal
def test_nothing_is_shared_where_nothing_can_run(goal: str) -> None:
    form = random_form(2, goal)
    form = replace(form, capacity=np.append(form.capacity[:-1], 0.0))
    rate = form.rate.copy()
    rate[:, 0] = np.maximum(rate[:, 0], 0.5)  # every job can run somewhere

    point = optimum(replace(form, rate=rate))

    assert (point.share[rate == 0] == 0).all()
    assert (point.share[:, -1] == 0).all()
    assert point.prices[-1] == 0
    assert point.gap <= 1e-10


@every_goal
def test_gpus_that_are_plenty_cost_nothing(goal: str) -> None:
    form = random_form(3, goal)

    point = optimum(replace(form, capacity=np.full(4, 1e4)))

    assert point.prices == pytest.approx(np.zeros(4), abs=1e-9)
    assert point.gap <= 1e-10


@every_goal
@every_kernel
def test_same_form_gives_the_same_bytes(kernels: Kernels, goal: str) -> None:
    form = random_form(4, goal)

    first, again = optimum(form, kernels=kernels), optimum(form, kernels=kernels)

    assert first.share.tobytes() == again.share.tobytes()
    assert first.prices.tobytes() == again.prices.tobytes()


def test_price_is_what_a_gpu_adds_to_the_level() -> None:
    form = random_form(5, "level")
    level = np.array(
        [
            optimum(replace(form, capacity=form.capacity + more)).level
            for more in np.vstack([-np.eye(4), np.eye(4)]) * 1e-4
        ]
    )

    point = optimum(form)

    assert point.prices == pytest.approx((level[4:] - level[:4]) / 2e-4, rel=1e-3, abs=1e-9)


def test_rate_times_its_dual_is_the_weight_under_logarithms() -> None:
    form = random_form(6, "logarithms")

    point = optimum(form)

    assert isinstance(form.goal, SumLog)
    rates = (form.rate * point.share).sum(axis=1)
    spent = form.gpus * (point.share @ point.prices) + point.budget_duals
    assert rates * point.rate_duals == pytest.approx(form.goal.weight, rel=1e-7)
    assert spent == pytest.approx(form.goal.weight, rel=1e-7)


def test_floors_that_nobody_can_keep_are_seen_in_the_residual() -> None:
    form = Form(np.ones((2, 1)), np.ones(2), np.ones(2), np.ones(1), Level(np.array([0.8, 0.8]), np.array([0.0, 1e-9])))

    point = optimum(form)

    assert max(point.residual, point.gap) > 1e-6 or point.level < 0


def test_one_slow_job_decides_the_level_and_gpus_cost_nothing() -> None:
    slope = np.where(np.arange(300) == 7, 20.0, 1.0)
    form = Form(np.ones((300, 2)), np.ones(300), np.ones(300), np.full(2, 100.0), Level(np.zeros(300), slope))

    point = optimum(form)

    assert point.level == pytest.approx(1 / 20)
    assert point.gap <= 1e-10
    assert point.residual <= 1e-8
    assert point.prices == pytest.approx([0, 0], abs=1e-9)


@pytest.mark.parametrize(("classes", "loaded"), [(NUMPY_ROWS_MAX, False), (NUMPY_ROWS_MAX + 1, True)])
def test_numba_is_loaded_for_many_classes_only(classes: int, loaded: bool) -> None:
    code = (
        "import sys; from tests.solve.forms import random_form; from gavelpy.solve.interior import optimum;"
        f"optimum(random_form(0, 'logarithms', classes={classes})); sys.exit('numba' in sys.modules)"
    )

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == loaded


@pytest.mark.parametrize("seed", range(6))
def test_logarithms_of_jobs_alone_are_proved_by_the_interior_point(seed: int) -> None:
    problem = random_problem(seed, jobs=40)
    weight = 10.0 ** np.random.default_rng(seed).uniform(-3, 3, 40)
    solver = Solver()

    certificate = solve(problem, MaxSumLog(weight), solver).certificate

    assert certificate.path == "interior"
    assert certificate.gap <= 1e-9
    assert certificate.violation <= 1e-9
    assert solver.falls.total() == 0


def test_more_classes_than_the_numpy_kernels_take_are_proved_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(welfare, "most_welfare", lambda *_: None)  # it would answer first
    problem = random_problem(0, jobs=NUMPY_ROWS_MAX + 100)

    certificate = solve(problem, MaxSumLog(problem.weight)).certificate

    assert certificate.path == "interior"
    assert certificate.gap <= 1e-9


def test_an_interior_point_stopped_early_falls_to_cvxpy_and_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predictor_corrector, "ITERATIONS_MAX", 3)
    solver = Solver()

    certificate = solve(random_problem(0, jobs=10), MaxSumLog(np.ones(10)), solver).certificate

    assert certificate.path == "cvxpy"
    assert solver.falls == {"interior": 1}


def test_equal_jobs_are_one_class_of_the_interior_point() -> None:
    problem = AllocationProblem.of("abc", ["v100"], [1], [[4.0], [40.0], [4.0]])

    allocation = solve(problem, MaxSumLog(np.array([1.0, 1.0, 2.0])))

    assert allocation.certificate.path == "classes+interior"
    assert allocation.share[:, 0] == pytest.approx([1 / 4, 1 / 4, 2 / 4])
