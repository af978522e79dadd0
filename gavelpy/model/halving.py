"""Successive halving and HyperBand: how many jobs of a search do how many steps before the losers end.

*Successive halving* (Jamieson and Talwalkar, AISTATS 2016, figure 3; with a factor η in place of 2, as in Li et al.). n
jobs do r steps each; the best ⌊n/η⌋ continue to r η steps, and so on:

    n_i = ⌊n η^−i⌋,   r_i = r η^i        for i = 0, 1, ..., while r_i < R and n_i ≥ η

*HyperBand* (Li et al., JMLR 18, 2018, algorithm 1). It hedges between many jobs that are compared early and few jobs
that are compared late. R is the largest number of steps of a job, in units of the smallest one:

    s_max = ⌊log_η R⌋,   B = (s_max + 1) R
    for s = s_max, ..., 0 (a bracket each):   n = ⌈(B / R) η^s / (s + 1)⌉,   r = R η^−s
        successive halving with n_i = ⌊n η^−i⌋, r_i = r η^i for i = 0, ..., s; the best ⌊n_i / η⌋ continue

A bracket ends when its jobs have done R steps: no job ends at the last r_i = R. We depart from the algorithm in one
thing only: R counts steps, so r_i is rounded to whole steps, and brackets run at the same time, not one after another.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from gavelpy.errors import InvalidInput
from gavelpy.model.apps import JOBS_MAX, RUNGS_MAX, Rung

_ROUNDING = 1e-9


class Bracket(NamedTuple):
    """Jobs that are compared with each other, and where."""

    jobs: int
    rungs: tuple[Rung, ...]  # ascending; the jobs that are left after the last one do all steps


def successive_halving(jobs: int, steps_min: float, steps_max: float, eta: float) -> Bracket:
    """One bracket of `jobs` jobs, first compared after `steps_min` steps.

    >>> successive_halving(9, 100, 900, 3).rungs
    (Rung(steps=100.0, keep=3), Rung(steps=300.0, keep=1))
    """
    _check(steps_min, steps_max, eta)
    if not 1 <= jobs <= JOBS_MAX:
        raise InvalidInput(f"jobs must be in [1, {JOBS_MAX}], got {jobs!r}")
    rungs: list[Rung] = []
    for i in range(RUNGS_MAX):
        steps, alive = float(round(steps_min * eta**i)), _floor(jobs / eta**i)
        if steps >= steps_max or alive < eta:
            break
        rungs.append(Rung(steps, _floor(alive / eta)))
    return Bracket(jobs, tuple(rungs))


def hyperband(steps_min: float, steps_max: float, eta: float) -> list[Bracket]:
    """The brackets of HyperBand, s = s_max to 0, with a smallest number of steps `steps_min` (1 in the paper).

    >>> [(bracket.jobs, len(bracket.rungs)) for bracket in hyperband(1, 81, 3)]
    [(81, 4), (34, 3), (15, 2), (8, 1), (5, 0)]
    """
    _check(steps_min, steps_max, eta)
    s_max, ratio = 0, steps_max / steps_min
    while eta ** (s_max + 1) <= ratio * (1 + 1e-9):  # a logarithm would round
        s_max += 1
    found = []
    for s in range(s_max, -1, -1):
        jobs = _ceil((s_max + 1) * eta**s / (s + 1))
        if jobs > JOBS_MAX:
            raise InvalidInput(f"steps_max / steps_min must give brackets of at most {JOBS_MAX} jobs, got {jobs}")
        steps = [float(round(steps_max * eta ** (i - s))) for i in range(s)]
        kept = [_floor(_floor(jobs / eta**i) / eta) for i in range(s)]
        found.append(Bracket(jobs, tuple(Rung(*one) for one in zip(steps, kept, strict=True) if one[1] >= 1)))
    return found


def _check(steps_min: float, steps_max: float, eta: float) -> None:
    if not 1 < eta <= 100:
        raise InvalidInput(f"eta must be > 1 and at most 100, got {eta!r}")
    if not 1 <= steps_min <= steps_max:
        raise InvalidInput(f"steps_min must be in [1, steps_max = {steps_max:g}], got {steps_min!r}")


def _floor(value: float) -> int:
    return math.floor(value + _ROUNDING)


def _ceil(value: float) -> int:
    return math.ceil(value - _ROUNDING)
