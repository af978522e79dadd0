"""The peers' solvers, as their careful users would call them: cvxpy (ECOS, Clarabel) on sparse rows, HiGHS on arrays.

All take the same two linear programs over the shares x >= 0 of entries (a configuration on a GPU type):

    level   maximise t     with  r_j(x) >= base_j + t speed_j
    total   maximise Σ_e gain_e x_e     with  r_j(x) >= floor_j

and time budgets and capacities. Rows are scaled (capacities to 1, rates by speed or best rate), which helps all of
them. Of several ways to write this in cvxpy, this one, a few sparse matrices and no atoms, was the fastest.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import scipy.sparse as sp

from gavelpy.model.arrays import Floats, Ints
from gavelpy.model.problem import AllocationProblem


class PeerFailed(Exception):
    """A peer found no optimum; the message is its status."""


@dataclass(frozen=True, eq=False)
class Rows:
    """The common part of the peers' programs: E entries, rows by job and by type."""

    problem: AllocationProblem
    entry_configuration: Ints  # (E,)
    entry_type: Ints  # (E,)
    rate: Any  # (J, E) sparse, steps/s at share 1
    time: Any  # (J, E) sparse, ones
    load: Any  # (T, E) sparse, fraction of the type's GPUs at share 1

    @classmethod
    def of(cls, problem: AllocationProblem) -> Rows:
        """The rows of a problem; entries are the feasible (configuration, type) pairs."""
        index = np.full(problem.fits.shape, -1)
        configuration, gpu_type = np.nonzero(problem.fits)
        E, J, T = len(configuration), problem.job_count, len(problem.gpu_types)
        index[configuration, gpu_type] = np.arange(E)
        member, member_type = np.nonzero(problem.fits[problem.member_configuration])
        entry, job = index[problem.member_configuration[member], member_type], problem.member_job[member]
        rate = problem.member_rate_steps_per_s[member, member_type]
        load = problem.gpus_occupied[configuration] / problem.gpu_counts[gpu_type]
        return cls(
            problem,
            configuration,
            gpu_type,
            sp.csr_array((rate, (job, entry)), shape=(J, E)),
            sp.csr_array((np.ones(len(entry)), (job, entry)), shape=(J, E)),
            sp.csr_array((load, (gpu_type, np.arange(E))), shape=(T, E)),
        )

    def shares(self, x: Floats) -> Floats:
        """Shares (C, T) from those of the entries, (E,)."""
        share = np.zeros(self.problem.fits.shape)
        share[self.entry_configuration, self.entry_type] = x
        return share

    def best(self) -> Floats:
        """Best rate of each job, (J,)."""
        return np.asarray(self.rate.max(axis=1).toarray()).ravel()

    def floored(self) -> tuple[Any, Floats]:
        """The rows of rates in units of the best rate, (J, E), and their factor, (J,)."""
        factor = 1.0 / self.best()
        return sp.diags_array(factor) @ self.rate, factor

    def leveled(self, speed: Floats) -> Leveled:
        """The rows of a level program, in a unit that the median job reaches at its best rate."""
        rises, best = speed > 0, self.best()
        unit = float(np.median(best[rises] / speed[rises]))
        factor = 1.0 / np.where(rises, speed * unit, best)
        return Leveled(sp.diags_array(factor) @ self.rate, factor, rises.astype(np.float64), unit)


@dataclass(frozen=True, eq=False)
class Leveled:
    """Rows  rate @ x - part t >= factor base, where t is the level in `unit`s."""

    rate: Any  # (J, E) sparse
    factor: Floats  # (J,)
    part: Floats  # (J,) 0 or 1
    unit: float


class Engine(Protocol):
    """A peer that solves linear programs."""

    name: str
    solver_s: float  # seconds inside the solver itself since it was created, as it reports them

    def level(self, rows: Rows, base: Floats, speed: Floats) -> tuple[Floats, float, Floats]:
        """Shares of the entries (E,), the level, and the dual of each job's row, (J,): they sum to 1 over speed > 0."""
        ...

    def total(self, rows: Rows, gain: Floats, floor: Floats) -> Floats:
        """Shares of the entries (E,)."""
        ...


