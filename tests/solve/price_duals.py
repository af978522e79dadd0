"""Duals that follow from prices alone, if no jobs are co-located: the bound that prices prove by themselves.

Under prices p a job pays  cost(y) = min { Σ_t g p_t x_t : Σ_t x_t <= 1, Σ_t r_t x_t >= y }  for rate y, which is
convex; its slope at y is the worth of the job's rate. cost(y) = max_w [ w y - max(0, max_t (w r_t - g p_t)) ], and a
best w is among the weights at which two of those lines cross.
"""

from __future__ import annotations

import numpy as np

from gavelpy.model.arrays import Floats
from gavelpy.model.problem import AllocationProblem
from gavelpy.solve.objective import MaxMin, MaxSum
from tests.solve.exact import Duals, admissible, bases, floors, has_part

NEAR = 1e-9  # relative distance from the best level at which slopes on either side of it are taken
LEAST_LEVEL = 1e-24  # relative to the level at which the first job runs at its best rate
HALVINGS = 120


def curved(problem: AllocationProblem, objective: MaxMin | MaxSum) -> bool:
    """Whether prices alone determine duals: every job pays for itself, and for its plain rate."""
    return problem.runs_alone and not (isinstance(objective, MaxSum) and len(objective.gpu_type_worth))


def duals_of_prices(problem: AllocationProblem, objective: MaxMin | MaxSum, prices: Floats) -> Duals:
    """The best duals with these prices, to rounding. Prices of types without GPUs are not read."""
    assert curved(problem, objective), "members of a pair pay together"
    curves = _Curves(problem, np.where(problem.gpu_counts > 0, prices, 0.0))
    least, nothing = floors(problem, objective), np.zeros(problem.job_count)
    if isinstance(objective, MaxSum):
        extra = np.maximum(curves.worth_at(least) - objective.gain, 0.0)
        return Duals(objective.gain, np.where(least > 0, extra, 0.0), nothing, prices)
    part, base = has_part(problem, objective), bases(problem, objective)
    per_level = np.where(part, 1.0 / np.where(part, objective.scale, 1.0), 0.0)

    def worths(level: float) -> tuple[Floats, Floats]:
        """The worth of the jobs' rates at a level: of jobs that the level binds, and of jobs that their floors bind."""
        need = base + level * per_level
        worth, held = curves.worth_at(np.maximum(need, least)), part & (need >= least)
        return np.where(held, worth, 0.0), np.where(held | (least == 0), 0.0, worth)

    highest = float(((curves.best - base) / np.where(part, per_level, 1.0))[part].min())
    low, high = highest * LEAST_LEVEL, highest
    for _ in range(HALVINGS):
        middle = float(np.sqrt(low * high))
        low, high = (low, middle) if worths(middle)[0] @ per_level > 1.0 else (middle, high)
    (below, floor), (above, floor_above) = worths(low * (1.0 - NEAR)), worths(high * (1.0 + NEAR))
    lacking = 1.0 - float(below @ per_level)
    capped = np.isinf(above)
    if capped.any():  # jobs that cannot run any faster may have any worth
        weight = below + np.where(capped, max(lacking, 0.0) / capped.sum() / np.where(capped, per_level, 1.0), 0.0)
        return Duals(weight, floor, nothing, prices)
    rise = float((above - below) @ per_level)
    part_above = float(np.clip(lacking / rise, 0.0, 1.0)) if rise > 0 else 0.0
    return Duals(below + part_above * (above - below), floor + part_above * (floor_above - floor), nothing, prices)


def lines(problem: AllocationProblem, prices: Floats) -> tuple[Floats, Floats]:
    """The rate of a job on each type, and its payment there, (J, T) each; zero where it cannot run."""
    here = admissible(problem)
    rate = np.where(here, problem.member_rate_steps_per_s, 0.0)
    return rate, np.where(rate > 0, problem.gpus_occupied[:, None] * prices, 0.0)


class _Curves:
    """cost(y) of every job, by the weights at which its lines cross."""

    def __init__(self, problem: AllocationProblem, prices: Floats) -> None:
        rate, cost = lines(problem, prices)
        rise, pay = rate[:, :, None] - rate[:, None, :], cost[:, :, None] - cost[:, None, :]
        crossings = np.divide(pay, rise, out=np.zeros_like(pay), where=rise > 0).reshape(len(rate), -1)
        alone = np.divide(cost, rate, out=np.zeros_like(cost), where=rate > 0)
        weights = np.concatenate([np.zeros((len(rate), 1)), alone, crossings], axis=1)
        self.best = rate.max(axis=1)
        self._weights = np.maximum(weights, 0.0)
        earned = (self._weights[:, :, None] * rate[:, None, :] - cost[:, None, :]).max(axis=2)
        self._reward = np.maximum(earned, 0.0)

    def worth_at(self, rate: Floats) -> Floats:
        """A slope of each job's cost at a rate, (J,); infinite beyond its best rate."""
        chosen = (self._weights * rate[:, None] - self._reward).argmax(axis=1)
        worth = np.take_along_axis(self._weights, chosen[:, None], axis=1)[:, 0]
        return np.where(rate > self.best, np.inf, worth)
