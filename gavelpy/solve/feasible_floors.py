"""The largest set of rate floors that is feasible together.

Floor f_j of a job is kept in part z_j in 0..1:  maximise Σ z_j  subject to  r_j(x) >= f_j z_j  and the constraints that
all objectives share, z whole. Apart from rows of single jobs there is only one row per GPU type, so at a vertex of the
relaxed LP at most as many z are fractional as there are types (for jobs that run alone): branch and bound needs few
nodes, and rounding down loses little.

    all at once        first: one LP, which is the answer if all floors are feasible
    up to MILP_JOBS    branch and bound by HiGHS; a second run chooses, among the sets of that size, one whose jobs have
                       the least sum of positions in the queue
    more               the relaxed LP, rounded down; `most` bounds the loss

HiGHS accepts a floor that is missed by a millionth. So a set counts only if the LP with its floors is certified by our
own arithmetic; a set that fails is cut off and the search repeated.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from gavelpy.errors import SolverFailed
from gavelpy.model.allocation import Allocation
from gavelpy.model.arrays import Bools, Floats, Ints
from gavelpy.model.problem import AllocationProblem
from gavelpy.solve.certificate import failed
from gavelpy.solve.ladder import solve
from gavelpy.solve.objective import MaxSum
from gavelpy.solve.program import Program, program_of
from gavelpy.solve.small_programs import BoxedModel, solve_whole
from gavelpy.solve.solver import Solver

if TYPE_CHECKING:
    from scipy.sparse import csr_array

KEPT = 1 - 1e-9  # fraction of a floor that is required, within what certificates allow
MILP_JOBS = 1000  # floors; above, branch and bound may take minutes
NODES_MAX = 10_000  # a count, not a time, so that the same problem has the same answer
CUTS_MAX = 20  # sets that are cut off because they fail narrowly; then the last set is reduced
_LEAST_FLOOR = 1e-6  # of the best rate; smaller floors are scaled no further
_WHOLE = 1e-6  # HiGHS's tolerance for whole numbers


@dataclass(frozen=True, eq=False)
class FeasibleFloors:
    """A largest feasible set of floors, and the best shares that satisfy it."""

    allocation: Allocation
    kept: Bools  # (J,)
    most: int  # upper bound on the size of any feasible set


def max_feasible_floors(
    problem: AllocationProblem, objective: MaxSum, floor_steps_per_s: Floats, solver: Solver | None = None
) -> FeasibleFloors:
    """The best shares for `objective` that satisfy as many floors (J,) as possible; 0 = no floor.

    Among sets of equal size: the least sum of positions in the queue (row order), up to MILP_JOBS floors.
    """

    def attempt(kept: Bools) -> Allocation | None:
        floors = np.where(kept, floor_steps_per_s * KEPT, 0.0)
        try:
            return solve(problem, replace(objective, rate_floor_steps_per_s=floors), solver)
        except SolverFailed:
            if not kept.any():
                raise
            return None

    has_floor = (floor_steps_per_s > 0) & problem.can_run
    allocation = attempt(has_floor)
    if allocation is not None:
        return FeasibleFloors(allocation, has_floor, int(has_floor.sum()))
    search = _Search(problem, floor_steps_per_s, has_floor)
    kept, most = search.largest()
    for _ in range(CUTS_MAX):
        allocation = attempt(kept)
        if allocation is not None:
            return FeasibleFloors(allocation, kept, most)
        search.cut_off(kept)
        kept, most = search.largest()
    return _reduced(kept, most, attempt)


def _reduced(kept: Bools, most: int, attempt: Callable[[Bools], Allocation | None]) -> FeasibleFloors:
    """The set without its last jobs, as many as necessary; the empty set is always feasible."""
    kept = kept.copy()
    while (allocation := attempt(kept)) is None:
        kept[np.flatnonzero(kept)[-1]] = False
    return FeasibleFloors(allocation, kept, most)


class _Search:
    """The MILP: columns are the entries of the program, then z of each job with a floor."""

    def __init__(self, problem: AllocationProblem, floor_steps_per_s: Floats, has_floor: Bools) -> None:
        self._problem = problem
        self._floored = np.flatnonzero(has_floor)
        program = program_of(problem, np.ones(problem.job_count), floor_steps_per_s, aggregate=False)
        self._entries = len(program.entry_type)
        self._rows, self._limits = _rows(program, self._floored)
        self._cuts: list[Ints] = []  # columns of z of sets that proved infeasible

    def cut_off(self, kept: Bools) -> None:
        """Excludes this set: at least one of its floors must be given up."""
        self._cuts.append(self._entries + np.flatnonzero(kept[self._floored]))

    def largest(self) -> tuple[Bools, int]:
        """A set of floors, (J,), and an upper bound on the size."""
        none, count = np.zeros(self._entries), len(self._floored)
        if count > MILP_JOBS:
            parts, best = self._least(np.append(none, np.full(count, -1.0)), whole=False)
            return self._set_of(parts), int(np.floor(-best + _WHOLE))
        parts, best = self._least(np.append(none, np.full(count, -1.0)), whole=True)
        most = int(np.floor(-best + _WHOLE))
        size = int(self._set_of(parts).sum())
        earliest, _ = self._least(np.append(none, np.arange(1.0, count + 1.0)), whole=True, size=size)
        return self._set_of(earliest if len(earliest) else parts), most

    def _set_of(self, parts: Floats) -> Bools:
        kept = np.zeros(self._problem.job_count, dtype=np.bool_)
        kept[self._floored[parts >= 1 - _WHOLE]] = True
        return kept

    def _least(self, cost: Floats, *, whole: bool, size: int = 0) -> tuple[Floats, float]:
        """z of the least cost with at least `size` floors (empty: none within the nodes), and a bound on that cost."""
        from scipy.sparse import csc_array, csr_array, vstack

        is_kept = np.arange(len(cost)) >= self._entries
        rows, lower, upper = [self._rows], [np.full(len(self._limits), -np.inf)], [self._limits]
        if size:
            rows.append(csr_array(is_kept[None, :].astype(np.float64)))
            lower.append(np.array([float(size)]))
            upper.append(np.array([np.inf]))
        for columns in self._cuts:
            row = np.zeros((1, len(cost)))
            row[0, columns] = 1.0
            rows.append(csr_array(row))
            lower.append(np.array([-np.inf]))
            upper.append(np.array([len(columns) - 1.0]))
        matrix = csc_array(vstack(rows))
        model = BoxedModel(
            start=matrix.indptr.astype(np.int32),
            row=matrix.indices.astype(np.int32),
            value=matrix.data,
            row_lower=np.concatenate(lower),
            row_upper=np.concatenate(upper),
            cost=cost,
            lower=np.zeros(len(cost)),
            upper=np.ones(len(cost)),
        )
        found = solve_whole(model, is_kept & whole, NODES_MAX)
        if not len(found.column) and not size:  # the empty set is a solution, so HiGHS has one at the start
            raise failed(self._problem, "no set of floors", found.status)
        return found.column[self._entries :], found.bound


def _rows(program: Program, floored_jobs: Ints) -> tuple[csr_array, Floats]:
    """Rows (time of jobs, GPUs of types, floors) over entries and z, and their upper bounds."""
    from scipy.sparse import csr_array

    R, T, E = len(program.jobs), len(program.problem.row_capacity), len(program.entry_type)
    load_row, load_entry, load = program.loads()
    floored_class = np.searchsorted(program.jobs, floored_jobs)
    place = np.full(R, -1)
    place[floored_class] = np.arange(len(floored_jobs))
    unit = np.maximum(program.floor, _LEAST_FLOOR)
    floored = (place[program.member_class] >= 0) & (program.member_rate > 0)
    member = program.member_class[floored]
    row = np.concatenate(
        [program.member_class, R + load_row, R + T + place[member], R + T + np.arange(len(floored_jobs))]
    )
    column = np.concatenate(
        [program.member_entry, load_entry, program.member_entry[floored], E + np.arange(len(floored_jobs))]
    )
    value = np.concatenate(
        [
            np.ones(len(program.member_class)),
            load,
            -program.member_rate[floored] / unit[member],
            program.floor[floored_class] / unit[floored_class],
        ]
    )
    matrix = csr_array((value, (row, column)), shape=(R + T + len(floored_jobs), E + len(floored_jobs)))
    return matrix, np.concatenate([np.ones(R + T), np.zeros(len(floored_jobs))])