class Cvxpy:
    """A peer that builds and solves a model from scratch for each program, as in the original."""

    def __init__(self, solver: str, time_limit_s: float) -> None:
        self.name = solver.lower()
        self.solver_s = 0.0
        self._solver = solver
        self._options = {"time_limit": time_limit_s} if solver == "CLARABEL" else {}

    def level(self, rows: Rows, base: Floats, speed: Floats) -> tuple[Floats, float, Floats]:
        """See Engine."""
        import cvxpy as cp

        leveled = rows.leveled(speed)
        x, t = cp.Variable(len(rows.entry_type), nonneg=True), cp.Variable()
        rated = leveled.rate @ x - leveled.part * t >= leveled.factor * base
        self.solve(cp.Maximize(t), [rated, *_shared(rows, x)])
        return np.asarray(x.value), float(t.value) * leveled.unit, np.asarray(rated.dual_value)

    def total(self, rows: Rows, gain: Floats, floor: Floats) -> Floats:
        """See Engine."""
        import cvxpy as cp

        x = cp.Variable(len(rows.entry_type), nonneg=True)
        limits = _shared(rows, x)
        if floor.any():
            matrix, factor = rows.floored()
            floored = floor > 0
            limits.append(matrix[floored] @ x >= (factor * floor)[floored])
        self.solve(cp.Maximize((gain / gain.max()) @ x), limits)
        return np.asarray(x.value)

    def finish_time(self, rows: Rows, steps: Floats, age_s: Floats, fair_s: Floats) -> Floats:
        """Shares (E,) that minimise  max_j (age_j + steps_j / r_j(x)) / fair_j."""
        import cvxpy as cp

        best = rows.best()
        x = cp.Variable(len(rows.entry_type), nonneg=True)
        matrix, _ = rows.floored()
        ratio = age_s / fair_s + cp.multiply(steps / best / fair_s, cp.inv_pos(matrix @ x))
        self.solve(cp.Minimize(cp.max(ratio)), _shared(rows, x))
        return np.asarray(x.value)

    def sum_log(self, rows: Rows, weight: Floats) -> Floats:
        """Shares (E,) that maximise  Σ_j weight_j log r_j(x)  over the jobs with a weight; the others get nothing."""
        import cvxpy as cp

        x = cp.Variable(len(rows.entry_type), nonneg=True)
        matrix, _ = rows.floored()
        weighted = weight > 0
        away = np.flatnonzero(rows.time[~weighted].sum(axis=0))
        limits = [*_shared(rows, x), *([x[away] == 0] if len(away) else [])]
        self.solve(cp.Maximize(weight[weighted] @ cp.log(matrix[weighted] @ x)), limits)
        return np.asarray(x.value)

    def solve(self, objective: Any, limits: list[Any]) -> None:  # cvxpy has no types
        """Solves, and adds the solver's own time. An optimum that the solver reports as inaccurate counts."""
        import cvxpy as cp

        problem = cp.Problem(objective, limits)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # "solution may be inaccurate": we compare objectives anyway
                problem.solve(solver=self._solver, **self._options)
        except cp.error.SolverError as error:
            raise PeerFailed(f"{self.name}: {error}") from error
        if problem.status not in (cp.OPTIMAL, cp.OPTIMAL_INACCURATE):
            raise PeerFailed(f"{self.name}: {problem.status}")
        self.solver_s += problem.solver_stats.solve_time or 0.0


class Highs:
    """HiGHS itself, with its defaults, on arrays."""

    def __init__(self, time_limit_s: float) -> None:
        import highspy

        self.name = "highs"
        self.solver_s = 0.0
        self.highs = highspy.Highs()
        self.highs.setOptionValue("output_flag", False)
        self.highs.setOptionValue("time_limit", time_limit_s)

    def level(self, rows: Rows, base: Floats, speed: Floats) -> tuple[Floats, float, Floats]:
        """See Engine."""
        leveled = rows.leveled(speed)
        J, E, T = len(base), len(rows.entry_type), len(rows.problem.gpu_types)
        shared = sp.vstack([rows.time, rows.load])
        stacked = sp.block_array([[leveled.rate, -sp.csr_array(leveled.part[:, None])], [shared, None]])
        cost = np.append(np.zeros(E), -1.0)
        lower = np.append(np.zeros(E), -np.inf)
        row_lower = np.concatenate([leveled.factor * base, np.full(J + T, -np.inf)])
        row_upper = np.concatenate([np.full(J, np.inf), np.ones(J + T)])
        x, dual = self.solve(stacked, cost, lower, row_lower, row_upper)
        return x[:E], float(x[E]) * leveled.unit, dual[:J]

    def total(self, rows: Rows, gain: Floats, floor: Floats) -> Floats:
        """See Engine."""
        J, E, T = len(floor), len(rows.entry_type), len(rows.problem.gpu_types)
        matrix, factor = rows.floored()
        floored = floor > 0
        count = int(floored.sum())
        stacked = sp.vstack([matrix[floored], rows.time, rows.load])
        row_lower = np.concatenate([(factor * floor)[floored], np.full(J + T, -np.inf)])
        row_upper = np.concatenate([np.full(count, np.inf), np.ones(J + T)])
        return self.solve(stacked, -gain / gain.max(), np.zeros(E), row_lower, row_upper)[0]

    def solve(
        self, matrix: Any, cost: Floats, lower: Floats, row_lower: Floats, row_upper: Floats
    ) -> tuple[Floats, Floats]:
        """Columns and row duals of a new model; columns have no upper bound."""
        import highspy

        columns = sp.csc_array(matrix)
        lp = highspy.HighsLp()
        lp.num_row_, lp.num_col_ = columns.shape
        lp.col_cost_, lp.col_lower_, lp.col_upper_ = cost, lower, np.full(len(cost), highspy.kHighsInf)
        lp.row_lower_, lp.row_upper_ = row_lower, row_upper
        lp.a_matrix_.format_ = highspy.MatrixFormat.kColwise
        lp.a_matrix_.start_, lp.a_matrix_.index_ = columns.indptr.astype(np.int32), columns.indices.astype(np.int32)
        lp.a_matrix_.value_ = columns.data
        self.highs.clearSolver()
        self.highs.passModel(lp)
        return self.rerun()

    def rerun(self) -> tuple[Floats, Floats]:
        """Columns and row duals of the current model, solved from the current basis."""
        import highspy

        before_s = self.highs.getRunTime()
        self.highs.run()
        self.solver_s += self.highs.getRunTime() - before_s
        status = self.highs.getModelStatus()
        if status != highspy.HighsModelStatus.kOptimal:
            raise PeerFailed(f"{self.name}: {self.highs.modelStatusToString(status)}")
        solution = self.highs.getSolution()
        return np.array(solution.col_value), np.array(solution.row_dual)


def _shared(rows: Rows, x: Any) -> list[Any]:  # cvxpy has no types
    return [rows.time @ x <= 1, rows.load @ x <= 1]
