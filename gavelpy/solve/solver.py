"""The solver object that keeps warm state between calls, and linear programs solved by HiGHS.

Only this module, `small_programs` and `integer_program` import highspy. `Run` solves one model several times: under
other costs, with other bounds, with more columns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from gavelpy.errors import SolverFailed
from gavelpy.model.arrays import Bools, Floats, Ints
from gavelpy.model.problem import AllocationProblem
from gavelpy.solve.certificate import failed

NUMPY_ROWS_MAX = 512  # rows for the numpy kernels; above, the numba kernels, which take half a second to load
DETERMINISTIC: Mapping[str, Any] = {"output_flag": False, "threads": 1, "parallel": "off", "random_seed": 0}
_EXACT: Mapping[str, Any] = {
    **DETERMINISTIC,
    "small_matrix_value": 1e-12,  # the minimum that HiGHS accepts: smaller coefficients are dropped
    "primal_feasibility_tolerance": 1e-10,  # also the minimum; both are absolute
    "dual_feasibility_tolerance": 1e-10,
}
_RUN: Mapping[str, Any] = {
    **_EXACT,
    "no_unnecessary_rebuild_refactor": False,  # else a run from a basis may be off by 1e-8 and be reported as optimal
}
_SMALL: Mapping[str, Any] = {**_EXACT, "presolve": "off", "solver": "simplex", "simplex_scale_strategy": 0}
_DUAL_SIMPLEX, _PRIMAL_SIMPLEX = 1, 4
_INTERIOR_COLUMNS = 1500  # above, interior point with crossover: 3 times faster at 6,000 columns, equal at 1,000
_TOLERANCE = 1e-9  # of an optimum whose status HiGHS reports as unknown
_ENLARGED = 2.0**20  # factor on residuals: a power of two, so that nothing is rounded
PRICED = 1e-9  # duals and reduced costs above are not zero


class Solver:
    """Warm state of a caller: HiGHS objects, last prices, and counts of answers. Not for two threads at once.

    Answers are the same without it.
    """

    def __init__(self) -> None:
        self.answers: Counter[str] = Counter()  # path of the certificate -> answers
        self.falls: Counter[str] = Counter()  # rung -> answers that it could not certify
        self.points: dict[tuple[str, int], Any] = {}  # (kind, number of types) -> prices at which a search starts
        self.kept: dict[tuple[str, int], Any] = {}  # (objective, number of types) -> its last problem (prices/kept.py)
        self._highs: Any = None  # highspy has no types
        self._small_highs: Any = None

    def highs(self) -> Any:  # highspy has no types
        """The HiGHS object, loaded at first use."""
        if self._highs is None:
            self._highs = new_highs({"output_flag": False})
        return self._highs

    def small_highs(self) -> Any:  # highspy has no types
        """A second HiGHS object, with options for programs of a few hundred columns."""
        if self._small_highs is None:
            self._small_highs = new_highs(_SMALL)
        return self._small_highs


def new_highs(options: Mapping[str, Any]) -> Any:  # highspy has no types
    """A HiGHS object with these options."""
    import highspy

    highs = highspy.Highs()
    for name, value in options.items():
        highs.setOptionValue(name, value)
    return highs


def highs_program(
    columns: tuple[Ints, Ints, Floats], cost: Floats, column_bounds: tuple[Floats, Floats],
    row_bounds: tuple[Floats, Floats],
) -> Any:  # fmt: skip  # highspy has no types
    """A linear program in HiGHS's own form; `columns` are starts, rows and values, column by column."""
    import highspy

    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = len(cost), len(row_bounds[0])
    lp.col_cost_, (lp.col_lower_, lp.col_upper_) = cost, column_bounds
    lp.row_lower_, lp.row_upper_ = row_bounds
    lp.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    lp.a_matrix_.start_, lp.a_matrix_.index_, lp.a_matrix_.value_ = columns
    return lp


@dataclass(frozen=True)
class HighsEffort:
    """A rung of the ladder that uses HiGHS: its options."""

    name: str
    options: Mapping[str, Any]  # HiGHS's names
    on_face: bool  # whether ties are resolved on the face of optima, from the last basis; else from the start
    interior_columns: float = _INTERIOR_COLUMNS  # above, the interior point method
    refines: bool = False  # whether water filling refines the optimum (Run.refined)
    in_units: bool = False  # whether water filling measures each class in units of its target


