"""Plans of jobs over a window of rounds: how many rounds each gets on which GPU type, and then which.

    maximise    Σ_j p_j log(u_j) / (J N)  -  k max_j (R_j - q_j)
    such that   q_j <= Σ_t n_jt h v_jt,   Σ_t n_jt <= N                      for each job j
                Σ_j g_j n_jt <= N W_t                                       for each GPU type t
                q_j >= least_j                                              for each job j
                n_jt whole

    n_jt        rounds of the window that job j runs on type t;  N rounds of h seconds, J jobs
    v_jt        its speed there, relative to its fastest type
    u_j         the part of its steps done at the end of the window, at the speed that makes all steps in D_j seconds:
                done_j + q_j / D_j, at most 1. The logarithm is replaced by its chords between `BASES`
    R_j         its remaining time;  p_j its priority;  W_t GPUs of type t, g_j of job j

Rounds of a window are alike, so that the numbers of rounds suffice, in place of one variable for each job and round.
Numbers may have no schedule, because a gang needs its GPUs at the same time; `rounds_of` places as many as it can. So
the value of a plan is that of what is placed, and the bound is that of the numbers. Chords of a concave function need
no binary variables, either.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gavelpy.model.arrays import Floats, Ints
from gavelpy.solve.integer_program import IntegerProgram, best_integers

BASES = np.array([0.0, 0.2, 0.4, 0.6, 0.8, 1.0])
ORIGIN = 1e-6  # in place of 0 in the logarithm
NODES_MIN, NODES_MAX, GAP = 10, 200, 1e-3
NODES_OF_PLACES = 24_000  # nodes times places: a node with many places takes long
_LOGARITHMS = np.log(np.maximum(BASES, ORIGIN))
_SLOPES = np.diff(_LOGARITHMS) / np.diff(BASES)
_FAR = 1e-6  # of a round


@dataclass(frozen=True, eq=False)
class WindowProblem:
    """J jobs and their K places (a job on a GPU type); times are in rounds, from now on."""

    rounds: int  # N
    job: Ints  # (K,)
    gpu_type: Ints  # (K,)
    speed: Floats  # (K,) v
    gpus: Floats  # (J,) g
    counts: Floats  # (T,) W
    done: Floats  # (J,)
    whole: Floats  # (J,) D
    remaining: Floats  # (J,) R
    priority: Floats  # (J,) p
    least: Floats  # (J,)
    longest_weight: float  # k, per round

    def utility(self, progress: Floats) -> Floats:
        """The logarithm of the part done after so many rounds of progress, by its chords, (J,)."""
        return np.asarray(np.interp(np.minimum(self.done + progress / self.whole, 1.0), BASES, _LOGARITHMS))

    def value(self, progress: Floats) -> float:
        """The objective for q, (J,)."""
        jobs = max(len(self.gpus), 1)
        welfare = float((self.priority * self.utility(progress)).sum()) / (jobs * self.rounds)
        return welfare - self.longest_weight * float(np.maximum(self.remaining - progress, 0.0).max(initial=0.0))

    def progress(self, number: Floats) -> Floats:
        """q of numbers of rounds (K,) at each place, (J,)."""
        planned = np.bincount(self.job, number * self.speed, minlength=len(self.gpus))
        return np.minimum(planned, (1.0 - self.done) * self.whole)


@dataclass(frozen=True, eq=False)
class WindowNumbers:
    """Rounds at each place, (K,), and the bound of the objective of any numbers."""

    number: Ints
    bound: float


def best_numbers(problem: WindowProblem) -> WindowNumbers | None:
    """The best numbers of rounds, within a gap of 0.1 % or 200 nodes; None = no answer keeps `least`, or none is found.

    Fewer nodes, down to 10, if there are more than 120 places. Raises SolverFailed if HiGHS does.
    """
    J, K, N = len(problem.gpus), len(problem.job), float(problem.rounds)
    pieces = _Pieces(problem)
    P = len(pieces.job)
    floor = max(problem.remaining.max(initial=0.0) - N - 1.0, 0.0)  # every plan leaves the longest job more than this
    rows = _Rows()
    _add_rounds(rows, problem, pieces)
    _add_limits(rows, problem, pieces, floor)
    constant = float((problem.priority * problem.utility(np.zeros(J))).sum()) / (max(J, 1) * N)
    program = IntegerProgram(
        value=np.concatenate([np.zeros(K), pieces.slope, [-problem.longest_weight]]),
        upper=np.concatenate([np.full(K, N), pieces.width, [N + 2.0]]),
        is_whole=np.arange(K + P + 1) < K,
        rows=np.concatenate(rows.row),
        columns=np.concatenate(rows.column),
        coefficients=np.concatenate(rows.coefficient),
        low=np.concatenate(rows.low),
        high=np.concatenate(rows.high),
        constant=constant - problem.longest_weight * floor,
    )
    options = {"mip_rel_gap": GAP, "mip_max_nodes": min(max(NODES_OF_PLACES // max(K, 1), NODES_MIN), NODES_MAX)}
    found = best_integers(program, options, detail="numbers of rounds in a window", jobs=J)
    if found is None:
        return None
    return WindowNumbers(found.columns[:K].astype(np.int64), found.bound)


class _Rows:
    """The rows of a program, as they are added."""

    def __init__(self) -> None:
        self.row: list[Ints] = []
        self.column: list[Ints] = []
        self.coefficient: list[Floats] = []
        self.low: list[Floats] = []
        self.high: list[Floats] = []

    def add(self, row: Ints, column: Ints, coefficient: Floats, low: Floats, high: Floats) -> None:
        """Adds R rows with the bounds `low` and `high`, (R,); `row` counts from the first of them."""
        self.row.append(row + sum(map(len, self.low)))
        self.column.append(column)
        self.coefficient.append(coefficient)
        self.low.append(low)
        self.high.append(high)


def _add_rounds(rows: _Rows, problem: WindowProblem, pieces: _Pieces) -> None:
    """The window of each job, its progress, and the GPUs of each type. Columns: places, pieces, longest time."""
    J, K, P, T = len(problem.gpus), len(problem.job), len(pieces.job), len(problem.counts)
    N, place = float(problem.rounds), np.arange(K)
    rows.add(problem.job, place, np.ones(K), np.full(J, -np.inf), np.full(J, N))
    row, column = np.concatenate([problem.job, pieces.job]), np.arange(K + P)
    speed = np.concatenate([problem.speed, -np.ones(P)])
    rows.add(row, column, speed, np.zeros(J), np.full(J, np.inf))
    none, gpus = np.full(T, -np.inf), problem.gpus[problem.job]
    rows.add(problem.gpu_type, place, gpus, none, N * problem.counts)
    for size in np.unique(problem.gpus).tolist():  # of a gang: it takes the place of so many gangs of this size
        own = np.flatnonzero(gpus >= size)
        rows.add(problem.gpu_type[own], own, np.floor(gpus[own] / size), none, N * np.floor(problem.counts / size))


def _add_limits(rows: _Rows, problem: WindowProblem, pieces: _Pieces, floor: float) -> None:
    """The longest remaining time, which counts from `floor`, and the least progress of jobs that have one."""
    longest, place = len(problem.job) + len(pieces.job), np.full(len(problem.gpus), -1)
    for least, is_longest in ((problem.remaining - floor, True), (problem.least, False)):
        bound = np.flatnonzero(least > 0)
        place[:] = -1
        place[bound] = np.arange(len(bound))
        mine = np.flatnonzero(place[pieces.job] >= 0)
        row, column = place[pieces.job[mine]], len(problem.job) + mine
        if is_longest:
            row, column = np.concatenate([row, place[bound]]), np.append(column, np.full(len(bound), longest))
        rows.add(row, column, np.ones(len(row)), least[bound], np.full(len(bound), np.inf))


class _Pieces:
    """The chords that each job may still climb in the window, P of them: job, rounds of progress, value per round."""

    def __init__(self, problem: WindowProblem) -> None:
        begin = np.maximum(BASES[:-1], problem.done[:, None])
        width = np.maximum(BASES[1:] - begin, 0.0) * problem.whole[:, None]  # (J, 5) rounds
        before = np.cumsum(width, axis=1) - width  # climbed before
        self.job, piece = np.nonzero((width > _FAR) & (before < problem.rounds))
        self.width: Floats = np.minimum(width[self.job, piece], float(problem.rounds))
        each = _SLOPES[piece] / problem.whole[self.job] / (max(len(problem.gpus), 1) * problem.rounds)
        self.slope: Floats = each * problem.priority[self.job]


def rounds_of(problem: WindowProblem, number: Ints, held: Ints) -> Ints:
    """The GPU type of each job in each round, (J, N), -1 = it waits: as many of these numbers as find a place.

    First the jobs that must run in all rounds that are left; then by priority over the GPU rounds that they take, which
    is the order of least Σ p_j (mean round of j) on one GPU; then those that ran before. `held` (J,): types held now.
    """
    J = len(problem.gpus)
    left = np.zeros((J, len(problem.counts)))
    left[problem.job, problem.gpu_type] = number
    total = left.sum(axis=1)
    rank = -problem.priority / np.maximum(total * problem.gpus, 1.0)
    plan, before = np.full((J, problem.rounds), -1), held >= 0
    for at in range(problem.rounds):
        free, owed = problem.counts.copy(), left.sum(axis=1)
        must = owed >= problem.rounds - at
        for j in np.lexsort((np.arange(J), -problem.gpus, ~before, rank, ~must)).tolist():
            if owed[j] <= 0:
                continue
            last = int(plan[j, at - 1]) if at else int(held[j])
            for t in sorted(np.flatnonzero(left[j] > 0).tolist(), key=lambda t: (t != last, -left[j, t], t)):
                if problem.gpus[j] <= free[t]:
                    free[t] -= problem.gpus[j]
                    left[j, t] -= 1
                    plan[j, at] = t
                    break
        before = plan[:, at] >= 0
    return plan
