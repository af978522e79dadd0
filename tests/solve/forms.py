"""Forms for tests of the interior point: drawn from a seed, with optima by ordinary solvers."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from scipy.optimize import linprog

from gavelpy.model.arrays import Floats
from gavelpy.solve.interior import Form, InteriorPoint, Level, Sum, SumLog
from gavelpy.solve.interior.numpy_kernels import Iterate, Rows

Goal = Level | Sum | SumLog


def random_form(seed: int, goal: str, *, classes: int = 40, types: int = 4, spread: float = 1.0) -> Form:
    """Distinct classes of up to 3 jobs; a fifth of the rates is zero; rates and figures within 10^±`spread`."""
    rng = np.random.default_rng(seed)
    rate = 10.0 ** rng.uniform(-2 * spread, 0.0, (classes, types)) * (rng.random((classes, types)) > 0.2)
    rate[np.arange(classes), rng.integers(0, types, classes)] = 1.0
    figure = 10.0 ** rng.uniform(-spread, spread, classes)
    return Form(
        rate=rate,
        gpus=rng.choice([1.0, 1.0, 2.0, 4.0], classes),
        count=rng.integers(1, 4, classes).astype(np.float64),
        capacity=rng.integers(4, 6 + classes // types, types).astype(np.float64),
        goal=GOALS[goal](rate, figure),
    )


GOALS: Mapping[str, Callable[[Floats, Floats], Goal]] = {
    "level": lambda _, figure: Level(np.full(len(figure), 0.01), figure),
    "sum": lambda rate, figure: Sum(rate * figure[:, None], np.zeros(len(figure))),
    "sum with floors": lambda rate, figure: Sum(rate * figure[:, None], np.full(len(figure), 0.01)),
    "logarithms": lambda _, figure: SumLog(figure),
}


def value_of(form: Form, point: InteriorPoint) -> float:
    """The objective at the point's shares."""
    rates = (form.rate * point.share).sum(axis=1)
    match form.goal:
        case Level(base=base, slope=slope):
            return float(((rates - base) / slope).min())
        case Sum(gain=gain):
            return float(form.count @ (gain * point.share).sum(axis=1))
        case SumLog(weight=weight):
            return float((form.count * weight) @ np.log(rates))


def bound_of(form: Form, point: InteriorPoint) -> float:
    """The bound of weak duality at the point's prices and rate duals, with the smallest budgets they need."""
    duals = point.rate_duals
    gain = form.goal.gain if isinstance(form.goal, Sum) else np.zeros_like(form.rate)
    worth = gain + duals[:, None] * form.rate - form.gpus[:, None] * point.prices
    bound = point.prices @ form.capacity + form.count @ np.where(form.rate > 0, worth, 0.0).max(axis=1, initial=0.0)
    match form.goal:
        case Level(base=base, slope=slope):
            return float((bound - (form.count * duals) @ base) / ((form.count * duals) @ slope))
        case Sum(floor=floor):
            return float(bound - (form.count * duals) @ floor)
        case SumLog(weight=weight):
            return float(bound + (form.count * weight) @ (np.log(weight / duals) - 1.0))


def best_value(form: Form) -> float:
    """The optimum by HiGHS, or by Clarabel for a sum of logarithms."""
    K, T = form.rate.shape
    time, used = np.kron(np.eye(K), np.ones(T)), np.zeros((T, K * T))
    rates = np.zeros((K, K * T))
    for i in range(K):
        rates[i, i * T : (i + 1) * T] = form.rate[i]
        used[:, i * T : (i + 1) * T] = np.eye(T) * form.count[i] * form.gpus[i]
    runs, rows, limits = (form.rate > 0).ravel(), np.vstack([time, used]), np.append(np.ones(K), form.capacity)
    match form.goal:
        case SumLog(weight=weight):
            import cvxpy  # takes a second

            share = cvxpy.Variable(K * T, nonneg=True)
            worth = (form.count * weight) @ cvxpy.log(rates @ share)
            return float(cvxpy.Problem(cvxpy.Maximize(worth), [rows @ share <= limits]).solve(solver="CLARABEL"))
        case Sum(gain=gain, floor=floor):
            cost, least, slope = -(form.count[:, None] * gain).ravel(), floor, np.zeros(K)
        case Level(base=base, slope=slope):
            cost, least = np.zeros(K * T), base
    answer = linprog(
        np.append(cost, -float(slope.any())),
        A_ub=np.vstack([np.column_stack([rows, np.zeros(K + T)]), np.column_stack([-rates, slope])]),
        b_ub=np.append(limits, -least),
        bounds=[(0, None if may else 0) for may in runs] + [(None, None)],
        method="highs",
    )
    assert answer.success, answer.message
    return float(-answer.fun)


def random_place(seed: int, form: Form) -> tuple[Rows, Iterate, Iterate, Floats]:
    """Rows with every kind of figure, a positive point, a step and prices, all random."""
    rng = np.random.default_rng(seed)
    K, T = form.rate.shape
    runs = form.rate > 0
    shapes = ((K, T), (K, T), (K,), (K,), (K,), (K,))
    share, reduced_cost, *rest = (rng.uniform(0.1, 1.0, shape) for shape in shapes)
    at = Iterate(np.where(runs, share, 0.0), np.where(runs, reduced_cost, 1.0), *rest)
    share, reduced_cost, *rest = (rng.uniform(-0.1, 0.1, shape) for shape in shapes)
    step = Iterate(np.where(runs, share, 0.0), np.where(runs, reduced_cost, 0.0), *rest)
    is_logarithmic = isinstance(form.goal, SumLog)
    rows = Rows(
        rate=form.rate,
        gpus=form.gpus,
        jobs=form.count,
        base=np.zeros(K) if is_logarithmic else rng.uniform(0.0, 0.1, K),
        slope=rng.uniform(0.5, 1.0, K) if isinstance(form.goal, Level) else np.zeros(K),
        weight=rng.uniform(0.5, 1.0, K) if is_logarithmic else np.zeros(K),
        gain=rng.uniform(0.0, 1.0, (K, T)) if isinstance(form.goal, Sum) else np.zeros((0, 0)),
    )
    return rows, at, step, rng.uniform(0.1, 1.0, T)
