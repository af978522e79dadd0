"""One whole choice for each job, of the highest total value within capacities: integer programs solved by HiGHS.

    maximise    Σ_k v_k z_k
    such that   Σ_{k of job j} z_k <= 1    for each job (`best_whole_choices`), or = 1 (`best_of_each`)
                Σ_k d_kr z_k <= W_r        for each row r of capacity (a resource at a GPU type), or any other limit
                z_k in {0, 1}

Branch and bound has a limit of nodes, not of time, so that equal programs give equal answers. What it has then is an
answer with the gap that is proved. Where each job must have a choice no answer may be possible; that is an answer too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gavelpy.model.allocation import Certificate
from gavelpy.model.arrays import Floats, Ints
from gavelpy.solve.integer_program import IntegerProgram, best_integers

NODES_MAX = 2_000
NODES_MAX_OF_EACH = 1_000  # nodes of programs that must choose for each job
GAP = 1e-7  # relative; branch and bound ends there
GAP_OF_EACH = 1e-9  # where a tie-breaker is part of the values
GAP_MAX = 1e-6  # relative; a larger one is a warning
_CHOSEN = 0.5
_TINY = np.finfo(np.float64).tiny


@dataclass(frozen=True, eq=False)
class WholeChoice:
    """The chosen places of the K choices, ascending, their total value, and the proved bound of any total."""

    chosen: Ints
    value: float
    bound: float

    def certificate(self, violation: float, path: str = "branch and bound") -> Certificate:
        """The proof of the total value, with a warning if branch and bound ended at its limit of nodes before it."""
        gap = (self.bound - self.value) / max(abs(self.value), _TINY) if self.bound > self.value else 0.0
        warning = ""
        if gap > GAP_MAX:
            warning = (
                f"feasible, but proved to a gap of {gap:.1e} only, not to {GAP_MAX:g}: the limit of nodes was reached"
            )
        return Certificate(self.value, self.bound, gap, violation, path, solve_s=0.0, warning=warning)


def best_whole_choices(job: Ints, value: Floats, demand: Floats, capacity: Floats) -> WholeChoice:
    """The best choices, at most one for each job. Raises SolverFailed if HiGHS does.

    `job` (K,) is the job of each choice, `demand` (K, R) what it uses of each row of `capacity` (R,). Choices without a
    positive value, and those that do not fit alone, are in no answer.

    >>> demand = np.array([[2.0], [1.0], [1.0]])
    >>> best = best_whole_choices(np.array([0, 0, 1]), np.array([3.0, 2.0, 2.0]), demand, np.array([2.0]))
    >>> best.chosen.tolist(), best.value
    ([1, 2], 4.0)
    """
    of_use = np.flatnonzero((value > 0) & (demand <= capacity).all(axis=1))
    if not len(of_use):
        return WholeChoice(of_use, 0.0, 0.0)
    value, demand = value[of_use], demand[of_use]
    _, row = np.unique(job[of_use], return_inverse=True)
    options = {"mip_rel_gap": GAP, "mip_max_nodes": NODES_MAX}
    found = _solved(_Program(row, value, demand, capacity, -np.inf), options, _greedy(row, value, demand, capacity))
    assert found is not None, "the start is an answer"
    return replace(found, chosen=of_use[found.chosen])


def best_of_each(
    job: Ints, value: Floats, demand: Floats, limits: Floats, nodes_max: int = NODES_MAX_OF_EACH
) -> WholeChoice | None:
    """The best choices, exactly one for each job; None if no answer is possible, or none was found within the nodes.

    Arguments as for `best_whole_choices`; values of any sign. Raises SolverFailed if HiGHS does.

    >>> job, demand = np.array([0, 0, 1, 1]), np.array([[2.0], [1.0], [1.0], [2.0]])
    >>> best = best_of_each(job, np.array([3.0, 1.0, 1.0, 4.0]), demand, np.array([3.0]))
    >>> best.chosen.tolist(), best.value
    ([1, 3], 5.0)
    >>> best_of_each(job, np.zeros(4), demand, np.array([1.0])) is None
    True
    """
    if not len(job):
        return WholeChoice(np.zeros(0, dtype=np.int64), 0.0, 0.0)
    _, row = np.unique(job, return_inverse=True)
    options = {"mip_rel_gap": GAP_OF_EACH, "mip_abs_gap": 0.0, "mip_max_nodes": nodes_max}
    return _solved(_Program(row, value, demand, limits, 1.0), options)


def _greedy(row: Ints, value: Floats, demand: Floats, capacity: Floats) -> Floats:
    """A feasible answer, (K,) of 0 and 1: choices in the order of their value per part of the capacity."""
    part = (demand / np.where(capacity > 0, capacity, 1.0)).sum(axis=1)
    chosen, left, waits = np.zeros(len(row)), capacity.astype(np.float64), np.ones(len(row), dtype=np.bool_)
    for k in np.argsort(-value / np.maximum(part, _TINY), kind="stable").tolist():
        if waits[row[k]] and (demand[k] <= left).all():
            chosen[k], waits[row[k]] = 1.0, False
            left -= demand[k]
    return chosen


@dataclass(frozen=True, eq=False)
class _Program:
    """K choices of the jobs `row`, 0..J-1: their values, what they use of R limits, and the least choices of a job."""

    row: Ints  # (K,)
    value: Floats  # (K,)
    demand: Floats  # (K, R)
    limits: Floats  # (R,)
    least: float

    @property
    def jobs(self) -> int:
        """J."""
        return int(self.row.max()) + 1

    def as_integers(self) -> IntegerProgram:
        """The same as a general integer program: rows of jobs, then rows of limits."""
        K, J = self.demand.shape[0], self.jobs
        column, limit = np.nonzero(self.demand)
        return IntegerProgram(
            value=self.value,
            upper=np.ones(K),
            is_whole=np.ones(K, dtype=np.bool_),
            rows=np.concatenate([self.row, J + limit]),
            columns=np.concatenate([np.arange(K), column]),
            coefficients=np.concatenate([np.ones(K), self.demand[column, limit]]),
            low=np.concatenate([np.full(J, self.least), np.full(len(self.limits), -np.inf)]),
            high=np.concatenate([np.ones(J), self.limits]),
        )


def _solved(program: _Program, options: Mapping[str, Any], start: Floats | None = None) -> WholeChoice | None:
    """The best choices, from a feasible start (K,) if one is known; None = no answer."""
    detail = "one whole choice for each job"
    best = best_integers(program.as_integers(), options, start, detail=detail, jobs=program.jobs)
    if best is None:
        return None
    chosen = np.flatnonzero(best.columns > _CHOSEN)
    total = float(program.value[chosen].sum())
    return WholeChoice(chosen, total, max(total, best.bound))
