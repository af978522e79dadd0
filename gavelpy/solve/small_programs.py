"""Small programs solved by HiGHS: linear ones with warm options, and those with whole numbers by branch and bound."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from gavelpy.model.arrays import Bools, Floats, Ints
from gavelpy.solve.solver import DETERMINISTIC, Solver, highs_program, new_highs

_BRANCH_AND_BOUND: Mapping[str, Any] = {
    **DETERMINISTIC,
    "mip_rel_gap": 0.0,
    "mip_allow_restart": False,  # few nodes are needed: restarts and sub-searches would take most of the time
    "mip_heuristic_run_rins": False,
    "mip_heuristic_run_rens": False,
    "mip_heuristic_run_root_reduced_cost": False,
}


@dataclass(frozen=True, eq=False)
class BoxedModel:
    """A small program by columns, each with a cost and two bounds; rows have two bounds."""

    start: Ints  # (columns + 1,) int32
    row: Ints  # (nonzeros,) int32
    value: Floats
    row_lower: Floats
    row_upper: Floats
    cost: Floats
    lower: Floats
    upper: Floats


@dataclass(frozen=True, eq=False)
class Solved:
    """The optimum of a small program."""

    column: Floats
    row_dual: Floats


def solve_small(solver: Solver, m: BoxedModel) -> Solved | None:
    """The columns of least cost, or None if HiGHS finds none; callers then use another algorithm."""
    import highspy

    highs = solver.small_highs()
    highs.clearSolver()
    highs.passModel(_highs_program(m))
    highs.run()
    if highs.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        return None
    solution = highs.getSolution()
    return Solved(np.array(solution.col_value), np.array(solution.row_dual))


@dataclass(frozen=True, eq=False)
class BranchAndBound:
    """The result of branch and bound: columns (empty: none within the nodes), and a lower bound on their cost."""

    column: Floats
    bound: float
    status: str  # as HiGHS reports it


def solve_whole(m: BoxedModel, is_whole: Bools, nodes_max: int) -> BranchAndBound:
    """The columns of least cost, with whole numbers where `is_whole`, (columns,); a plain LP if no column is.

    A new HiGHS object each time, so that no warm state enters. scipy's `milp` contains an older HiGHS that prints a
    line whatever its options.
    """
    import highspy

    highs, lp = new_highs({**_BRANCH_AND_BOUND, "mip_max_nodes": nodes_max}), _highs_program(m)
    if is_whole.any():
        kinds = (highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger)
        lp.integrality_ = [kinds[whole] for whole in is_whole.astype(int).tolist()]
    highs.passModel(lp)
    highs.run()
    info, status = highs.getInfo(), highs.modelStatusToString(highs.getModelStatus())
    found = info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
    column = np.array(highs.getSolution().col_value) if found else np.zeros(0)
    return BranchAndBound(column, info.mip_dual_bound if is_whole.any() else info.objective_function_value, status)


def _highs_program(m: BoxedModel) -> Any:  # highspy has no types
    return highs_program((m.start, m.row, m.value), m.cost, (m.lower, m.upper), (m.row_lower, m.row_upper))
