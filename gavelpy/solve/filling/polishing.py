"""Corrects the shares of a filling from HiGHS's tolerance to rounding error.

The last levels of a filling may depend on small differences: if 1e-10 of the early jobs' rates is worth 1 % of a late
job's rate, shares right to 1e-10 are not enough. The rates are known up to rounding, and so are the tight constraints.
The shares in use change by the smallest relative amounts that satisfy these equations (Newton's method on a linear
system, by least squares). All other shares stay, so the vertex stays the same. A class that runs alone and uses one
type has its share from its rate and is not in the system: only some classes per type use more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gavelpy.model.arrays import Bools, Floats
from gavelpy.solve.certificate import NOISE
from gavelpy.solve.program import Program

if TYPE_CHECKING:
    from scipy.sparse import csr_array

CLASSES_MAX = 600  # above, the system takes longer than the filling
_TIGHT = 1e-8  # relative: a budget or a type with less left is tight
_STEPS = 2  # the second one corrects the rounding of the first


def polished(program: Program, share: Floats, rate: Floats) -> Floats:
    """Shares of entries (E,) near `share` that give the classes `rate` (K,); `share` itself above CLASSES_MAX."""
    used = share > NOISE
    if len(program.value) > CLASSES_MAX or not used.any():
        return share
    equations = _equations(program, np.where(used, share, 0.0), rate)
    single, better = _singles(program, used, rate), share.copy()
    if single.any():
        better[single] = rate[program.member_class[single]] / program.member_rate[single]
    moving = used & ~single
    if moving.any():
        better[moving] = _moved(equations, better, moving)
    before, after = (float(np.abs(equations.missing(x)).max(initial=0.0)) for x in (share, better))
    return better if after < before else share  # NaN, too


@dataclass(frozen=True, eq=False)
class _Equations:
    """Rows (R, E): classes with a rate, full budgets and full types, in units of their targets, which are 1."""

    matrix: csr_array

    def missing(self, share: Floats) -> Floats:
        """By how much each row is below its target, (R,)."""
        return np.asarray(1.0 - self.matrix @ share)


def _moved(equations: _Equations, share: Floats, moving: Bools) -> Floats:
    """Shares of the entries `moving` that satisfy the equations; the others stay."""
    from scipy.linalg import lstsq

    columns = equations.matrix[:, np.flatnonzero(moving)]
    rows = np.flatnonzero(np.diff(columns.indptr))
    matrix, x, share = columns[rows].toarray(), share[moving], share.copy()
    for _ in range(_STEPS):
        missing = equations.missing(share)[rows]
        step, *_ = lstsq(matrix * x, missing, lapack_driver="gelsy", check_finite=False)
        x = x * np.maximum(1.0 + step, 0.0)
        share[moving] = x
    return x


def _singles(program: Program, used: Bools, rate: Floats) -> Bools:
    """Entries of classes that run alone and use one type, (E,)."""
    at, entry = program.member_class, program.member_entry
    if not program.problem.runs_alone:
        return np.zeros(len(used), dtype=np.bool_)
    types = np.bincount(at, weights=used[entry], minlength=len(rate))
    single: Bools = used & ((types == 1) & (rate > 0))[at] & (program.member_rate > 0)  # entries are memberships
    return single


def _equations(program: Program, share: Floats, rate: Floats) -> _Equations:
    from scipy.sparse import csr_array, vstack

    K, T, E = len(program.value), len(program.problem.gpu_types), len(share)
    at, entry = program.member_class, program.member_entry
    rates = csr_array((program.member_rate / np.where(rate > 0, rate, 1.0)[at], (at, entry)), shape=(K, E))
    times = csr_array((program.member_time, (at, entry)), shape=(K, E))
    loads = csr_array((program.entry_load, (program.entry_type, np.arange(E))), shape=(T, E))
    full = [rows[np.flatnonzero(np.asarray(rows @ share) >= 1.0 - _TIGHT)] for rows in (times, loads)]
    return _Equations(csr_array(vstack([rates[np.flatnonzero(rate > 0)], *full])))
