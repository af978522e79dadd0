"""Shares whose rates are those of a filling to rounding, from shares that are right to HiGHS's tolerance.

The last levels of a filling may hang on small differences: where 1e-10 of the early jobs' rates is worth 1 % of a late
job's, shares right to 1e-10 are not enough. The rates are known to rounding, and so are the constraints that are tight.
The shares in use are moved by the smallest relative changes that make these equations true (Newton's method on a linear
system, by least squares). Nothing else moves, so it stays the same vertex.
"""

from __future__ import annotations

import numpy as np

from gavelpy.model.arrays import Bools, Floats, Ints
from gavelpy.solve.program import Program
from gavelpy.solve.repair import NOISE

CLASSES_MAX = 600  # above, the system costs more than the filling
_TIGHT = 1e-8  # a budget or a type so nearly used up is
_STEPS = 2  # the second one takes back the rounding of the first


def polished(program: Program, share: Floats, rate: Floats) -> Floats:
    """Shares of entries (E,) near `share` that give the classes `rate` (K,); `share` itself where these are many."""
    used = np.flatnonzero(share > NOISE)
    if len(program.value) > CLASSES_MAX or not len(used):
        return share
    matrix, target = _equations(program, used, share[used], rate)
    x = share[used]
    for _ in range(_STEPS):
        step, *_ = np.linalg.lstsq(matrix * x, target - matrix @ x, rcond=None)
        x = x * np.maximum(1.0 + step, 0.0)
    before, after = (np.abs(target - matrix @ y).max(initial=0.0) for y in (share[used], x))
    if not after < before:  # NaN, too
        return share
    better = share.copy()
    better[used] = x
    return better


def _equations(program: Program, used: Ints, x: Floats, rate: Floats) -> tuple[Floats, Floats]:
    """Rows of classes with a rate, of full budgets and of full types, in units of their targets: these are all 1."""
    K, T, E = len(program.value), len(program.problem.gpu_types), len(program.entry_type)
    place = np.full(E, -1)
    place[used] = np.arange(len(used))
    column = place[program.member_entry]
    here = column >= 0
    rates, times, loads = (np.zeros((rows, len(used))) for rows in (K, K, T))
    np.add.at(rates, (program.member_class[here], column[here]), program.member_rate[here])
    np.add.at(times, (program.member_class[here], column[here]), program.member_time[here])
    loads[program.entry_type[used], np.arange(len(used))] = program.entry_load[used]
    runs = rate > 0
    rows = [rates[runs] / rate[runs, None], _full(times, x), _full(loads, x)]
    matrix = np.concatenate(rows)
    return matrix, np.ones(len(matrix))


def _full(rows: Floats, x: Floats) -> Floats:
    full: Bools = rows @ x >= 1.0 - _TIGHT
    return rows[full]
