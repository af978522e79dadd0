"""Linear objectives over very many entries by column generation: the model grows until no entry would improve it.

Of the n²/2 pairs of n jobs an optimum uses about n. So HiGHS gets the jobs alone and a few pairs each; the duals of its
optimum price all other entries at once, the best few of each job are added, and HiGHS continues from the last basis. An
entry that gains nothing at the end gains nothing at all: the optimum is that of all entries, and the certificate, which
checks each of them, confirms it. So nothing is lost by pairs that are never added. Among them, as soon as its members
alone are priced, is every pair whose rates add up to at most 1 relative to its members alone: the same time on the
GPUs, divided between its members in these proportions, gives them the same.

A step of HiGHS takes as long as it has columns. So the model of a sum returns entries that would lose more than LOSES
to the pool. An entry returns only once, so this ends.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from gavelpy.errors import SolverFailed
from gavelpy.model.arrays import Bools, Floats, Ints
from gavelpy.solve import linear
from gavelpy.solve.certificate import MARGIN, Candidate, FloorsRefused
from gavelpy.solve.packing.column_pool import Pool, ProgramDuals, guessed
from gavelpy.solve.program import Program
from gavelpy.solve.solver import PRICED, HighsEffort, Model, Optimum, Run, Solver

GAINS = 1e-9  # least gain of an entry that is added; duals are about 1, and right to 1e-10
LOSES = 3e-3  # reduced cost above which an entry leaves the model of a sum, relative to the highest gain
AT_ONCE_FOR_LEVEL, AT_ONCE_FOR_SUM = 2, 1  # entries that are added for each class of jobs: few need more runs, and
FEWEST_REMOVED = 50  # entries: the removal of fewer does not pay


def max_min(program: Program, solver: Solver, effort: HighsEffort) -> Candidate:
    """As linear.max_min. Raises SolverFailed if HiGHS finds no optimum."""
    level = program.even_level
    answer = _max_min_near(program, solver, effort, level)
    if abs(answer.level) > linear.RESCALE_ABOVE * level:
        answer = _max_min_near(program, solver, effort, abs(answer.level))
    return answer


def max_sum(program: Program, solver: Solver, effort: HighsEffort) -> Candidate:
    """As linear.max_sum. Raises SolverFailed if HiGHS finds no optimum."""
    no_class = np.zeros(0, dtype=np.int64)
    levels = _Levels(no_class, weight=np.zeros(0), base=np.zeros(0), least=0.0)
    growing, first, row_dual = _optimum(program, levels, solver, effort)
    final = growing.on_face(first)
    duals = linear.duals_of(program, row_dual, no_class, program.floor > 0, unit=growing.unit)
    return Candidate(growing.shares(final), duals, level=0.0)


def _max_min_near(program: Program, solver: Solver, effort: HighsEffort, level: float) -> Candidate:
    leveled = np.flatnonzero(program.value > 0)
    least = -float((program.value * program.base).max()) / level  # if no job runs
    levels = _Levels(leveled, level / program.value[leveled], program.base[leveled], least)
    growing, first, row_dual = _optimum(program, levels, solver, effort)
    final = growing.on_face(first)
    duals = linear.duals_of(program, row_dual, leveled, program.floor > 0, unit=1.0)
    return Candidate(growing.shares(final), duals, float(final.column[growing.level_column]) * level)


def _optimum(
    program: Program, levels: _Levels, solver: Solver, effort: HighsEffort
) -> tuple[_Growing, Optimum, Floats]:
    """An optimum, and the rows' duals with a trace more GPUs.

    The floors may need entries that are not in the model at first: then the least fraction of a floor is the level.
    Raises FloorsRefused if that is below 1: its duals are a ray.
    """
    pool = Pool(program)
    start = program.only(*pool.first(guessed(program, pool) if len(levels.classes) else None))
    growing = _Growing(program, pool, start, levels, solver, effort)
    try:
        return growing, *growing.optimum()
    except SolverFailed as failure:
        if failure.status != "infeasible":
            raise
    floored = np.flatnonzero(program.floor > 0)
    promised = _Levels(floored, program.floor[floored], np.zeros(len(floored)), least=0.0)
    without = replace(program, floor=np.zeros_like(program.floor))
    kept = _Growing(without, pool, start, promised, solver, effort)
    most, row_dual = kept.optimum()
    if most.column[kept.level_column] < 1.0 - MARGIN:
        duals = linear.duals_of(program, row_dual, floored, without.floor > 0, unit=1.0)
        raise FloorsRefused(program.problem, "infeasible", replace(duals, level=duals.floor, floor=duals.level))
    growing = _Growing(program, pool, kept.entries, levels, solver, effort)
    return growing, *growing.optimum()


@dataclass(frozen=True, eq=False)
class _Levels:
    """Classes whose rates are `base` + `weight` x level, or more."""

    classes: Ints  # (L,)
    weight: Floats  # (L,)
    base: Floats  # (L,)
    least: float  # lower bound of the level


class _Growing:
    """A model of some entries, with the level (if any) after the first ones; all others are in a pool."""

    def __init__(
        self, program: Program, pool: Pool, start: Program, levels: _Levels, solver: Solver, effort: HighsEffort
    ) -> None:
        self._program, self._pool, self._levels = program, pool, levels
        self._floored = np.flatnonzero(program.floor > 0)
        self._group, self._type = start.entry_group, start.entry_type
        self.level_column = len(start.entry_type)
        self.unit = pool.gain_max or 1.0
        self._summed = not self._leveled  # whether the sum of values is the objective; else it is for ties
        model = self._first_model(start)
        self._row_upper = model.row_upper
        self._first_cost = self._cost(start)
        self._run = Run(program.problem, solver, effort, model)

    @property
    def entries(self) -> Program:
        """The program of the entries in use, in order of their columns."""
        return self._program.only(self._group, self._type)

    def optimum(self) -> tuple[Optimum, Floats]:
        """An optimum among all entries, and the rows' duals with a trace more GPUs (see linear.py)."""
        more = self._row_upper.copy()
        more[-len(self._program.problem.row_capacity) :] += linear.TRACE
        cost = self._first_cost
        if self._leveled:
            cost = np.append(cost, -float(self._leveled))  # so that the duals of the levels are about 1
        first = self._grown(self._run.solve(cost, more))
        row_dual = first.row_dual
        if len(self._floored):  # they may need the very last GPU
            first = self._grown(self._run.again(self._row_upper))
        return first, row_dual

    def on_face(self, first: Optimum) -> Optimum:
        """The optimum with the greatest sum of values; adds entries that no optimum needs but some use."""
        self._pool.keep(self._duals(first), -GAINS)
        away = self._of_entries(first.column_dual > PRICED)
        first = self._without(first, away)
        cost = -self._values(self.entries)
        final = self._run.on_face(first, np.insert(cost, self.level_column, 0.0) if self._leveled else cost)
        self._summed = True
        return self._grown(final)

    def shares(self, optimum: Optimum) -> Floats:
        """Shares (C, T) of the problem."""
        column = np.delete(optimum.column, self.level_column) if self._leveled else optimum.column
        return self.entries.shares(column)

    @property
    def _leveled(self) -> int:
        """Number of classes with the level; 0 = the objective is the sum of values."""
        return len(self._levels.classes)

    def _first_model(self, start: Program) -> Model:
        rated = np.concatenate([self._levels.classes, self._floored])
        lower = np.concatenate([self._levels.base, self._program.floor[self._floored]])
        model = linear.model_of(start, rated, lower, self._levels.weight)
        if self._leveled:
            model.column_lower[self.level_column] = self._levels.least
        return model

    def _grown(self, optimum: Optimum) -> Optimum:
        """The optimum after adding entries until no unused one would gain."""
        count = AT_ONCE_FOR_SUM if self._summed else AT_ONCE_FOR_LEVEL
        while True:
            group, gpu_type = self._pool.improving(self._duals(optimum), count, GAINS)
            if not len(group):
                return optimum
            if self._summed:
                self._reduced(optimum)
            optimum = self._with(group, gpu_type)

    def _reduced(self, optimum: Optimum) -> None:
        """Returns the entries that would lose most to the pool."""
        loses = self._of_entries(optimum.column_dual > LOSES)
        if np.count_nonzero(loses) >= FEWEST_REMOVED:
            loses[loses] = self._pool.returned(self._group[loses], self._type[loses])
            self._without(optimum, loses)

    def _of_entries(self, columns: Bools) -> Bools:
        entries: Bools = np.delete(columns, self.level_column) if self._leveled else columns.copy()
        return entries

    def _without(self, optimum: Optimum, entries: Bools) -> Optimum:
        """The optimum of the model without these entries, which are zero and not in the basis."""
        if not entries.any():
            return optimum
        columns = np.insert(entries, self.level_column, False) if self._leveled else entries
        self.level_column -= int(np.count_nonzero(entries[: self.level_column]))
        self._group, self._type = self._group[~entries], self._type[~entries]
        return self._run.shrink(optimum, ~columns)

    def _with(self, group: Ints, gpu_type: Ints) -> Optimum:
        piece = self._program.only(group, gpu_type)
        self._group, self._type = np.append(self._group, group), np.append(self._type, gpu_type)
        start, row, value = linear.matrix_of(piece, self._levels.classes, self._floored)
        none: Floats = np.zeros(0)
        columns = Model(
            start.astype(np.int32), row.astype(np.int32), value, np.zeros(len(group)), row_lower=none, row_upper=none
        )
        return self._run.grow(columns, self._cost(piece))

    def _cost(self, piece: Program) -> Floats:
        return -self._values(piece) if self._summed else np.zeros(len(piece.entry_type))

    def _values(self, piece: Program) -> Floats:
        return linear.entry_values(piece) * self._program.type_worth[piece.entry_type] / self.unit

    def _duals(self, optimum: Optimum) -> ProgramDuals:
        K, T, L = len(self._program.value), len(self._program.problem.row_capacity), self._leveled
        rate = np.zeros(K)
        rate[self._levels.classes] = optimum.row_dual[:L]
        rate[self._floored] += optimum.row_dual[L : L + len(self._floored)]
        time, capacity = -optimum.row_dual[-K - T : -T], -optimum.row_dual[-T:]
        return ProgramDuals(rate, time, capacity, per_gain=1.0 / self.unit if self._summed else 0.0)
