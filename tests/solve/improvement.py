"""Possible improvements of an answer, by linear programs, for objectives that are not linear programs themselves.

HiGHS solves each program as a whole, so the check shares no code with the solver of the answer.
"""

from __future__ import annotations

import numpy as np

from gavelpy.model.allocation import Allocation
from gavelpy.model.arrays import Floats
from gavelpy.solve.objective import MaxMin, MaxMinLexicographic, MaxSum, MaxSumLog, MinMaxFinishTime
from tests.solve.plain import optimum
from tests.solve.price_duals import lines

EQUAL = 1e-7  # levels that differ by less count as equal
KEPT = 1e-12  # fraction of a rate that the others may lose if necessary: some may gain a million times that
TIGHTER = 1e-10  # fraction of every rate, time and GPU count: a gain from this much is rounding
LEVELS_MAX = 12  # number of levels checked, including the lowest and the highest
HALVINGS = 200
STEP = 1e-6  # a finish-time ratio must not be improvable by this fraction


def improvement(answer: Allocation, objective: MaxMinLexicographic | MinMaxFinishTime | MaxSumLog) -> float:
    """Relative gain that a linear program finds; it is rounding if the answer is right."""
    match objective:
        case MaxMinLexicographic():
            return _of_levels(answer, objective)
        case MinMaxFinishTime():
            return _of_finish_time(answer, objective)
        case MaxSumLog():
            return _of_logarithms(answer, objective)


def _of_levels(answer: Allocation, objective: MaxMinLexicographic) -> float:
    """Possible gain of the jobs at one level if no job at or below that level loses.

    One small job can gain much from a tiny loss of the others. So the measure is the gain when all jobs must keep
    slightly more, with slightly fewer GPUs: the program's own duals bound it.
    """
    problem, rate = answer.problem, answer.rate_steps_per_s
    level = np.where(problem.can_run, objective.scale * rate, np.inf)
    levels = np.unique(level[problem.can_run])
    chosen = levels[np.unique(np.linspace(0, len(levels) - 1, LEVELS_MAX).round().astype(int))]
    worst = 0.0
    for height in chosen.tolist():
        at, kept = np.abs(level - height) <= EQUAL * height, level <= height * (1.0 + EQUAL)
        gain = np.where(at, 1.0 / np.where(at, rate, 1.0), 0.0)
        floor = np.where(kept, rate, 0.0)
        found = optimum(problem, MaxSum(gain, floor))
        if found.status != "Optimal":  # the exact floors leave no margin for rounding
            found = optimum(problem, MaxSum(gain, floor * (1.0 - KEPT)))
        assert found.status == "Optimal", found.status
        duals = found.duals
        total = duals.floor @ floor + duals.budget.sum() + duals.price @ problem.gpu_counts
        worst = max(worst, found.value - TIGHTER * float(total) - float(at.sum()))
    return worst


def _of_finish_time(answer: Allocation, objective: MinMaxFinishTime) -> float:
    """STEP if every job can have a ratio that much lower than the highest of the answer, else 0."""
    runs = answer.problem.can_run
    rate = np.where(runs, answer.rate_steps_per_s, 1.0)
    ratio = float(((objective.age_s + objective.steps / rate) / objective.isolated_s)[runs].max())
    said = 1.0 / answer.certificate.objective
    left_s = ratio * (1.0 - STEP) * objective.isolated_s - objective.age_s
    if (left_s[runs] <= 0).any():
        return abs(said / ratio - 1.0)
    scale = np.where(runs, left_s / objective.steps, 1.0)
    reached = optimum(answer.problem, MaxMin(scale)).value
    return max(STEP if reached >= 1.0 else 0.0, abs(said / ratio - 1.0))


def _of_logarithms(answer: Allocation, objective: MaxSumLog) -> float:
    """Gap that our prices leave, relative to the objective.

    A job pays at least  w y - reward(w)  for rate y under prices p, for any w > 0. So

        Σ_j weight_j log r_j  ≤  Σ_t W_t p_t + Σ_j min_w [ weight_j log(weight_j / w) - weight_j + reward_j(w) ].
    """
    value = answer.certificate.objective
    problem, runs = answer.problem, answer.problem.can_run
    assert problem.runs_alone, "members of a pair pay together"
    prices = np.where(problem.gpu_counts > 0, answer.shadow_prices, 0.0)
    rate, cost = (figures[runs] for figures in lines(problem, prices))
    weight = objective.weight[runs]
    worth = _stationary(rate, cost, weight)
    reward = np.maximum((worth[:, None] * rate - cost).max(axis=1), 0.0)
    room = weight * np.log(weight / worth) - weight + reward
    found = float(prices @ problem.gpu_counts + room.sum())
    return (found - value) / max(1.0, abs(value))


def _stationary(rate: Floats, cost: Floats, weight: Floats) -> Floats:
    """The minimum of  -weight log w + max(0, max_t (w rate_t - cost_t)), (J,): its slope rises with w."""
    low = np.log(weight / rate.max(axis=1)) - 1.0
    high = low + 60.0
    for _ in range(HALVINGS):
        middle = 0.5 * (low + high)
        w = np.exp(middle)
        earned = w[:, None] * rate - cost
        slope = np.where(earned.max(axis=1) > 0, rate[np.arange(len(w)), earned.argmax(axis=1)], 0.0)
        rises = slope > weight / w
        low, high = np.where(rises, low, middle), np.where(rises, middle, high)
    return np.exp(0.5 * (low + high))