QUICK = HighsEffort(
    "highs", {"presolve": "off", "simplex_scale_strategy": 0, "simplex_dual_edge_weight_strategy": 0}, on_face=True
)
GROWING = HighsEffort(
    "columns",
    {"presolve": "off", "simplex_scale_strategy": 0, "simplex_dual_edge_weight_strategy": 1},
    on_face=True,
    interior_columns=np.inf,  # every run continues from a basis
)
REFINED = HighsEffort("refined", QUICK.options, on_face=True, interior_columns=np.inf, refines=True)
IN_UNITS = replace(REFINED, name="in units", in_units=True)
CAREFUL = HighsEffort(
    "careful",
    {"presolve": "choose", "simplex_scale_strategy": 2, "simplex_dual_edge_weight_strategy": -1},
    on_face=False,
    interior_columns=np.inf,  # where the interior point has failed already
)


@dataclass(frozen=True, eq=False)
class Model:
    """A linear program by columns, each with a lower bound; rows have two bounds."""

    start: Ints  # (columns + 1,) int32
    row: Ints  # (nonzeros,) int32
    value: Floats
    column_lower: Floats
    row_lower: Floats
    row_upper: Floats

    @property
    def column_count(self) -> int:
        """Number of columns."""
        return len(self.start) - 1

    @cached_property
    def _column(self) -> Ints:
        return np.repeat(np.arange(self.column_count), np.diff(self.start))

    def rows_at(self, column: Floats) -> Any:  # numpy has no type for arrays in extended precision
        """Values of the rows at these values of the columns, in extended precision."""
        rows = np.zeros(len(self.row_lower), dtype=np.longdouble)
        np.add.at(rows, self.row, self.value * column.astype(np.longdouble)[self._column])
        return rows

    def error(self, found: Optimum, cost: Floats, row_lower: Floats, row_upper: Floats) -> float:
        """By how much `found` misses an optimum at most: a bound, a column that earns more than its cost, both values.

        All are absolute; the value of the duals is that at these bounds.
        """
        rows, y = self.rows_at(found.column), found.row_dual
        reduced = cost - self.costs_at(y)
        broken = self.column_lower - found.column, row_lower - rows, rows - row_upper, -reduced
        bound = np.where(y > 0, row_lower, np.where(y < 0, row_upper, 0.0))
        proved = (y * bound).sum() + (np.maximum(reduced, 0.0) * self.column_lower).sum()
        return max(abs(float(cost @ found.column - proved)), *(float(each.max(initial=0.0)) for each in broken))

    def costs_at(self, row_dual: Floats) -> Any:  # as above
        """Costs of the columns at these duals of the rows, in extended precision."""
        costs = np.zeros(self.column_count, dtype=np.longdouble)
        np.add.at(costs, self._column, self.value * row_dual.astype(np.longdouble)[self.row])
        return costs


@dataclass(frozen=True, eq=False)
class Optimum:
    """The optimum that HiGHS reports; signs as in minimisation."""

    column: Floats
    column_dual: Floats
    row_dual: Floats


