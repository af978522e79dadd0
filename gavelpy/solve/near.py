"""Jobs that are nearly equal are solved for as equal ones, and the answer is proved for the true ones.

Rates that were measured or estimated differ in their tenth digit, and then hundreds of jobs of one kind are hundreds of
classes. Here figures within BLUR of each other become the least of them, which makes the jobs equal. No true figure is
below, so what the shares give is no less than in the simpler problem, and no shares give more than (1 + BLUR) to the
power of the figures that are multiplied times its bound. Where that is not good enough, the true problem is solved.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gavelpy.model.allocation import Certificate
from gavelpy.model.arrays import Bools, Floats
from gavelpy.model.problem import AllocationProblem
from gavelpy.solve.answer import GAP_MAX, GAP_MAX_CONCAVE, Answer
from gavelpy.solve.certificate import rate_steps_per_s
from gavelpy.solve.objective import (
    MaxMin,
    MaxMinLexicographic,
    MaxSum,
    MaxSumLog,
    MinMaxFinishTime,
    Objective,
    ProgressiveFilling,
)

BLUR = 2.2e-9  # relative; figures as close are taken for equal
_STEP = 1e-9  # relative; to the next figure
_EQUAL = 1e-14  # relative; figures as close differ by rounding, and classes.py takes most for equal
_WORTH_IT = 0.25  # of the distinct figures must have one so near: in random figures some have by chance
_FIGURES_MAX = 200_000  # above, sorting them costs as much as prices for that many distinct jobs


@dataclass(frozen=True, eq=False)
class Near:
    """A problem in which jobs that are nearly equal are equal, with its objective."""

    problem: AllocationProblem
    objective: Objective


def nearly_equal(problem: AllocationProblem, objective: Objective) -> Near | None:
    """The simpler problem; None where there is none, or where its answer would prove nothing about the true one."""
    rates = problem.member_rate_steps_per_s
    if rates.size > _FIGURES_MAX or not _can_be_carried_over(objective):
        return None
    figures = {name: getattr(objective, name) for name in _FIGURES.get(type(objective), ())}
    merged = {name: _merged(values) for name, values in figures.items()}
    merged_rates = _merged(rates)
    if merged_rates is None and all(values is None for values in merged.values()):
        return None
    changed: dict[str, Any] = {name: values for name, values in merged.items() if values is not None}
    simpler = problem if merged_rates is None else replace(problem, member_rate_steps_per_s=merged_rates)
    return Near(simpler, replace(objective, **changed) if changed else objective)


def carried_over(problem: AllocationProblem, objective: Objective, answer: Answer) -> Answer | None:
    """The simpler problem's answer with its proof for the true one; None where that is not as good as promised."""
    c = answer.certificate
    rates = rate_steps_per_s(problem, answer.share)
    value, bound, gap_max = _value(problem, objective, rates, answer), c.bound, GAP_MAX
    match objective:
        case MaxSumLog(weight=weight):
            bound += BLUR * float(weight[problem.can_run].sum())
            gap = abs(bound - value) / max(1.0, abs(value))
            gap_max = GAP_MAX if c.gap <= GAP_MAX else GAP_MAX_CONCAVE
        case MinMaxFinishTime():
            bound *= (1.0 + BLUR) ** 2  # of isolated times and rates; longer ages and more steps lower it
            gap = abs(bound - value) / value if value > 0 else np.inf
        case MaxMinLexicographic() | ProgressiveFilling():
            bound *= (1.0 + BLUR) ** 2
            gap, gap_max = max(c.gap, (bound - value) / value if bound > value else 0.0), GAP_MAX_CONCAVE
        case _:
            bound *= (1.0 + BLUR) ** 2
            gap = abs(bound - value) / abs(value) if value else 0.0 if bound == value else np.inf
    if c.warning or not gap <= gap_max:
        return None
    return replace(answer, certificate=Certificate(value, bound, gap, c.violation, c.path, c.solve_s))


_FIGURES: dict[type[Objective], tuple[str, ...]] = {
    MaxMin: ("scale",),
    MaxSum: ("gain",),
    MaxMinLexicographic: ("scale",),
    MinMaxFinishTime: ("steps", "age_s", "isolated_s"),
}


def _can_be_carried_over(objective: Objective) -> bool:
    """Floors and bases leave no room for a blur; of any concave function nothing is known."""
    for name in ("rate_floor_steps_per_s", "base_steps_per_s"):
        if getattr(objective, name, np.zeros(0)).any():
            return False
    return isinstance(objective, (*_FIGURES, MaxSumLog, ProgressiveFilling))


def _value(problem: AllocationProblem, objective: Objective, rates: Floats, answer: Answer) -> float:
    """What the shares reach in the true problem."""
    runs = problem.can_run
    match objective:
        case MaxMin(scale=scale) | MaxMinLexicographic(scale=scale):
            return float((scale * rates)[runs & (scale > 0)].min())
        case MaxSum(gain=gain, gpu_type_worth=worth):
            return float(gain @ (rate_steps_per_s(problem, answer.share * worth) if len(worth) else rates))
        case MinMaxFinishTime(steps=steps, age_s=age_s, isolated_s=isolated_s):
            finish_s = age_s[runs] + np.divide(
                steps[runs], rates[runs], out=np.full(runs.sum(), np.inf), where=rates[runs] > 0
            )
            return float((isolated_s[runs] / finish_s).min())
        case MaxSumLog(weight=weight):
            return float(weight[runs] @ np.log(rates[runs])) if (rates[runs] > 0).all() else -np.inf
        case ProgressiveFilling(speed=speed):
            speeds = np.where(runs, _speeds(speed, runs), 0.0)
            return float((rates[speeds > 0] / speeds[speeds > 0]).min(initial=np.inf)) if speeds.any() else 0.0
    raise AssertionError(objective)


def _speeds(speed: Callable[[Bools], Floats], runs: Bools) -> Floats:
    return np.asarray(speed(~runs), dtype=np.float64)


def _merged(figures: Floats) -> Floats | None:
    """Figures of which those within BLUR are one, the least of them; None where few are so near."""
    order = np.argsort(figures, axis=None, kind="stable")
    sorted_figures = figures.reshape(-1)[order]
    rise = np.diff(sorted_figures)
    is_near = rise <= _STEP * sorted_figures[1:]
    differs = rise > _EQUAL * sorted_figures[1:]
    if not (is_near & differs).sum() > _WORTH_IT * differs.sum():
        return None
    starts = np.concatenate([[True], ~is_near])
    first = sorted_figures[np.maximum.accumulate(np.where(starts, np.arange(len(starts)), 0))]
    above = np.divide(sorted_figures - first, first, out=np.zeros(len(first)), where=first > 0)
    bucket = np.floor(above / BLUR)  # a long row of near figures is cut
    starts = starts | np.concatenate([[True], np.diff(bucket) > 0])
    least = sorted_figures[np.maximum.accumulate(np.where(starts, np.arange(len(starts)), 0))]
    merged = np.empty(len(order))
    merged[order] = least
    return merged.reshape(figures.shape)
