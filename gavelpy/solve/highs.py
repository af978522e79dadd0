"""HiGHS, told exactly what to do. The only file that knows its interface."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from gavelpy.errors import SolverFailed
from gavelpy.model.arrays import Bools, Floats, Ints
from gavelpy.model.problem import AllocationProblem
from gavelpy.solve.certificate import failed

if TYPE_CHECKING:
    from gavelpy.solve.solver import Solver

_ALWAYS: Mapping[str, Any] = {
    "output_flag": False,
    "threads": 1,
    "parallel": "off",
    "random_seed": 0,
    "small_matrix_value": 1e-12,  # the least that HiGHS takes: smaller coefficients are dropped
    "primal_feasibility_tolerance": 1e-10,  # the least, too; both are absolute
    "dual_feasibility_tolerance": 1e-10,
    "no_unnecessary_rebuild_refactor": False,  # else what goes on from a basis may be off by 1e-8 and be called exact
}
_WHOLE: Mapping[str, Any] = {
    "output_flag": False,
    "threads": 1,
    "parallel": "off",
    "random_seed": 0,
    "mip_rel_gap": 0.0,
    "mip_allow_restart": False,  # these programs need few nodes: restarts and smaller programs inside cost most of it
    "mip_heuristic_run_rins": False,
    "mip_heuristic_run_rens": False,
    "mip_heuristic_run_root_reduced_cost": False,
}
_DUAL_SIMPLEX, _PRIMAL_SIMPLEX = 1, 4
_INTERIOR_COLUMNS = 1500  # above, interior point with crossover: 3 times faster at 6,000 columns, even at 1,000
_TOLERANCE = 1e-9  # of an optimum that HiGHS calls unknown
_ENLARGED = 2.0**20  # of residuals: a power of two, so that nothing is rounded
_PRICED = 1e-9  # duals and reduced costs above are not zero


@dataclass(frozen=True)
class Effort:
    """A rung: how HiGHS is told to work."""

    name: str
    options: Mapping[str, Any]  # HiGHS's own names
    on_face: bool  # whether ties are resolved on the face of optima, from the last basis; else afresh, above a level
    interior_columns: float = _INTERIOR_COLUMNS  # above, the interior point
    refines: bool = False  # whether fillings refine what HiGHS finds (Run.refined)


QUICK = Effort(
    "highs", {"presolve": "off", "simplex_scale_strategy": 0, "simplex_dual_edge_weight_strategy": 0}, on_face=True
)
GROWING = Effort(
    "columns",
    {"presolve": "off", "simplex_scale_strategy": 0, "simplex_dual_edge_weight_strategy": 1},
    on_face=True,
    interior_columns=np.inf,  # every run goes on from a basis
)
REFINED = Effort("refined", QUICK.options, on_face=True, interior_columns=np.inf, refines=True)
CAREFUL = Effort(
    "careful",
    {"presolve": "choose", "simplex_scale_strategy": 2, "simplex_dual_edge_weight_strategy": -1},
    on_face=False,
    interior_columns=np.inf,  # where the interior point has failed already
)


@dataclass(frozen=True, eq=False)
class Model:
    """Columns by column from a lower bound up, rows between bounds."""

    start: Ints  # (columns + 1,) int32
    row: Ints  # (nonzeros,) int32
    value: Floats
    column_lower: Floats
    row_lower: Floats
    row_upper: Floats

    @property
    def column_count(self) -> int:
        """Columns."""
        return len(self.start) - 1

    @cached_property
    def _column(self) -> Ints:
        return np.repeat(np.arange(self.column_count), np.diff(self.start))

    def rows_at(self, column: Floats) -> Any:  # numpy has no name of its own for arrays in extended precision
        """Values of the rows where the columns have these, in extended precision."""
        rows = np.zeros(len(self.row_lower), dtype=np.longdouble)
        np.add.at(rows, self.row, self.value * column.astype(np.longdouble)[self._column])
        return rows

    def costs_at(self, row_dual: Floats) -> Any:  # as above
        """What the columns cost at these duals of the rows, in extended precision."""
        costs = np.zeros(self.column_count, dtype=np.longdouble)
        np.add.at(costs, self._column, self.value * row_dual.astype(np.longdouble)[self.row])
        return costs


@dataclass(frozen=True, eq=False)
class Optimum:
    """What HiGHS reports; signs as in minimisation."""

    column: Floats
    column_dual: Floats
    row_dual: Floats


class Run:
    """One model: solved, then solved again under other costs among its optima. Raises SolverFailed when HiGHS does.

    Where HiGHS's interior point or its presolve ends without an answer, its simplex method is asked on the whole model.
    """

    def __init__(self, problem: AllocationProblem, solver: Solver, effort: Effort, model: Model) -> None:
        self._problem = problem
        self._model = model
        self._interior_columns = effort.interior_columns
        self.row_ray: Floats | None = None  # multipliers of rows by which HiGHS proves that no columns satisfy them
        self._highs = solver.highs()
        self._highs.resetOptions()
        for name, value in {**_ALWAYS, **effort.options}.items():
            self._highs.setOptionValue(name, value)

    def solve(self, cost: Floats, row_upper: Floats) -> Optimum:
        """The columns of least cost, from nothing: warm state must carry no meaning."""
        import highspy

        m, lp = self._model, highspy.HighsLp()
        lp.num_col_, lp.num_row_ = m.column_count, len(m.row_lower)
        lp.col_cost_, lp.col_lower_ = cost, m.column_lower
        lp.col_upper_ = np.full(m.column_count, highspy.kHighsInf)
        lp.row_lower_, lp.row_upper_ = m.row_lower, row_upper
        lp.a_matrix_.format_ = highspy.MatrixFormat.kColwise
        lp.a_matrix_.start_, lp.a_matrix_.index_, lp.a_matrix_.value_ = m.start, m.row, m.value
        self._highs.setOptionValue("simplex_strategy", _DUAL_SIMPLEX)
        self._highs.clearSolver()
        self._highs.passModel(lp)
        self._highs.setOptionValue("solver", "ipm" if m.column_count > self._interior_columns else "simplex")
        self._highs.run()
        self._highs.setOptionValue("solver", "simplex")  # what follows begins from a basis
        if self._is_optimal():
            return self._answer()
        if self._highs.getModelStatus() == highspy.HighsModelStatus.kInfeasible and self._has_ray():
            raise self._infeasible()
        self._highs.setOptionValue("presolve", "off")
        self._highs.clearSolver()
        return self._optimum()

    def again(self, row_upper: Floats) -> Optimum:
        """The optimum of the same model with other upper bounds of its rows, from the last basis."""
        m = self._model
        self._highs.changeRowsBounds(len(row_upper), np.arange(len(row_upper), dtype=np.int32), m.row_lower, row_upper)
        return self._optimum()

    def grow(self, columns: Model, cost: Floats) -> Optimum:
        """The optimum of the model with more columns, which come after those there are, from the last basis."""
        m, more = self._model, columns.column_count
        self._model = replace(
            m,
            start=np.concatenate([m.start, m.start[-1] + columns.start[1:]]),
            row=np.concatenate([m.row, columns.row]),
            value=np.concatenate([m.value, columns.value]),
            column_lower=np.concatenate([m.column_lower, columns.column_lower]),
        )
        free = np.full(more, np.inf)
        self._highs.addCols(
            more, cost, columns.column_lower, free, len(columns.row), columns.start[:-1], columns.row, columns.value
        )
        self._highs.setOptionValue("simplex_strategy", _PRIMAL_SIMPLEX)
        return self._optimum()

    def on_face(self, first: Optimum, cost: Floats) -> Optimum:
        """The columns of least `cost` among the optima of the model that has `first`'s duals.

        By complementary slackness those are the points that are at their bound where a column has a reduced cost and
        tight where a row has a dual. Nothing of the first objective is given up, so no share is there that only spends
        a slack.
        """
        m, columns = self._model, np.arange(self._model.column_count, dtype=np.int32)
        rows = np.arange(len(m.row_lower), dtype=np.int32)
        lower = np.where(first.row_dual < -_PRICED, m.row_upper, m.row_lower)
        upper = np.where(first.row_dual > _PRICED, m.row_lower, m.row_upper)
        self._highs.setOptionValue("simplex_strategy", _PRIMAL_SIMPLEX)
        self._highs.changeColsCost(len(columns), columns, cost)
        free = np.where(first.column_dual > _PRICED, m.column_lower, np.inf)
        self._highs.changeColsBounds(len(columns), columns, m.column_lower, free)
        self._highs.changeRowsBounds(len(rows), rows, lower, upper)
        return self._optimum()

    def rebounded(self, row_lower: Floats, row_upper: Floats) -> Optimum:
        """The optimum of the same model with other bounds of its rows, from the last basis."""
        rows = np.arange(len(row_lower), dtype=np.int32)
        self._highs.changeRowsBounds(len(rows), rows, row_lower, row_upper)
        return self._optimum()

    def refined(self, found: Optimum, cost: Floats, row_lower: Floats, row_upper: Floats) -> Optimum:
        """`found`, an optimum of the model with this cost and these bounds of rows, six decimals more exact.

        A step of iterative refinement: the same model for what is missing, a million times enlarged, from the same
        basis. `found` itself where HiGHS finds no optimum of that. Source: Gleixner, Steffy and Wolter, Iterative
        refinement for linear programming, INFORMS Journal on Computing 28 (2016).
        """
        m, rows = self._model, self._model.rows_at(found.column)
        missing_cost = (cost - m.costs_at(found.row_dual)) * _ENLARGED
        missing = tuple(((bound - rows) * _ENLARGED).astype(np.float64) for bound in (row_lower, row_upper))
        self._set(missing_cost.astype(np.float64), (m.column_lower - found.column) * _ENLARGED, *missing)
        self._highs.run()
        more = self._answer() if self._is_optimal() else None
        self._set(cost, m.column_lower, row_lower, row_upper)
        if more is None:
            return found
        column, row_dual = found.column + more.column / _ENLARGED, found.row_dual + more.row_dual / _ENLARGED
        return Optimum(column, more.column_dual / _ENLARGED, row_dual)

    def _set(self, cost: Floats, column_lower: Floats, row_lower: Floats, row_upper: Floats) -> None:
        columns, rows = np.arange(len(cost), dtype=np.int32), np.arange(len(row_lower), dtype=np.int32)
        self._highs.changeColsCost(len(cost), columns, cost)
        self._highs.changeColsBounds(len(cost), columns, column_lower, np.full(len(cost), np.inf))
        self._highs.changeRowsBounds(len(rows), rows, row_lower, row_upper)

    def above(self, cost: Floats, column: int, least: float) -> Optimum:
        """The columns of least `cost` of the same model with `column` at `least` or more, from nothing."""
        import highspy

        self._highs.clearSolver()
        self._highs.changeColsCost(len(cost), np.arange(len(cost), dtype=np.int32), cost)
        self._highs.changeColBounds(column, least, highspy.kHighsInf)
        return self._optimum()

    def _optimum(self) -> Optimum:
        import highspy

        self._highs.run()
        if self._is_optimal():
            return self._answer()
        status = self._highs.getModelStatus()
        self._has_ray()  # also with status "Unknown", where HiGHS's own check of its ray has failed
        if status == highspy.HighsModelStatus.kInfeasible:
            raise self._infeasible()
        raise failed(self._problem, self._highs.modelStatusToString(status), "HiGHS")

    def _is_optimal(self) -> bool:
        """Whether HiGHS has an optimum. It calls some unknown whose infeasibilities are below its tolerances."""
        import highspy

        status, info = self._highs.getModelStatus(), self._highs.getInfo()
        if status == highspy.HighsModelStatus.kUnknown:
            return bool(0 <= max(info.max_primal_infeasibility, info.max_dual_infeasibility) <= _TOLERANCE)
        return bool(status == highspy.HighsModelStatus.kOptimal)

    def _has_ray(self) -> bool:
        """Whether HiGHS has a ray that may prove the model infeasible; kept for whoever checks it."""
        if not self._highs.getDualRayExist()[1]:
            return False
        _, has_ray, ray = self._highs.getDualRay()
        self.row_ray = np.array(ray) if has_ray else None
        return bool(has_ray)

    def _infeasible(self) -> SolverFailed:
        return failed(self._problem, "infeasible", "no shares give every job its least rate")

    def _answer(self) -> Optimum:
        s = self._highs.getSolution()
        return Optimum(np.array(s.col_value), np.array(s.col_dual), np.array(s.row_dual))


@dataclass(frozen=True, eq=False)
class BoxedModel:
    """A small program: columns by column, each with a cost and bounds; rows between bounds."""

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
    """The columns of least cost, or None when HiGHS finds none: then there is another way to the same answer."""
    import highspy

    highs = solver.small_highs()
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = len(m.cost), len(m.row_lower)
    lp.col_cost_, lp.col_lower_, lp.col_upper_ = m.cost, m.lower, m.upper
    lp.row_lower_, lp.row_upper_ = m.row_lower, m.row_upper
    lp.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    lp.a_matrix_.start_, lp.a_matrix_.index_, lp.a_matrix_.value_ = m.start, m.row, m.value
    highs.clearSolver()
    highs.passModel(lp)
    highs.run()
    if highs.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        return None
    solution = highs.getSolution()
    return Solved(np.array(solution.col_value), np.array(solution.row_dual))


@dataclass(frozen=True, eq=False)
class Whole:
    """What branch and bound found: columns (empty: none within its nodes), and a bound on their cost from below."""

    column: Floats
    bound: float
    status: str  # HiGHS's own word


def solve_whole(m: BoxedModel, is_whole: Bools, nodes_max: int) -> Whole:
    """The columns of least cost of which some, (columns,), are whole numbers; a plain LP where none are.

    A fresh object each time, so that no warm state enters. scipy's `milp` has an older HiGHS inside, which prints a
    line past all its options.
    """
    import highspy

    highs, lp = highspy.Highs(), highspy.HighsLp()
    for name, value in {**_WHOLE, "mip_max_nodes": nodes_max}.items():
        highs.setOptionValue(name, value)
    lp.num_col_, lp.num_row_ = len(m.cost), len(m.row_lower)
    lp.col_cost_, lp.col_lower_, lp.col_upper_ = m.cost, m.lower, m.upper
    lp.row_lower_, lp.row_upper_ = m.row_lower, m.row_upper
    lp.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    lp.a_matrix_.start_, lp.a_matrix_.index_, lp.a_matrix_.value_ = m.start, m.row, m.value
    if is_whole.any():
        kinds = (highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger)
        lp.integrality_ = [kinds[whole] for whole in is_whole.astype(int).tolist()]
    highs.passModel(lp)
    highs.run()
    info, status = highs.getInfo(), highs.modelStatusToString(highs.getModelStatus())
    found = info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
    column = np.array(highs.getSolution().col_value) if found else np.zeros(0)
    return Whole(column, info.mip_dual_bound if is_whole.any() else info.objective_function_value, status)
