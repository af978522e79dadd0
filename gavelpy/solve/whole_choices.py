"""At most one choice for each job, whole, of the highest total value: an integer program solved by HiGHS.

    maximise    Σ_k v_k z_k
    such that   Σ_{k of job j} z_k <= 1    for each job
                Σ_k d_kr z_k <= W_r        for each row r of capacity (a resource at a GPU type)
                z_k in {0, 1}

Branch and bound has a limit of nodes, not of time, so that equal programs give equal answers. What it has then is an
answer with the gap that is proved.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gavelpy.errors import SolverFailed
from gavelpy.model.allocation import Certificate
from gavelpy.model.arrays import Floats, Ints
from gavelpy.solve.solver import DETERMINISTIC, highs_program, new_highs

NODES_MAX = 2_000
GAP = 1e-7  # relative; branch and bound ends there
GAP_MAX = 1e-6  # relative; a larger one is a warning
_WHOLE = 1e-9  # HiGHS's tolerance of feasibility
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
    """The best choices. Raises SolverFailed if HiGHS does.

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
    job, value, demand = job[of_use], value[of_use], demand[of_use]
    jobs, row = np.unique(job, return_inverse=True)
    K, J = len(of_use), len(jobs)
    column, resource = np.nonzero(demand)
    rows = np.concatenate([row, J + resource])
    columns, values = np.concatenate([np.arange(K), column]), np.concatenate([np.ones(K), demand[column, resource]])
    order = np.argsort(columns, kind="stable")
    starts = np.concatenate([[0], np.cumsum(np.bincount(columns, minlength=K))])
    bounds = np.concatenate([np.ones(J), capacity])
    matrix: tuple[Ints, Ints, Floats] = (starts, rows[order], values[order])
    chosen, bound = _solved(matrix, value, bounds, _greedy(row, value, demand, capacity))
    return WholeChoice(of_use[chosen], float(value[chosen].sum()), max(bound, float(value[chosen].sum())))


def _greedy(row: Ints, value: Floats, demand: Floats, capacity: Floats) -> Floats:
    """A feasible answer, (K,) of 0 and 1: choices in the order of their value per part of the capacity."""
    part = (demand / np.where(capacity > 0, capacity, 1.0)).sum(axis=1)
    chosen, left, waits = np.zeros(len(row)), capacity.astype(np.float64), np.ones(len(row), dtype=np.bool_)
    for k in np.argsort(-value / np.maximum(part, _TINY), kind="stable").tolist():
        if waits[row[k]] and (demand[k] <= left).all():
            chosen[k], waits[row[k]] = 1.0, False
            left -= demand[k]
    return chosen


def _solved(matrix: tuple[Ints, Ints, Floats], value: Floats, high: Floats, start: Floats) -> tuple[Ints, float]:
    """The places of the columns that are one, and the bound of the total value, from a feasible start (K,)."""
    import highspy

    K = len(value)
    options = {"mip_rel_gap": GAP, "mip_max_nodes": NODES_MAX, "mip_feasibility_tolerance": _WHOLE}
    highs = new_highs({**DETERMINISTIC, **options})
    program = highs_program(matrix, -value, (np.zeros(K), np.ones(K)), (np.full(len(high), -np.inf), high))
    program.integrality_ = [highspy.HighsVarType.kInteger] * K
    highs.passModel(program)
    first = highspy.HighsSolution()
    first.col_value = start.tolist()
    highs.setSolution(first)
    highs.run()
    status, solution = highs.getModelStatus(), highs.getSolution()
    done = (highspy.HighsModelStatus.kOptimal, highspy.HighsModelStatus.kSolutionLimit)
    if status not in done or not solution.value_valid:
        detail = "one whole choice for each job"
        raise SolverFailed(highs.modelStatusToString(status), jobs=K, gpu_types=len(high), detail=detail)
    return np.flatnonzero(np.array(solution.col_value) > _CHOSEN), -float(highs.getInfo().mip_dual_bound)
