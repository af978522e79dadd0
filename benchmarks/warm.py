"""HiGHS's simplex method, restarted from its last basis when a job arrives or leaves: the peer of our warm path."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

from benchmarks.engines import Highs, Rows
from benchmarks.peers import Warm
from gavelpy.model.arrays import Floats, Ints
from gavelpy.model.problem import AllocationProblem


class WarmHighs:
    """One model over a pool of jobs, some of them closed.

    A closed job has its columns fixed at zero and, in a level program, a free row: no row or column is ever added or
    removed and the basis stays valid, which is the least work for HiGHS.
    """

    def __init__(self, pool: AllocationProblem, warm: Warm, present: Ints, time_limit_s: float) -> None:
        assert pool.runs_alone, "a job's columns are its own"
        self._engine = Highs(time_limit_s)
        self._rows = rows = Rows.of(pool)
        self._is_level = warm.is_level
        J, E, T = pool.job_count, len(rows.entry_type), len(pool.gpu_types)
        self._is_open = np.ones(J, dtype=np.bool_)
        figures = warm.figures(pool, rows)
        shared = sp.vstack([rows.time, rows.load])
        if warm.is_level:
            leveled = rows.leveled(1.0 / figures)
            self._unit = leveled.unit
            stacked = sp.block_array([[leveled.rate, -sp.csr_array(leveled.part[:, None])], [shared, None]])
            cost, lower = np.append(np.zeros(E), -1.0), np.append(np.zeros(E), -np.inf)
            row_lower = np.concatenate([np.zeros(J), np.full(J + T, -np.inf)])
            row_upper = np.concatenate([np.full(J, np.inf), np.ones(J + T)])
        else:
            self._unit = float(figures.max())
            stacked, cost, lower = shared, -figures / self._unit, np.zeros(E)
            row_lower, row_upper = np.full(J + T, -np.inf), np.ones(J + T)
        self._cost = cost
        self._entries = np.arange(E, dtype=np.int32)
        self._pass(stacked, lower, row_lower, row_upper, present)

    def best(self, present: Ints) -> float:
        """The objective with these rows of the pool present."""
        self._open(present)
        x, _ = self._engine.rerun()
        return -float(self._cost @ x) * self._unit

    def _pass(self, matrix: sp.sparray, lower: Floats, row_lower: Floats, row_upper: Floats, present: Ints) -> None:
        self._engine.solve(matrix, self._cost, lower, row_lower, row_upper)
        self._engine.highs.setOptionValue("solver", "simplex")
        self.best(present)

    def _open(self, present: Ints) -> None:
        is_open = np.zeros(len(self._is_open), dtype=np.bool_)
        is_open[present] = True
        changed = is_open != self._is_open
        columns = self._entries[changed[self._rows.entry_configuration]]
        upper = np.where(is_open[self._rows.entry_configuration[columns]], np.inf, 0.0)
        self._engine.highs.changeColsBounds(len(columns), columns, np.zeros(len(columns)), upper)
        if self._is_level:
            jobs = np.flatnonzero(changed).astype(np.int32)
            row_lower = np.where(is_open[jobs], 0.0, -np.inf)
            self._engine.highs.changeRowsBounds(len(jobs), jobs, row_lower, np.full(len(jobs), np.inf))
        self._is_open = is_open