class Run:
    """One model, solved first with `solve`, then again with changes. Raises SolverFailed if HiGHS finds no optimum.

    If HiGHS's interior point or presolve ends without an optimum, the simplex method solves the whole model.
    """

    def __init__(self, problem: AllocationProblem, solver: Solver, effort: HighsEffort, model: Model) -> None:
        self._problem = problem
        self._model = model
        self._interior_columns = effort.interior_columns
        self.row_ray: Floats | None = (
            None  # multipliers of the rows with which HiGHS proves that the model is infeasible
        )
        self._highs = solver.highs()
        self._highs.resetOptions()
        for name, value in {**_RUN, **effort.options}.items():
            self._highs.setOptionValue(name, value)

    def solve(self, cost: Floats, row_upper: Floats) -> Optimum:
        """The columns of least cost, without a starting basis: warm state must not change answers."""
        import highspy

        m = self._model
        bounds = m.column_lower, np.full(m.column_count, np.inf)
        self._highs.setOptionValue("simplex_strategy", _DUAL_SIMPLEX)
        self._highs.clearSolver()
        self._highs.passModel(highs_program((m.start, m.row, m.value), cost, bounds, (m.row_lower, row_upper)))
        self._highs.setOptionValue("solver", "ipm" if m.column_count > self._interior_columns else "simplex")
        self._highs.run()
        self._highs.setOptionValue("solver", "simplex")  # later runs start from a basis
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
        """The optimum of the model with these columns appended, from the last basis."""
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

    def shrink(self, found: Optimum, stays: Bools) -> Optimum:
        """`found`, an optimum, without some columns that are zero and not in the basis; the basis remains."""
        m, gone = self._model, np.flatnonzero(~stays).astype(np.int32)
        self._highs.deleteCols(len(gone), gone)
        counts = np.diff(m.start)
        in_use = np.repeat(stays, counts)
        self._model = replace(
            m,
            start=np.concatenate([[0], np.cumsum(counts[stays])]).astype(np.int32),
            row=m.row[in_use],
            value=m.value[in_use],
            column_lower=m.column_lower[stays],
        )
        return replace(found, column=found.column[stays], column_dual=found.column_dual[stays])

    def on_face(self, first: Optimum, cost: Floats) -> Optimum:
        """The columns of least `cost` among the optima of the model that has `first`'s duals.

        By complementary slackness these are the points whose columns with a reduced cost are at their bound and whose
        rows with a dual are tight. The first objective stays optimal.
        """
        m, columns = self._model, np.arange(self._model.column_count, dtype=np.int32)
        rows = np.arange(len(m.row_lower), dtype=np.int32)
        lower = np.where(first.row_dual < -PRICED, m.row_upper, m.row_lower)
        upper = np.where(first.row_dual > PRICED, m.row_lower, m.row_upper)
        self._highs.setOptionValue("simplex_strategy", _PRIMAL_SIMPLEX)
        self._highs.changeColsCost(len(columns), columns, cost)
        free = np.where(first.column_dual > PRICED, m.column_lower, np.inf)
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

        A step of iterative refinement: the same model for the residuals, enlarged a million times, from the same basis.
        Returns `found` itself if HiGHS finds no optimum of that model. Source: Gleixner, Steffy and Wolter, Iterative
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
        both = Optimum(column, more.column_dual / _ENLARGED, row_dual)
        tried = (found, both, replace(both, column=found.column), replace(found, column=column))
        # HiGHS may lose its way where the residuals are rounding, so more digits count only if they are right.
        return min(tried, key=lambda optimum: m.error(optimum, cost, row_lower, row_upper))

    def _set(self, cost: Floats, column_lower: Floats, row_lower: Floats, row_upper: Floats) -> None:
        columns, rows = np.arange(len(cost), dtype=np.int32), np.arange(len(row_lower), dtype=np.int32)
        self._highs.changeColsCost(len(cost), columns, cost)
        self._highs.changeColsBounds(len(cost), columns, column_lower, np.full(len(cost), np.inf))
        self._highs.changeRowsBounds(len(rows), rows, row_lower, row_upper)

    def above(self, cost: Floats, column: int, least: float) -> Optimum:
        """The columns of least `cost` of the same model with `column` at `least` or more, without a starting basis."""
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
        self._has_ray()  # also with status "Unknown": HiGHS's own check of the ray has failed
        if status == highspy.HighsModelStatus.kInfeasible:
            raise self._infeasible()
        raise failed(self._problem, self._highs.modelStatusToString(status), "HiGHS")

    def _is_optimal(self) -> bool:
        """Whether HiGHS has an optimum. Some have the status unknown although they are feasible to tolerance."""
        import highspy

        status, info = self._highs.getModelStatus(), self._highs.getInfo()
        if status == highspy.HighsModelStatus.kUnknown:
            return bool(0 <= max(info.max_primal_infeasibility, info.max_dual_infeasibility) <= _TOLERANCE)
        return bool(status == highspy.HighsModelStatus.kOptimal)

    def _has_ray(self) -> bool:
        """Whether HiGHS has a ray that may prove the model infeasible; stored for the caller's check."""
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
