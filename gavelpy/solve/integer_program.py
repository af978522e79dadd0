"""Integer programs, solved by HiGHS with a limit of nodes, not of time, so that equal programs give equal answers.

    maximise    Σ_k v_k z_k + constant
    such that   low_r <= Σ_k a_rk z_k <= high_r     for each row r
                lower_k <= z_k <= upper_k           and z_k whole where `is_whole`

What branch and bound has at the limit is an answer with the bound that is proved until then.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from gavelpy.errors import SolverFailed
from gavelpy.model.arrays import Bools, Floats, Ints
from gavelpy.solve.solver import DETERMINISTIC, highs_program, new_highs

_WHOLE = 1e-9  # HiGHS's tolerance of feasibility


@dataclass(frozen=True, eq=False)
class IntegerProgram:
    """K columns and R rows; the coefficients are (row, column, value) of N entries, each place once."""

    value: Floats  # (K,)
    upper: Floats  # (K,); lower bounds are 0
    is_whole: Bools  # (K,)
    rows: Ints  # (N,)
    columns: Ints  # (N,)
    coefficients: Floats  # (N,)
    low: Floats  # (R,)
    high: Floats  # (R,)
    constant: float = 0.0  # of the objective, so that gaps are relative to all of it

    def of_highs(self) -> Any:  # highspy has no types
        """The program in HiGHS's own form."""
        import highspy

        K = len(self.value)
        order = np.argsort(self.columns, kind="stable")
        starts = np.concatenate([[0], np.cumsum(np.bincount(self.columns, minlength=K))])
        matrix = (starts, self.rows[order], self.coefficients[order])
        program = highs_program(matrix, -self.value, (np.zeros(K), self.upper), (self.low, self.high))
        program.offset_ = -self.constant
        kinds = highspy.HighsVarType
        program.integrality_ = [kinds.kInteger if whole else kinds.kContinuous for whole in self.is_whole.tolist()]
        return program


@dataclass(frozen=True, eq=False)
class IntegerAnswer:
    """The columns (K,) and the proved bound of the value of any answer."""

    columns: Floats
    bound: float


def best_integers(
    program: IntegerProgram, options: Mapping[str, Any], start: Floats | None = None, *, detail: str, jobs: int
) -> IntegerAnswer | None:  # Any: HiGHS's options are of several types
    """The best answer, from a feasible start (K,) if one is known; None = none is possible, or was found in time.

    Raises SolverFailed, with `detail` and the number of jobs, if HiGHS fails.

    >>> one = np.ones(1)
    >>> knapsack = IntegerProgram(np.array([3.0, 2.0]), np.full(2, 9.0), np.array([True, True]), np.array([0, 0]),
    ...     np.array([0, 1]), np.array([2.0, 1.0]), np.array([-np.inf]), np.array([3.0]))
    >>> best_integers(knapsack, {"mip_max_nodes": 100}, detail="a knapsack", jobs=2).columns.tolist()
    [0.0, 3.0]
    """
    import highspy

    highs = new_highs({**DETERMINISTIC, "mip_feasibility_tolerance": _WHOLE, **options})
    highs.passModel(program.of_highs())
    if start is not None:
        first = highspy.HighsSolution()
        first.col_value = start.tolist()
        highs.setSolution(first)
    highs.run()
    status, solution = highs.getModelStatus(), highs.getSolution()
    of = highspy.HighsModelStatus
    if status in (of.kInfeasible, of.kUnboundedOrInfeasible):
        return None
    if status == of.kSolutionLimit and not solution.value_valid:
        return None
    if status not in (of.kOptimal, of.kSolutionLimit) or not solution.value_valid:
        rows = len(program.low)
        raise SolverFailed(highs.modelStatusToString(status), jobs=jobs, gpu_types=rows, detail=detail)
    found = np.array(solution.col_value)
    found[program.is_whole] = np.rint(found[program.is_whole])
    return IntegerAnswer(found, -float(highs.getInfo().mip_dual_bound))
