"""Water filling as an oracle: an exact LP for every level, and one per job that checks whether it can rise."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np

from gavelpy.model.arrays import Bools, Floats
from gavelpy.model.problem import AllocationProblem
from tests.solve.oracle import dense
from tests.solve.rational import Row, as_floats, fractions, maximum, zeros


def slow_filling(problem: AllocationProblem, speed: Callable[[Bools], Floats]) -> Floats:
    """Rates of the jobs (J,) in steps/s when all rise at `speed` until none can."""
    rates, rows, limits = dense(problem)
    rate, row, limit = [fractions(r) for r in rates], [fractions(r) for r in rows], fractions(limits)
    saturated, reached = ~problem.can_run, zeros(problem.job_count)
    while True:
        rising = fractions(np.where(saturated, 0.0, speed(saturated)))
        if not any(rising):
            return as_floats(reached)
        step = _step(rate, row, limit, reached, rising)
        reached = [r + step * s for r, s in zip(reached, rising, strict=True)]
        before = saturated.sum()
        for job in np.flatnonzero(~saturated):
            saturated[job] = not _rises(rate, row, limit, reached, job)
        assert saturated.sum() > before, "a level without a job that it saturates"


def slow_water_filling(problem: AllocationProblem, scale: Floats) -> Floats:
    """The same when scaled rates rise evenly."""
    return slow_filling(problem, lambda _: 1.0 / scale)


def _step(rate: list[Row], row: list[Row], limit: Row, reached: Row, rising: Row) -> Fraction:
    held = [[*(-value for value in r), speed] for r, speed in zip(rate, rising, strict=True)]
    within = [[*r, Fraction(0)] for r in row]
    return maximum([*zeros(len(rate[0])), Fraction(1)], held + within, [-r for r in reached] + limit)


def _rises(rate: list[Row], row: list[Row], limit: Row, reached: Row, job: int) -> bool:
    held = [[-value for value in r] for r in rate]
    return maximum(rate[job], held + row, [-r for r in reached] + limit, enough=reached[job]) > reached[job]
